// One tensor over versions: the bottom of the drill-down.

import { growing } from "./api.js";
import { Chart, color, wholeAxis } from "./charts.js";
import { el, labelled, link, panel, table } from "./dom.js";
import { bytes, many, share, shareOf } from "./format.js";

export async function show(main, route) {
  const name = route.text("name") ?? "";
  const chart = new Chart("", 360);
  const listed = el("div");
  let range = { first: route.number("first"), last: route.number("last"), columns: 64 };
  const first = el("input", { type: "number", min: 0, value: range.first ?? "" });
  const last = el("input", { type: "number", min: 0, value: range.last ?? "" });
  const form = el("form", {
    class: "controls",
    onsubmit: (event) => { event.preventDefault(); range = { columns: 64, first: first.value, last: last.value }; return draw(); },
  }, labelled("From version", first), labelled("to version", last), el("button", {}, "Show"));

  let drawing = 0;

  function draw() {
    const mine = ++drawing;
    return growing("tensor", { name, ...range }, () => mine === drawing, drawn);
  }

  async function drawn(history) {
    const known = history.points.filter((point) => point.share !== null);
    const unknown = history.points.length - known.length - history.unread;
    const said = `${name} in ${history.points.length} of ${many(history.asked, "version")}, evenly chosen between ${history.first} and ${history.last}`
      + `${unknown ? `; of ${unknown} nothing is known` : ""}${history.unread ? `; ${many(history.unread, "more is", "more are")} being read` : ""}.`;
    listed.replaceChildren(table("Changed share by version", [
      { name: "version", head: true, cell: (p) => link(`#/version?v=${p.version}`, String(p.version)) },
      { name: "changed", n: true, cell: (p) => share(p.share) },
      { name: "elements", n: true, cell: (p) => (p.elements === null ? "" : shareOf(p.changed, p.elements)) },
      { name: "in the patch", n: true, cell: (p) => bytes(p.patch_bytes) },
      { name: "note", cell: (p) => p.why ?? "" },
    ], [...history.points].reverse(), { class: "scroll tall" }));
    await chart.draw(said, () => ({
      traces: [{
        type: "scatter", mode: "lines+markers", x: known.map((p) => p.version), y: known.map((p) => p.share),
        text: known.map((p) => `${share(p.share)}: ${shareOf(p.changed, p.elements)}`), line: { color: color("accent"), width: 1.5 },
        hovertemplate: "version %{x}<br>%{text}<extra></extra>",
      }],
      layout: { xaxis: wholeAxis(known.length, { title: "version" }), yaxis: { title: "changed share", tickformat: ".2~%", rangemode: "tozero" } },
    }), (point) => { location.hash = `#/version?v=${point.x}`; });
  }

  const back = route.number("v");
  main.replaceChildren(el("h1", { class: "code" }, name),
    el("p", {}, back === null ? link("#/timeline", "All versions") : link(`#/version?v=${back}`, `Back to version ${back}`)),
    panel(null, form, chart.figure), panel("As a table", listed));
  await draw();
  return { log: () => (range.last === null || range.last === "" ? draw() : null), theme: () => chart.redraw(), close: () => { drawing += 1; chart.close(); } };
}
