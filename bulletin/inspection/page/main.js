// The frame around the views: which one is shown, the run at a glance, what comes in live.

import { get, Problem } from "./api.js";
import { el, problem } from "./dom.js";
import { themed, tokenForm } from "./frame.js";
import { bytes, count, decimal, share } from "./format.js";
import * as compare from "./compare.js";
import * as heat from "./heat.js";
import * as islands from "./islands.js";
import * as lineage from "./lineage.js";
import * as storage from "./storage.js";
import * as tensor from "./tensor.js";
import * as timeline from "./timeline.js";
import * as version from "./version.js";

const VIEWS = { timeline, lineage, heat, islands, compare, storage, version, tensor };
const UNDER = { version: "timeline", tensor: "heat" };
const main = document.querySelector("#main");
const $ = (id) => document.getElementById(id);
let current = {};
let shown = 0;
let source = null;
let ticking = null;
let troubled = false;

function parse(hash) {
  const [name, tail] = hash.replace(/^#\//, "").split("?");
  const params = new URLSearchParams(tail ?? "");
  return {
    name: Object.hasOwn(VIEWS, name) ? name : "timeline",
    text: (key) => params.get(key),
    number: (key) => (/^\d{1,15}$|^-1$/.test(params.get(key) ?? "") ? Number(params.get(key)) : null),
  };
}

async function route() {
  const mine = ++shown;
  const at = parse(location.hash);
  current.close?.();
  current = {};
  waiting.clear();
  for (const a of document.querySelectorAll("#views a")) {
    const here = a.getAttribute("href") === `#/${UNDER[at.name] ?? at.name}`;
    if (here) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  const box = el("div");
  main.replaceChildren(box);
  try {
    const view = await VIEWS[at.name].show(box, at);
    if (mine === shown) current = view; else view.close?.();
  } catch (error) {
    if (mine === shown) failed(error, box);
  }
  if (mine !== shown) return;
  main.removeAttribute("aria-busy");
  main.dataset.shown = location.hash;
  const heading = main.querySelector("h1");
  document.title = `${heading?.textContent ?? "Skerry"} – Skerry`;
}

function failed(error, box) {
  if (error instanceof Problem && error.status === 401) { askToken(box); return; }
  // What is not read yet comes with the next event.
  current = { log: route, store: route };
  box.replaceChildren(el("h1", {}, "Nothing to show"), problem(error));
  if (!(error instanceof Problem)) console.error(error);
}

function askToken(box) {
  deafen();
  box.replaceChildren(...tokenForm(() => { listen(); glance(); route(); }));
  box.querySelector("input").focus();
}

const tile = (what, figure, more) => el("div", { class: "tile" }, el("p", { class: "what" }, what), el("p", { class: "figure" }, figure), el("p", { class: "more" }, more ?? ""));

async function glance() {
  let run;
  try { run = await get("run"); } catch (error) {
    // A session that has ended: what is shown would grow old and nobody would say so.
    if (error.status === 401) { if (source !== null) route(); } else banner({ state: "gone", problem: error });
    return;
  }
  const now = run.newest;
  $("address").textContent = run.address;
  $("up").hidden = !/\/runs\/[^/]+\/$/.test(location.pathname);
  $("release").textContent = `Skerry ${run.release}`;
  banner(run.store);
  const well = run.islands.current;
  const all = Object.values(run.islands).reduce((a, b) => a + b, 0);
  $("tiles").replaceChildren(
    tile("newest version", now ? count(now.version) : "none", now ? `step ${count(now.step)}` : ""),
    tile("changed in it", now ? share(now.share) : "–", now && now.changed !== null ? `${count(now.changed)} of ${count(now.elements)}` : "not compared"),
    tile("its patch", now ? bytes(now.patch_bytes) : "–", now?.ratio ? `full is ${decimal(now.ratio)} times as large` : ""),
    tile("versions", count(run.versions), `${count(run.live)} live, ${count(run.abandoned)} abandoned, ${count(run.retired)} retired`),
    tile("islands up to date", run.islands_denied ? "not seen" : `${well} of ${all}`, run.islands_denied ?? `${run.islands.behind} behind, ${run.islands.failing} failing, ${run.islands.silent} silent, ${run.islands.stray} stray, ${run.islands.stopped} stopped`),
    tile("signatures", run.key ? "verified" : "unsigned", run.key ? (run.pinned ? "from a pinned key" : "from the key of slot 0") : "anybody can write records"),
  );
}

function banner(store) {
  const words = {
    ok: null,
    opening: `The log is being read for the first time: ${count(store.records_read)}${store.records_known ? ` of ${count(store.records_known)}` : ""} records.`,
    empty: "There is no log at this address yet.",
    slow: `The store has not answered for ${Math.round(store.pending_s ?? 0)} s. What is shown was seen before.`,
    failing: "The store does not answer. What is shown was seen before.",
    refused: "The log breaks a rule. What is shown was good before that.",
    gone: "The service does not answer.",
  };
  const text = words[store.state] ?? null;
  troubled = text !== null;
  const box = $("banner");
  const more = store.problem ? ` ${store.problem.kind ?? ""}: ${store.problem.message}${store.problem.acts ? `. Who acts: ${store.problem.acts}.` : ""}` : "";
  const full = text === null ? "" : text + more;
  if (box.textContent !== full) box.textContent = full;
  box.hidden = text === null;
  box.className = ["refused", "failing", "gone"].includes(store.state) ? "bad" : "";
}

const TICK_MS = 5000;
const TICKS_UNHEARD = 3;

// Events come while the page is seen: hidden tabs would keep the store busy for nobody, and six of
// them would take all connections that a browser has for one host.
function listen() {
  deafen();
  if (document.hidden) return;
  const stream = new EventSource("api/v1/events");
  source = stream;
  let newest;
  stream.onopen = () => { $("live").textContent = "live"; };
  stream.onerror = () => {
    // A refused stream stays closed: then it is asked now and then.
    const refused = stream.readyState === EventSource.CLOSED;
    $("live").textContent = refused ? `not live: asking every ${(TICK_MS * TICKS_UNHEARD) / 1000} s` : "connecting again …";
    glance();
  };
  stream.addEventListener("store", () => { glance(); update("store"); });
  stream.addEventListener("islands", () => { glance(); update("islands"); });
  stream.addEventListener("log", (event) => {
    const now = JSON.parse(event.data);
    if (newest !== undefined && now.newest !== newest) $("told").textContent = `Version ${now.newest} is there.`;
    const first = newest === undefined;
    newest = now.newest;
    if (first) return;
    glance();
    update("log");
  });
  let ticks = 0;
  ticking = setInterval(() => {
    ticks += 1;
    const unheard = stream.readyState === EventSource.CLOSED && ticks % TICKS_UNHEARD === 0;
    if (unheard) { update("log"); listen(); }
    if (unheard || troubled) glance(); // how long a store has been silent, how much has been read
  }, TICK_MS);
}

function deafen() {
  source?.close();
  source = null;
  clearInterval(ticking);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { deafen(); $("live").textContent = "not live while nobody looks"; return; }
  if (main.querySelector("input[type=password]")) return;
  listen();
  glance();
  for (const kind of ["log", "islands"]) update(kind);
});

// What comes in live must not take the focus from whoever is at work in a view: it waits.
const waiting = new Set();

function update(kind) {
  const at = document.activeElement;
  if (at !== main && main.contains(at)) { waiting.add(kind); return; }
  waiting.delete(kind);
  Promise.resolve(current[kind]?.()).catch((error) => console.error(error));
}

main.addEventListener("focusout", (event) => {
  if (!main.contains(event.relatedTarget)) setTimeout(() => [...waiting].forEach(update));
});

window.addEventListener("hashchange", () => { route().then(() => main.focus({ preventScroll: true })); scrollTo(0, 0); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

themed(() => current.theme?.());
glance();
listen();
route();
