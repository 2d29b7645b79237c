// Every version: bytes, changed share and ratio as a chart, and as a table by pages.

import { get } from "./api.js";
import { Chart, color, logAxis, wholeAxis } from "./charts.js";
import { chip, el, labelled, link, panel, table } from "./dom.js";
import { bytes, count, decimal, moment, share, shareOf } from "./format.js";

const PAGE = 50;
const MOST = 10000;
const KINDS = { live: "good", abandoned: "warn", retired: "" };

export const standing = (state) => chip(state, KINDS[state]);

export const versionLink = (version) => link(`#/version?v=${version}`, String(version));

function columns(detailed) {
  return [
    { name: "version", head: true, cell: (row) => versionLink(row.version) },
    { name: "parent", cell: (row) => (row.parent === null ? "none" : versionLink(row.parent)) },
    { name: "step", n: true, cell: (row) => count(row.step) },
    { name: "form", cell: (row) => row.form },
    { name: "state", cell: (row) => standing(row.state) },
    { name: "changed", n: true, cell: (row) => share(row.share) },
    { name: "elements", n: true, cell: (row) => shareOf(row.changed, row.elements) },
    { name: "patch", n: true, cell: (row) => bytes(row.patch_bytes) },
    { name: "full", n: true, cell: (row) => (row.full_bytes_exact ? "" : "≈ ") + bytes(row.full_bytes) },
    { name: "full / patch", n: true, cell: (row) => decimal(row.ratio) },
    { name: "bytes / changed", n: true, cell: (row) => decimal(row.bytes_per_changed) },
    { name: "signed", cell: (row) => (row.signed ? "verified" : "unsigned") },
    detailed && { name: "committed", cell: (row) => moment(row.time_ms) },
  ].filter(Boolean);
}

export const versionTable = (caption, rows) => table(caption, columns(true), rows);

function traces(line) {
  const picked = (keep, values) => values.map((value, i) => (keep(i) ? value : null));
  const many = line.version.length > 400;
  const mode = many ? "lines" : "lines+markers";
  const curve = (name, values, axis, hue, text) => ({
    type: "scatter", mode, name, x: line.version, y: values, yaxis: axis, text, showlegend: false,
    line: { color: color(hue), width: many ? 1 : 1.5, simplify: true }, marker: { size: 4 },
    hovertemplate: `version %{x}<br>${name}: %{text}<extra></extra>`,
  });
  const points = (name, keep, symbol, hue) => ({
    type: "scatter", mode: "markers", name, x: line.version, y: picked(keep, line.full_bytes), yaxis: "y",
    marker: { symbol, size: 9, color: color(hue), line: { width: 1, color: color("card") } },
    hovertemplate: `version %{x}<br>${name}<extra></extra>`,
  });
  const gone = {
    type: "scatter", mode: "markers", name: "abandoned", x: line.version,
    y: picked((i) => line.state[i] === "abandoned", line.share), yaxis: "y2",
    marker: { symbol: "x", size: 7, color: color("accent-2") },
    hovertemplate: "version %{x}<br>abandoned<extra></extra>",
  };
  return [
    curve("patch bytes", line.patch_bytes, "y", "accent", line.patch_bytes.map(bytes)),
    points("full version", (i) => line.form[i] !== "patch", "diamond", "accent-2"),
    curve("changed share", line.share, "y2", "accent-3", line.share.map(share)),
    gone,
    curve("full / patch", line.ratio, "y3", "good", line.ratio.map((r) => decimal(r))),
  ];
}

const layout = (line) => ({
  grid: { rows: 3, columns: 1, subplots: [["xy"], ["xy2"], ["xy3"]], roworder: "top to bottom" },
  xaxis: wholeAxis(line.version.length, { title: "version", anchor: "y3" }),
  yaxis: logAxis([...line.patch_bytes, ...line.full_bytes], { title: "bytes", exponentformat: "SI", domain: [0.7, 1] }),
  yaxis2: logAxis(line.share, { title: "changed", tickformat: "~%", domain: [0.35, 0.64] }),
  yaxis3: logAxis(line.ratio, { title: "full / patch", tickformat: ",~r", domain: [0, 0.29] }),
  legend: { orientation: "h", y: 1.08, x: 0 },
});

function said(line) {
  if (!line.version.length) return "No version yet.";
  const known = line.patch_bytes.filter((n) => n !== null);
  const shares = line.share.filter((n) => n !== null);
  const span = `Versions ${line.version[0]} to ${line.version.at(-1)} of ${count(line.total)}`;
  if (!known.length) return `${span}: no patches.`;
  const least = (list) => list.reduce((a, b) => Math.min(a, b));
  const most = (list) => list.reduce((a, b) => Math.max(a, b));
  return `${span}: patches of ${bytes(least(known))} to ${bytes(most(known))}`
    + (shares.length ? `, ${share(least(shares))} to ${share(most(shares))} of the elements changed.` : ".")
    + (line.version.length === MOST && line.first > 0 ? ` Of more than ${count(MOST)} the newest are drawn: choose a stretch for others.` : "");
}

export async function show(main, route) {
  const chart = new Chart("", 560);
  const listed = el("div");
  let range = { first: route.number("first"), last: route.number("last"), limit: MOST };
  let before = null;
  const input = (name, value) => el("input", { type: "number", min: 0, name, value: value ?? "" });
  const first = input("first", range.first);
  const last = input("last", range.last);
  const choose = (next) => { range = { limit: MOST, ...next }; return draw(); };
  const recent = (n) => el("button", { type: "button", onclick: () => choose({ limit: n }) }, n === MOST ? "All" : `Last ${count(n)}`);
  const form = el("form", {
    class: "controls",
    onsubmit: (event) => { event.preventDefault(); choose({ first: first.value, last: last.value }); },
  }, labelled("From version", first), labelled("to version", last), el("button", {}, "Show"),
  recent(100), recent(1000), recent(MOST));

  async function draw() {
    const line = await get("timeline", range);
    await chart.draw(said(line), () => ({ traces: traces(line), layout: layout(line) }),
      (point) => { location.hash = `#/version?v=${point.x}`; });
  }

  async function list() {
    const page = await get("versions", { limit: PAGE, before });
    const older = el("button", { type: "button", disabled: page.following === null,
      onclick: () => { before = page.following; return list(); } }, "Older");
    const newest = el("button", { type: "button", disabled: before === null,
      onclick: () => { before = null; return list(); } }, "Newest");
    const rows = page.versions;
    const span = rows.length ? `Versions ${rows[0].version} to ${rows.at(-1).version} of ${count(page.total)}, newest first` : "No version";
    listed.replaceChildren(versionTable(span, rows), el("p", { class: "controls" }, newest, older));
  }

  main.replaceChildren(el("h1", {}, "Timeline"), panel(null, form, chart.figure,
    el("p", { class: "note" }, "A click on the chart opens a version; so do the links of the table.")),
  panel("Versions", listed));
  await list();
  await draw();
  return {
    log: async () => { if (before === null) await list(); await draw(); },
    theme: () => chart.redraw(),
    close: () => chart.close(),
  };
}
