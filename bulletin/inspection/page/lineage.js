// Who descends from whom: the newest version's line, branches beside it, and skips as arcs.

import { get } from "./api.js";
import { Chart, color, wholeAxis } from "./charts.js";
import { el, labelled, panel, table } from "./dom.js";
import { bytes, count, many } from "./format.js";
import { standing, versionLink } from "./timeline.js";

const LIMIT = 300;
const HUES = { live: "accent", abandoned: "accent-2", retired: "grey" };

const LABELS = 12;

function edges(family) {
  const at = new Map(family.versions.map((v) => [v.version, v]));
  const lines = { patch: { x: [], y: [] }, turn: { x: [], y: [] } };
  for (const v of family.versions) {
    const parent = at.get(v.parent);
    if (!parent) continue;
    const { x, y } = v.rollback ? lines.turn : lines.patch;
    x.push(parent.version, v.version, null);
    y.push(-parent.lane, -v.lane, null);
  }
  return lines;
}

function arcs(skips) {
  const arc = { x: [], y: [], text: [] };
  for (const skip of skips) {
    const [a, b] = [skip.base_version, skip.version];
    const height = 0.3 + 0.12 * Math.log2(1 + Math.abs(b - a) / 8);
    for (let i = 0; i <= 16; i += 1) {
      const t = i / 16;
      arc.x.push(a + (b - a) * t);
      arc.y.push(4 * height * t * (1 - t) + 0.08);
      arc.text.push(`skip ${a} to ${b}: ${bytes(skip.skip_bytes)}${skip.usable ? "" : ", retired"}`);
    }
    arc.x.push(null); arc.y.push(null); arc.text.push("");
  }
  return arc;
}

function traces(family) {
  const { patch, turn } = edges(family);
  const dots = family.versions.length > 100 ? 5 : 8;
  const line = (name, data, style, more) => ({ type: "scatter", mode: "lines", name, ...data, line: style, hoverinfo: "skip", ...more });
  const nodes = Object.keys(HUES).map((state) => {
    const some = family.versions.filter((v) => v.state === state);
    return {
      type: "scatter", mode: "markers", name: state, x: some.map((v) => v.version), y: some.map((v) => -v.lane), showlegend: some.length > 0,
      marker: { color: color(HUES[state]), size: some.map((v) => (v.form === "patch" ? dots : 13)), opacity: 1,
        symbol: some.map((v) => (v.form === "patch" ? "circle" : "diamond")), line: { width: 1, color: color("card") } },
      text: some.map((v) => `${v.form}, step ${count(v.step)}, parent ${v.parent ?? "none"}`),
      hovertemplate: "version %{x}<br>%{text}<extra></extra>",
    };
  });
  return [
    line("skip patch", arcs(family.skips), { color: color("accent-3"), width: 1.5, dash: "dot" }, { hoverinfo: undefined, hovertemplate: "%{text}<extra></extra>" }),
    line("patch", patch, { color: color("grey"), width: 1.5 }),
    line("rollback or fork", turn, { color: color("accent-2"), width: 2.5 }),
    ...nodes,
  ];
}

// Where the run went back, in words, as far as there is room for them.
const labels = (family) => family.versions.filter((v) => v.rollback && v.parent !== null).slice(-LABELS).map((v) => ({
  x: v.version, y: -v.lane, text: `${v.version} made from ${v.parent}`, showarrow: true, arrowhead: 0, ax: 0, ay: -34,
  arrowcolor: color("grey"), font: { color: color("ink"), size: 11 }, bgcolor: color("card"),
}));

export async function show(main, route) {
  const chart = new Chart("", 260);
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
      ? `Versions ${family.first} to ${family.last} of ${count(family.total)}: ${many(turns.length, "rollback or fork", "rollbacks or forks")}, ${many(family.skips.length, "skip patch", "skip patches")}. Diamonds are full versions.`
      : "No version yet.";
    const nothing = [!turns.length && "No rollback and no fork.", !family.skips.length && "No skip patch."].filter(Boolean);
    listed.replaceChildren(...[
      nothing.length > 0 && el("p", {}, nothing.join(" ")),
      turns.length > 0 && table(`Rollbacks and forks among versions ${family.first} to ${family.last}`, [
        { name: "version", head: true, cell: (v) => versionLink(v.version) },
        { name: "made from", cell: (v) => (v.parent === null ? "nothing" : versionLink(v.parent)) },
        { name: "left behind", n: true, cell: (v) => (v.parent === null ? "–" : count(v.version - 1 - v.parent)) },
        { name: "state", cell: (v) => standing(v.state) },
      ], turns),
      family.skips.length > 0 && table(`Skip patches from or to versions ${family.first} to ${family.last}`, [
        { name: "from", head: true, cell: (s) => versionLink(s.base_version) },
        { name: "to", cell: (s) => versionLink(s.version) },
        { name: "bytes", n: true, cell: (s) => bytes(s.skip_bytes) },
        { name: "usable", cell: (s) => (s.usable ? "yes" : "retired") },
      ], family.skips),
    ].filter(Boolean));
    const top = family.skips.length ? 1.5 : 0.8;
    chart.height = 110 + Math.round(70 * (family.lanes - 1 + top));
    await chart.draw(said, () => ({
      traces: traces(family),
      layout: {
        xaxis: wholeAxis(family.versions.length, { title: "version", showgrid: false, range: [family.first - 0.7, (family.last ?? 0) + 0.7] }),
        yaxis: { visible: false, range: [0.5 - family.lanes, top], fixedrange: true }, annotations: labels(family),
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 16, r: 16, t: 8, b: 40 },
      },
    }), (point) => { if (Number.isInteger(point.x)) location.hash = `#/version?v=${point.x}`; });
  }

  main.replaceChildren(el("h1", {}, "Lineage"), panel(null, form, chart.figure), panel("As a table", listed));
  await draw();
  return { log: () => (last === null ? draw() : null), theme: () => chart.redraw(), close: () => chart.close() };
}
