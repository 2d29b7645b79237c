// What the run takes in its store, what is about to go, and what a collection would free.

import { get } from "./api.js";
import { Chart, color } from "./charts.js";
import { chip, el, fields, labelled, panel, problem, table } from "./dom.js";
import { bytes, count, many, moment } from "./format.js";

const PARTS = [["patches", "patches", "accent"], ["skips", "skip patches", "accent-3"], ["fulls", "full versions", "accent-2"],
  ["waiting", "retired, waits for its grace", "grey"], ["due", "retired, may be deleted or is", "line"]];

const amount = (a) => `${bytes(a.total_bytes)} in ${many(a.objects, "object")}`;

export async function show(main, route) {
  const chart = new Chart("", 150);
  const listed = el("div");
  const foreseen = el("div", { role: "status" });
  const last = el("input", { type: "number", min: 1, max: 256, value: 32, required: true });
  const every = el("input", { type: "number", min: 1, placeholder: "none" });
  const form = el("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); return foresee(); } },
    labelled("Keep the newest", last), labelled("and every", every), el("button", {}, "Forecast"));

  async function foresee() {
    try {
      const found = await get("forecast", { keep_last: last.value, keep_every: every.value });
      foreseen.replaceChildren(fields([
        ["kept", `${many(found.kept_versions, "version")}, ${amount(found.left)}`],
        ["retired", many(found.retired_versions, "version")],
        ["freed after the grace", amount(found.freed)],
      ]));
    } catch (error) { foreseen.replaceChildren(problem(error)); }
  }

  async function draw() {
    const used = await get("storage");
    listed.replaceChildren(table("By kind, counted from the records", [
      { name: "what", head: true, cell: ([, name]) => name },
      { name: "objects", n: true, cell: ([key]) => count(used[key].objects) },
      { name: "bytes", n: true, cell: ([key]) => bytes(used[key].total_bytes) },
      { name: "exactly", n: true, cell: ([key]) => count(used[key].total_bytes) },
    ], PARTS), el("p", { class: "note" }, `Records, which stay for ever: ${bytes(used.log_bytes)}. Layouts, manifests and what no record names are not counted.`),
    !used.retirements.length ? el("p", {}, "Nothing has been retired.") : table(`Retirements, newest first: ${used.retirements.length} of ${count(used.retirements_total)}`, [
      { name: "slot", head: true, cell: (r) => count(r.seq) },
      { name: "may be deleted from", cell: (r) => moment(r.due_ms) },
      { name: "grace", cell: (r) => [chip(r.passed ? "grace has passed" : "waits", r.passed ? "" : "warn"), r.leased ? chip("leased by an island", "warn") : ""] },
      { name: "versions", n: true, cell: (r) => count(r.versions) },
      { name: "objects", n: true, cell: (r) => count(r.amount.objects) },
      { name: "bytes", n: true, cell: (r) => bytes(r.amount.total_bytes) },
    ], used.retirements));
    await chart.draw(`In use: ${amount(used.in_use)}. Retired and waiting: ${amount(used.waiting)}.`, () => ({
      traces: PARTS.map(([key, name, hue]) => ({
        type: "bar", orientation: "h", name, x: [used[key].total_bytes], y: [""], marker: { color: color(hue) },
        hovertemplate: `${name}: ${amount(used[key])}<extra></extra>`,
      })),
      layout: { barmode: "stack", xaxis: { exponentformat: "SI", title: "bytes" }, yaxis: { visible: false }, legend: { orientation: "h", y: 1.5, traceorder: "normal" }, margin: { l: 8, r: 16, t: 8, b: 40 } },
    }));
  }

  main.replaceChildren(el("h1", {}, "Storage"), panel("Use", chart.figure, listed),
    panel("If it were collected now", form, foreseen, el("p", { class: "note" }, "Nothing is changed here; skerry gc --dry-run takes more rules and asks the store.")));
  await foresee();
  await draw();
  return { log: draw, theme: () => chart.redraw(), close: () => chart.close() };
}
