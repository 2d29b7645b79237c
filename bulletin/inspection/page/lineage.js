// Who descends from whom: the newest version's line, branches beside it, and skips as arcs.

import { get } from "./api.js";
import { Chart, color } from "./charts.js";
import { el, labelled, panel, table } from "./dom.js";
import { bytes, count } from "./format.js";
import { standing, versionLink } from "./timeline.js";

const LIMIT = 300;
const HUES = { live: "accent", abandoned: "accent-2", retired: "grey" };

function traces(family) {
  const at = new Map(family.versions.map((v) => [v.version, v]));
  const edge = { x: [], y: [] };
  for (const v of family.versions) {
    const parent = at.get(v.parent);
    if (!parent) continue;
    edge.x.push(parent.version, v.version, null);
    edge.y.push(-parent.lane, -v.lane, null);
  }
  const arc = { x: [], y: [], text: [] };
  for (const skip of family.skips) {
    const [a, b] = [skip.base_version, skip.version];
    const height = 0.35 + 0.2 * Math.log2(1 + Math.abs(b - a) / 8);
    for (let i = 0; i <= 16; i += 1) {
      const t = i / 16;
      arc.x.push(a + (b - a) * t);
      arc.y.push(4 * height * t * (1 - t) + 0.06);
      arc.text.push(`skip ${a} to ${b}: ${bytes(skip.skip_bytes)}${skip.usable ? "" : ", retired"}`);
    }
    arc.x.push(null); arc.y.push(null); arc.text.push("");
  }
  const nodes = Object.keys(HUES).map((state) => {
    const some = family.versions.filter((v) => v.state === state);
    return {
      type: "scatter", mode: "markers", name: state, x: some.map((v) => v.version), y: some.map((v) => -v.lane),
      marker: { color: color(HUES[state]), size: some.map((v) => (v.form === "patch" ? 7 : 12)), opacity: 1,
        symbol: some.map((v) => (v.form === "patch" ? "circle" : "diamond")), line: { width: 1, color: color("card") } },
      text: some.map((v) => `${v.form}, step ${count(v.step)}, parent ${v.parent ?? "none"}`),
      hovertemplate: "version %{x}<br>%{text}<extra></extra>",
    };
  });
  return [
    { type: "scatter", mode: "lines", name: "skip patch", ...arc, hovertemplate: "%{text}<extra></extra>", line: { color: color("accent-3"), width: 1, dash: "dot" } },
    { type: "scatter", mode: "lines", name: "patch", ...edge, hoverinfo: "skip", line: { color: color("grey"), width: 1.5 } },
    ...nodes,
  ];
}

export async function show(main, route) {
  const chart = new Chart("", 420);
  const listed = el("div");
  let last = route.number("last");
  let family = null;
  const end = el("input", { type: "number", min: 0, value: last ?? "" });
  const go = (version) => { last = version; end.value = version ?? ""; return draw(); };
  const older = el("button", { type: "button", onclick: () => go(Math.max(0, family.first - 1)) }, "Earlier");
  const newest = el("button", { type: "button", onclick: () => go(null) }, "Newest");
  const form = el("form", {
    class: "controls", onsubmit: (event) => { event.preventDefault(); go(end.value === "" ? null : Number(end.value)); },
  }, labelled("Up to version", end), el("button", {}, "Show"), newest, older);

  async function draw() {
    family = await get("lineage", { last, limit: LIMIT });
    older.disabled = family.first === 0;
    newest.disabled = last === null;
    const turns = family.versions.filter((v) => v.rollback);
    const said = family.versions.length
      ? `Versions ${family.first} to ${family.last} of ${count(family.total)}: ${turns.length} rollbacks or forks, ${family.skips.length} skip patches. Diamonds are full versions.`
      : "No version yet.";
    listed.replaceChildren(
      table(`Rollbacks and forks among versions ${family.first} to ${family.last}`, [
        { name: "version", head: true, cell: (v) => versionLink(v.version) },
        { name: "made from", cell: (v) => (v.parent === null ? "nothing" : versionLink(v.parent)) },
        { name: "left behind", n: true, cell: (v) => (v.parent === null ? "–" : count(v.version - 1 - v.parent)) },
        { name: "state", cell: (v) => standing(v.state) },
      ], turns),
      table(`Skip patches from or to versions ${family.first} to ${family.last}`, [
        { name: "from", head: true, cell: (s) => versionLink(s.base_version) },
        { name: "to", cell: (s) => versionLink(s.version) },
        { name: "bytes", n: true, cell: (s) => bytes(s.skip_bytes) },
        { name: "usable", cell: (s) => (s.usable ? "yes" : "retired") },
      ], family.skips),
    );
    await chart.draw(said, () => ({
      traces: traces(family),
      layout: {
        xaxis: { title: "version" }, yaxis: { visible: false, range: [-family.lanes - 0.2, 2.2], fixedrange: true },
        legend: { orientation: "h", y: 1.08, x: 0 }, margin: { l: 16, r: 16, t: 8, b: 40 },
      },
    }), (point) => { if (Number.isInteger(point.x)) location.hash = `#/version?v=${point.x}`; });
  }

  main.replaceChildren(el("h1", {}, "Lineage"), panel(null, form, chart.figure), panel("As a table", listed));
  await draw();
  return { log: () => (last === null ? draw() : null), theme: () => chart.redraw(), close: () => chart.close() };
}
