// Where in the model a version changed: layer by projection, and either over versions.

import { get, growing, query } from "./api.js";
import { Chart, color, powers } from "./charts.js";
import { el, labelled, link, panel, table } from "./dom.js";
import { count, many, share, shareOf } from "./format.js";

const layerName = (layer) => (layer === null ? "no layer" : `layer ${layer}`);
const MODES = {
  place: "layer × projection, one version",
  layers: "layers over versions",
  projections: "projections over versions",
};

export const placeLink = (version, layer, projection, ...text) => link(
  `#/version?${query({ v: version, layer: layer ?? -1, projection })}`, ...text);

// Adds up the rows of a heat map that `key` puts together: [labels, changed, elements] by version.
function merged(map, key) {
  const labels = [...new Set(map.rows.map(key))];
  const index = map.rows.map((row) => labels.indexOf(key(row)));
  const sums = map.columns.map((column) => {
    const total = labels.map(() => null);
    column.elements.forEach((elements, i) => {
      if (elements === null) return;
      const sum = total[index[i]] ?? [0, 0];
      total[index[i]] = [sum[0] + column.changed[i], sum[1] + elements];
    });
    return total;
  });
  return [labels, sums];
}

function heat(x, y, cells, title) {
  const value = (cell) => (cell === null || cell[1] === 0 || cell[0] === 0 ? null : Math.log10(cell[0] / cell[1]));
  const z = cells.map((row) => row.map(value));
  const known = z.flat().filter((v) => v !== null);
  const low = known.length ? known.reduce((a, b) => Math.min(a, b)) : -6;
  const high = known.length ? known.reduce((a, b) => Math.max(a, b)) : 0;
  const text = cells.map((row) => row.map((cell) => (cell === null ? "unknown"
    : `${share(cell[1] ? cell[0] / cell[1] : 0)}: ${shareOf(cell[0], cell[1])}`)));
  return {
    traces: [{
      type: "heatmap", x, y, z, text, colorscale: "Viridis", zmin: low, zmax: high, xgap: 1, ygap: 1, hoverongaps: true,
      hovertemplate: "%{y}, %{x}<br>%{text}<extra></extra>",
      colorbar: { title: { text: "changed", side: "right" }, thickness: 16, tickvals: powers(low, high), ticktext: powers(low, high).map((p) => share(10 ** p)), outlinewidth: 0 },
    }],
    layout: { xaxis: { type: "category", title, showgrid: false, nticks: 24 }, yaxis: { type: "category", autorange: "reversed", showgrid: false }, plot_bgcolor: color("none") },
  };
}

const COLUMNS = 64;

export async function show(main, route) {
  const chart = new Chart("", 620);
  const listed = el("div");
  const range = { first: route.number("first"), last: route.number("last"), columns: COLUMNS };
  let map = { rows: [], columns: [], first: 0, last: 0, asked: 0, unread: 0 };
  let known = [];
  let exact = null;
  let at = null; // the version that was chosen; null: the newest
  let mode = Object.hasOwn(MODES, route.text("mode") ?? "") ? route.text("mode") : "place";
  let open = true;
  const select = el("select", { onchange: () => { mode = select.value; return draw(); } },
    Object.entries(MODES).map(([name, text]) => el("option", { value: name, selected: name === mode }, text)));
  const slider = el("input", { type: "range", min: 0, oninput: () => { exact = null; at = known[Number(slider.value)]?.version ?? null; number.value = at ?? ""; return draw(); } });
  const sliderName = el("span");
  const number = el("input", { type: "number", min: 0 });
  const first = el("input", { type: "number", min: 0, value: range.first ?? "" });
  const last = el("input", { type: "number", min: 0, value: range.last ?? "" });
  const form = el("form", {
    class: "controls", onsubmit: (event) => { event.preventDefault(); return exactly(Number(number.value)); },
  }, labelled("Show", select), labelled("Version", number), el("button", {}, "Go"), labelled(sliderName, slider, { class: "wide" }));
  const stretch = el("form", {
    class: "controls", onsubmit: (event) => { event.preventDefault(); location.hash = `#/heat?${query({ mode, first: first.value, last: last.value })}`; },
  }, labelled("From version", first), labelled("to version", last), el("button", {}, "Show"));

  async function exactly(version) {
    const found = await get(`versions/${version}/layers`);
    exact = { version, compared: found.compared, cells: found.cells };
    mode = select.value = "place";
    await draw();
  }

  function took(answer) {
    map = answer;
    known = map.columns.filter((column) => column.why === null);
    slider.max = Math.max(0, known.length - 1);
    const found = known.findIndex((column) => column.version === at);
    const chosen = found < 0 ? known.length - 1 : found;
    slider.value = chosen;
    if (exact === null) number.value = known[chosen]?.version ?? "";
    const unread = map.unread ? `; ${many(map.unread, "more is", "more are")} being read` : "";
    sliderName.textContent = `One of ${many(known.length, "version")} between ${map.first} and ${map.last}${unread}`;
    return draw();
  }

  const load = () => growing("heat", range, () => open, took);
  const cellsNow = () => exact?.cells ?? map.rows.map((row, i) => ({
    ...row, changed: known[slider.value].changed[i], elements: known[slider.value].elements[i],
  })).filter((cell) => cell.elements !== null);

  async function drawPlace() {
    const version = exact?.version ?? known[slider.value]?.version;
    if (version === undefined) {
      listed.replaceChildren();
      await chart.draw("No version whose statistics are known.", () => heat([], [], [], ""));
      return;
    }
    const cells = cellsNow();
    const layers = [...new Set(cells.map((cell) => cell.layer))];
    // Cells come in the order of a model's own: what is in a layer, then the rest.
    const projections = [...new Set([...cells.filter((cell) => cell.layer !== null), ...cells].map((cell) => cell.projection))];
    const find = new Map(cells.map((cell) => [`${cell.layer} ${cell.projection}`, cell]));
    const grid = layers.map((layer) => projections.map((projection) => {
      const cell = find.get(`${layer} ${projection}`);
      return cell ? [cell.changed, cell.elements] : null;
    }));
    const most = cells.reduce((a, b) => (b.elements && b.changed / b.elements > a.changed / (a.elements || 1) ? b : a), { changed: 0, elements: 1 });
    const compared = exact === null || exact.compared;
    const said = compared
      ? `Version ${version}: most changed is ${most.projection ?? "nothing"} of ${layerName(most.layer ?? null)}, ${share(most.changed / most.elements)}. Grey: nothing changed, or no such tensor.`
      : `Version ${version} was not compared with a parent: nothing is known.`;
    listed.replaceChildren(table(`Changed share of version ${version}, layer by projection; a figure opens its tensors`, [
      { name: "layer", head: true, cell: (i) => layerName(layers[i]) },
      ...projections.map((projection, j) => ({
        name: projection, n: true,
        cell: (i) => (grid[i][j] === null ? "" : placeLink(version, layers[i], projection, share(grid[i][j][0] / (grid[i][j][1] || 1)))),
      })),
    ], layers.map((_, i) => i), { class: "scroll tall" }));
    await chart.draw(said, () => heat(projections, layers.map(layerName), grid, "projection"), (point) => {
      if (mode !== "place") { location.hash = `#/version?v=${point.x}`; return; }
      const layer = layers[point.pointIndex[0]];
      location.hash = `#/version?${query({ v: version, layer: layer ?? -1, projection: projections[point.pointIndex[1]] })}`;
    });
  }

  async function drawOver(key, what) {
    const [labels, sums] = merged(map, key);
    const versions = map.columns.map((column) => String(column.version));
    const cells = labels.map((_, i) => sums.map((total) => total[i]));
    listed.replaceChildren(table(`Changed share of ${what}, by version`, [
      { name: "version", head: true, cell: (i) => link(`#/version?v=${versions[i]}`, versions[i]) },
      { name: "note", cell: (i) => map.columns[i].why ?? "" },
      ...labels.map((label, j) => ({ name: label, n: true, cell: (i) => {
        const cell = sums[i][j];
        return cell === null ? "–" : share(cell[1] ? cell[0] / cell[1] : 0);
      } })),
    ], versions.map((_, i) => i), { class: "scroll tall" }));
    const missing = map.columns.filter((column) => column.why !== null).length;
    await chart.draw(`Changed share of ${what} in ${versions.length} of ${many(map.asked, "version")}, evenly chosen between ${map.first} and ${map.last}${missing ? `; of ${missing} nothing is known` : ""}.`,
      () => heat(versions, labels, cells, "version"));
  }

  function draw() {
    slider.disabled = mode !== "place";
    if (mode === "layers") return drawOver((row) => layerName(row.layer), "layers");
    if (mode === "projections") return drawOver((row) => row.projection, "projections");
    return drawPlace();
  }

  main.replaceChildren(el("h1", {}, "Heat map"), panel(null, form, chart.figure, stretch), panel("As a table", listed));
  const asked = route.number("v");
  if (asked !== null) { number.value = asked; await exactly(asked); }
  await load();
  return {
    log: () => (range.last === null ? load() : null),
    theme: () => chart.redraw(),
    close: () => { open = false; chart.close(); },
  };
}
