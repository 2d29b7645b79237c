// One version: its record, what it costs, its tensors, and whether the store has what it names.

import { get, getSlowly, lines, query } from "./api.js";
import { chip, el, fields, labelled, link, panel, problem, table } from "./dom.js";
import { bytes, count, decimal, many, moment, share, shareOf, short } from "./format.js";
import { standing, versionLink } from "./timeline.js";

const PAGE = 100;
const code = (text) => el("span", { class: "code" }, text);
const lister = (items, make) => items.flatMap((item, i) => (i ? [", ", make(item)] : [make(item)]));

function facts({ row, signature, ...detail }) {
  const signed = signature.state === "verified"
    ? [chip("verified", "good"), " with ", code(short(signature.key)), signature.pinned ? ", from the pinned key" : ", from the key of slot 0"]
    : chip("unsigned", "warn");
  return fields([
    ["state", standing(row.state)],
    ["parent", row.parent === null ? "none" : versionLink(row.parent)],
    ["children", detail.children.length ? lister(detail.children, versionLink) : "none"],
    ["behind the newest", detail.lag === null ? "not of its line" : many(detail.lag, "version")],
    ["step", count(row.step)],
    ["form", row.form],
    ["committed", `${moment(row.time_ms)} by ${row.writer}, epoch ${row.epoch}, slot ${row.seq}`],
    ["signature", signed],
    ["weights", code(detail.result)],
    ["manifest", code(detail.manifest)],
    ["layout", code(detail.layout)],
  ]);
}

function figures({ row }, sizes) {
  return fields([
    ["changed", row.changed === null ? "not compared" : `${share(row.share)}: ${shareOf(row.changed, row.elements)}`],
    ["patch", row.patch_bytes === null ? "none" : `${bytes(row.patch_bytes)} (${count(row.patch_bytes)} B)`],
    ["record", `${count(row.record_bytes)} B`],
    ["changed elements, raw", sizes && (sizes.raw_bytes === null ? "not compared" : `${bytes(sizes.raw_bytes)} (${count(sizes.raw_bytes)} B)`)],
    ["full", sizes ? `${bytes(sizes.full_bytes)} (${count(sizes.full_bytes)} B)` : bytes(row.full_bytes)],
    ["full / patch", decimal(row.ratio)],
    ["bytes per changed element", decimal(row.bytes_per_changed)],
    ["tensors changed", sizes && `${count(sizes.tensors_changed)} of ${count(sizes.tensors)}`],
    ["side files changed", sizes?.side_files_changed.length ? sizes.side_files_changed.join(", ") : null],
  ]);
}

function objects(detail) {
  const rows = [...detail.packs, ...detail.full_files];
  return table(many(rows.length, "object"), [
    { name: "object", head: true, code: true, cell: (o) => code(o.key) },
    { name: "bytes", n: true, cell: (o) => count(o.size) },
    { name: "state", cell: (o) => (o.retired ? chip("retired") : "in use") },
  ], rows.slice(0, 200), { class: "scroll tall" });
}

export function tensorTable(caption, version, page) {
  return table(caption, [
    { name: "tensor", head: true, cell: (t) => link(`#/tensor?${query({ name: t.name, v: version })}`, t.name) },
    { name: "type", cell: (t) => `${t.dtype} ${t.shape.join(" × ")}` },
    { name: "changed", n: true, cell: (t) => share(t.share) },
    { name: "elements", n: true, cell: (t) => shareOf(t.changed, t.elements) },
    { name: "raw", n: true, cell: (t) => bytes(t.raw_bytes) },
    { name: "in the patch", n: true, cell: (t) => bytes(t.patch_bytes) },
  ], page.tensors, { class: "scroll tall" });
}

function tensors(version, route) {
  const box = el("div");
  const wanted = { layer: route.number("layer"), projection: route.text("projection") };
  const order = el("select", { onchange: () => load(0) },
    [["share", "changed share"], ["changed", "changed elements"], ["bytes", "bytes of the patch"], ["name", "name"]]
      .map(([value, text]) => el("option", { value }, text)));
  const prefix = el("input", { type: "search", maxlength: 1024, placeholder: "model.layers.0." });
  const only = wanted.layer === null && wanted.projection === null ? null : el("p", {},
    `Only ${wanted.projection ?? "all"} of ${wanted.layer === -1 ? "no layer" : `layer ${wanted.layer ?? "any"}`}. `, link(`#/version?v=${version}`, "Show all"));

  async function load(offset) {
    const page = await getSlowly(`versions/${version}/tensors`, { ...wanted, order: order.value, prefix: prefix.value, limit: PAGE, offset }, () => box.isConnected);
    const back = el("button", { type: "button", disabled: offset === 0, onclick: () => load(Math.max(0, offset - PAGE)) }, "Back");
    const on = el("button", { type: "button", disabled: offset + PAGE >= page.total, onclick: () => load(offset + PAGE) }, "More");
    const caption = `Tensors ${Math.min(offset + 1, page.total)} to ${Math.min(offset + PAGE, page.total)} of ${count(page.total)}${page.compared ? "" : "; nobody compared this version with a parent"}`;
    box.replaceChildren(tensorTable(caption, version, page), el("p", { class: "controls" }, back, on));
  }

  const form = el("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); return load(0); } },
    labelled("Order by", order), labelled("Names that start with", prefix), el("button", {}, "Show"));
  return { nodes: [only, form, box], load };
}

function verification(version, state) {
  if (state === "retired") return { nodes: [el("p", {}, "It is retired: what it names may be deleted at any time, so there is nothing to check.")], close: () => {} };
  const box = el("div", { role: "status" });
  let job = null;
  async function run(deep) {
    job?.abort();
    job = new AbortController();
    const checks = [];
    let sum = null;
    box.replaceChildren(el("p", {}, "Asking the store …"));
    for await (const line of lines(`versions/${version}/verification`, { deep }, job.signal)) {
      if (line.what) checks.push(line);
      else if (line.checks !== undefined) sum = line;
    }
    const bad = checks.filter((check) => check.problem !== null);
    const verdict = !sum?.done ? chip("stopped", "bad") : bad.length ? chip(many(bad.length, "problem"), "bad") : chip("all there", "good");
    box.replaceChildren(el("p", {}, verdict, ` ${many(checks.length, "check")}, ${bytes(sum?.checked_bytes ?? 0)} ${deep ? "read and hashed" : "by size"}. ${sum?.stopped_by?.message ?? ""}`),
      table("What was checked", [
        { name: "what", head: true, cell: (check) => code(check.what) },
        { name: "bytes", n: true, cell: (check) => count(check.checked_bytes) },
        { name: "verdict", cell: (check) => (check.problem === null ? chip("ok", "good") : chip(check.problem, "bad")) },
      ], [...bad, ...checks.filter((check) => check.problem === null)].slice(0, 200), { class: "scroll tall" }));
  }
  const button = (deep, text) => el("button", { type: "button", onclick: () => run(deep).catch((error) => { if (error.name !== "AbortError") box.replaceChildren(problem(error)); }) }, text);
  const nodes = [el("p", { class: "controls" }, button(false, "Check presence and size"), button(true, "Read and hash every object")), box];
  return { nodes, close: () => job?.abort() };
}

export async function show(main, route) {
  const version = route.number("v") ?? (await get("run")).newest?.version;
  if (version === undefined) { main.replaceChildren(el("h1", {}, "No version yet")); return {}; }
  const detail = await get(`versions/${version}`);
  const cost = el("div");
  const sizesBox = el("div", {}, figures(detail, null));
  const list = tensors(version, route);
  const checks = verification(version, detail.row.state);
  const factsBox = el("div", {}, facts(detail));
  const step = (to, text, off) => (off ? el("button", { disabled: true, type: "button" }, text) : el("a", { href: `#/version?v=${to}` }, text));
  const input = el("input", { type: "number", min: 0, value: version });
  main.replaceChildren(
    el("h1", {}, `Version ${version}`),
    el("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); location.hash = `#/version?v=${input.value}`; } },
      labelled("Version", input), el("button", {}, "Go"), step(version - 1, "Previous", version === 0),
      step(version + 1, "Next", detail.lag === 0), link(`#/heat?v=${version}`, "Heat map of this version"),
      detail.row.parent !== null && link(`#/compare?${query({ old: detail.row.parent, new: version })}`, "Compare with its parent")),
    el("div", { class: "columns" }, panel("Record", factsBox), panel("Size", sizesBox)),
    panel("Tensors", ...list.nodes), panel("What it takes to get here", cost), panel("Objects", objects(detail)),
    panel("Verification", ...checks.nodes),
  );
  const parts = [
    getSlowly(`versions/${version}/sizes`, {}, () => sizesBox.isConnected).then((sizes) => sizesBox.replaceChildren(figures(detail, sizes))),
    list.load(0),
    get("catch-up", { want: version }).then((way) => cost.replaceChildren(el("p", {}, way.reachable
      ? `A newcomer downloads ${bytes(way.total_bytes)} in ${many(way.objects, "object")} over ${many(way.steps.length, "step")}. `
      : `A newcomer cannot get here: ${way.why}. `, link(`#/compare?${query({ new: version })}`, "From another version …")))),
  ];
  for (const outcome of await Promise.allSettled(parts)) {
    if (outcome.status === "rejected") main.append(problem(outcome.reason));
  }
  return {
    log: async () => factsBox.replaceChildren(facts(await get(`versions/${version}`))), // it may have been left behind
    close: checks.close,
  };
}
