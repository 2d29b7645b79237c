// Where versions are served, and what lags: those that need somebody come first.

import { get } from "./api.js";
import { Chart, color, wholeAxis } from "./charts.js";
import { chip, el, fields, labelled, link, panel, svg, table } from "./dom.js";
import { age, bytes, count, many, moment } from "./format.js";
import { versionLink } from "./timeline.js";

const PAGE = 200;
const KINDS = { current: "good", behind: "warn", failing: "bad", silent: "bad", stray: "bad", stopped: "" };
const MEANS = {
  current: "holds the newest version", behind: "follows, and lags", failing: "names an error",
  silent: "has said nothing for a while", stray: "holds what it should not", stopped: "has taken its leave",
};

function spark(looks) {
  const lags = looks.map((look) => look.lag);
  const most = Math.max(1, ...lags);
  const wide = Math.max(1, lags.length - 1);
  const points = lags.map((lag, i) => `${((100 * i) / wide).toFixed(1)},${(22 - (20 * lag) / most).toFixed(1)}`);
  if (points.length === 1) points.push(`100,${points[0].split(",")[1]}`);
  const label = lags.length ? `lag over the last ${lags.length} looks: ${Math.min(...lags)} to ${Math.max(...lags)}, now ${lags.at(-1)}` : "no look yet";
  return svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("line", { x1: 0, x2: 100, y1: 22, y2: 22 }), svg("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
}

const state = (row) => [chip(row.state, KINDS[row.state]), row.why && row.state !== "failing" ? ` ${row.why}` : ""];
const engines = (row) => Object.entries(row.engines).map(([name, version]) => `${name}: ${version ?? "nothing"}`).join(", ") || "none";

function progress(row) {
  if (!row.total_bytes || ["idle", "stopped"].includes(row.phase)) return row.phase;
  const text = `${row.phase}, ${bytes(row.done_bytes)} of ${bytes(row.total_bytes)}`;
  return [el("progress", { max: row.total_bytes, value: Math.min(row.done_bytes, row.total_bytes), "aria-label": `${row.island}: ${text}` }), ` ${text}`];
}

function islandTable(page) {
  const from = Math.min(page.offset + 1, page.total);
  return table(`Islands ${from} to ${page.offset + page.islands.length} of ${count(page.total)}, those first that need somebody`, [
    { name: "island", head: true, cell: (row) => link(`#/islands?island=${encodeURIComponent(row.island)}`, row.island) },
    { name: "state", cell: state },
    { name: "version", n: true, cell: (row) => (row.version === null ? "none" : row.state === "stray" ? count(row.version) : versionLink(row.version)) },
    { name: "lag", n: true, cell: (row) => count(row.lag) },
    { name: "lag over time", cell: (row) => spark(row.looks) },
    { name: "phase", cell: progress },
    { name: "last seen", n: true, cell: (row) => el("span", { title: moment(row.last_seen_ms) }, age(row.age_s)) },
    { name: "last error", cell: (row) => row.error ?? "" },
    { name: "engines", cell: engines },
  ], page.islands, { class: "scroll tall" });
}

const lagTraces = (looks) => [{
  type: "scatter", mode: looks.length > 1 ? "lines" : "markers", x: looks.map((look) => new Date(look.time_ms).toISOString()), y: looks.map((look) => look.lag),
  text: looks.map((look) => (look.version === null ? "holds nothing" : `version ${look.version}`)), line: { color: color("accent"), width: 1.5, shape: "hv" }, marker: { color: color("accent") },
  hovertemplate: "%{x}<br>lag %{y}, %{text}<extra></extra>",
}];

async function one(main, name, chart) {
  const { island: row, catch_up: way } = await get(`islands/${encodeURIComponent(name)}`);
  main.replaceChildren(el("h1", {}, `Island ${row.island}`), el("p", {}, link("#/islands", "All islands")),
    el("div", { class: "columns" },
      panel("What it says", fields([
        ["state", state(row)], ["version", row.version === null ? "none" : count(row.version)], ["wants", row.target === null ? "nothing" : count(row.target)],
        ["lag", `${many(row.lag, "version")}; it says ${count(row.said_lag)}`], ["phase", progress(row)], ["engines", engines(row)],
        ["last error", row.error ?? "none"], ["last seen", `${moment(row.last_seen_ms)} by its clock`],
      ])),
      panel("Lag over time", chart.figure, table(`The last ${many(row.looks.length, "look")}`, [
        { name: "when", head: true, cell: (look) => moment(look.time_ms) },
        { name: "version", n: true, cell: (look) => count(look.version) },
        { name: "lag", n: true, cell: (look) => count(look.lag) },
      ], [...row.looks].reverse(), { class: "scroll short" }))),
    panel("To the newest version", !way ? el("p", {}, row.state === "stray" ? `There is no way: ${row.why}.` : "There is no version yet.") : !way.reachable ? el("p", {}, way.why)
      : !way.steps.length ? el("p", {}, "Nothing is to be downloaded.")
      : [el("p", {}, `${bytes(way.total_bytes)} in ${many(way.objects, "object")}, ${many(way.steps.length, "step")}.`), stepTable(way.steps)]));
  const lags = row.looks.map((look) => look.lag);
  const said = lags.length ? `Between ${Math.min(...lags)} and ${Math.max(...lags)}, now ${lags.at(-1)}, since this service looks.` : "Nobody has looked yet.";
  await chart.draw(said, () => ({ traces: lagTraces(row.looks), layout: { xaxis: { type: "date" }, yaxis: wholeAxis(Math.max(0, ...lags), { title: "versions behind", rangemode: "tozero" }) } }));
}

export const stepTable = (steps) => table("The cheapest way", [
  { name: "step", head: true, cell: (step) => step.kind },
  { name: "from", n: true, cell: (step) => (step.base === null ? "anywhere" : count(step.base)) },
  { name: "to", n: true, cell: (step) => versionLink(step.version) },
  { name: "bytes", n: true, cell: (step) => bytes(step.step_bytes) },
  { name: "objects", n: true, cell: (step) => count(step.objects) },
], steps.slice(0, 200));

export async function show(main, route) {
  const name = route.text("island");
  if (name !== null) {
    const chart = new Chart("", 220);
    await one(main, name, chart);
    return { islands: () => one(main, name, chart), theme: () => chart.redraw(), close: () => chart.close() };
  }
  const listed = el("div");
  const sums = el("p", { class: "controls" });
  let offset = 0;
  const filter = el("select", { onchange: () => { offset = 0; return list(); } }, el("option", { value: "" }, "all"),
    Object.entries(MEANS).map(([value, means]) => el("option", { value }, `${value}: ${means}`)));

  async function list() {
    const page = await get("islands", { limit: PAGE, offset, state: filter.value });
    const back = el("button", { type: "button", disabled: offset === 0, onclick: () => { offset = Math.max(0, offset - PAGE); return list(); } }, "Back");
    const on = el("button", { type: "button", disabled: offset + PAGE >= page.total, onclick: () => { offset += PAGE; return list(); } }, "More");
    sums.replaceChildren(...Object.entries(page.counts).flatMap(([value, n]) => [chip(`${n} ${value}`, n ? KINDS[value] : ""), " "]));
    const looked = page.looked_ms === null ? "Nobody has looked yet." : `As of ${moment(page.looked_ms)}.`;
    const refused = page.refused_total ? table(`${many(page.refused_total, "status is none", "statuses are none")}`, [
      { name: "object", head: true, cell: (r) => r.key }, { name: "why", cell: (r) => r.why },
    ], page.refused) : null;
    const more = page.more_than_looked_at ? el("p", { class: "problem" }, "There are more statuses than are looked at.") : null;
    listed.replaceChildren(islandTable(page), el("p", { class: "controls" }, page.total > PAGE && [back, on], el("span", { class: "note" }, looked)), ...[refused, more].filter(Boolean));
  }

  main.replaceChildren(el("h1", {}, "Islands"), panel(null, sums, el("div", { class: "controls" }, labelled("Show", filter)), listed));
  await list();
  return { islands: list, log: list };
}
