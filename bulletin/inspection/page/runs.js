// The runs that this service shows, one in each row.

import { get } from "./api.js";
import { chip, el, link, panel, problem, table } from "./dom.js";
import { bytes, count, share } from "./format.js";
import { themed, tokenForm } from "./frame.js";

const LOOK_MS = 10000;
const STORES = { ok: "good", opening: "", empty: "", slow: "warn", failing: "bad", refused: "bad" };
const main = document.querySelector("#main");
const live = document.getElementById("live");

function islands(run) {
  if (run.islands_denied) return "not seen";
  const all = Object.values(run.islands).reduce((a, b) => a + b, 0);
  const bad = ["failing", "silent", "stray"].filter((state) => run.islands[state]);
  return [`${run.islands.current} of ${all} `, ...bad.map((state) => chip(`${run.islands[state]} ${state}`, "bad"))];
}

const signed = (run) => (run.key ? `verified, ${run.pinned ? "pinned" : "by slot 0"}` : "unsigned");

function runTable(rows) {
  const newest = (row) => row.overview.newest;
  return table(`${count(rows.length)} runs`, [
    { name: "run", head: true, cell: (row) => link(row.href, row.name) },
    { name: "newest", n: true, cell: (row) => count(newest(row)?.version) },
    { name: "step", n: true, cell: (row) => count(newest(row)?.step) },
    { name: "changed", n: true, cell: (row) => share(newest(row)?.share) },
    { name: "patch", n: true, cell: (row) => bytes(newest(row)?.patch_bytes) },
    { name: "versions", n: true, cell: (row) => count(row.overview.versions) },
    { name: "islands up to date", cell: (row) => islands(row.overview) },
    { name: "signatures", cell: (row) => signed(row.overview) },
    { name: "store", cell: (row) => [chip(row.overview.store.state, STORES[row.overview.store.state]), " ", row.overview.store.problem?.message ?? ""] },
    { name: "address", code: true, cell: (row) => row.overview.address },
  ], rows);
}

async function draw() {
  try {
    const { runs } = await get("runs");
    document.getElementById("release").textContent = `Skerry ${runs[0].overview.release}`;
    live.textContent = `asking every ${LOOK_MS / 1000} s`;
    // What comes in must not take the focus from whoever is at a link.
    if (!main.querySelector("table")?.contains(document.activeElement)) {
      main.replaceChildren(el("h1", {}, "Runs"), panel(null, runTable(runs)));
    }
  } catch (error) {
    if (error.status !== 401) { main.replaceChildren(el("h1", {}, "Runs"), problem(error)); return; }
    if (main.querySelector("input")) return;
    main.replaceChildren(...tokenForm(draw));
    main.querySelector("input").focus();
  }
}

themed(() => {});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });
setInterval(() => { if (!document.hidden) draw(); }, LOOK_MS);
draw().then(() => { main.dataset.shown = "runs"; });
