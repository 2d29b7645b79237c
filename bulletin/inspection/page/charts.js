// Draws with Plotly, which is loaded when the first chart is: tables and text come before it.

import { el } from "./dom.js";
import { plain } from "./format.js";

let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const source = document.querySelector('meta[name="plotly"]').content;
    document.head.append(el("script", {
      src: source, onload: () => resolve(window.Plotly),
      onerror: () => { loading = null; reject(new Error("The chart library was not delivered.")); },
    }));
  });
  return loading;
}

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const axis = (extra) => ({
  gridcolor: color("line"), zeroline: false, zerolinecolor: color("line"), linecolor: color("line"),
  tickfont: { color: color("soft") }, automargin: true, ...extra,
  title: extra?.title && { text: extra.title, font: { color: color("soft"), size: 12 }, standoff: 8 },
});

// A chart is a picture to a screen reader: `label` says what it shows, a table beside it has the data.
export class Chart {
  constructor(caption, height) {
    this.box = el("div", { class: "chart", role: "img", style: `height:${height}px` });
    this.caption = el("figcaption", {}, caption);
    this.figure = el("figure", {}, this.caption, this.box);
    this.height = height;
  }

  async draw(label, make, onclick) {
    this.caption.textContent = label;
    this.box.setAttribute("aria-label", label);
    this.box.style.height = `${this.height}px`;
    this.make = make;
    this.onclick = onclick ?? this.onclick;
    const Plotly = await plotly();
    if (!this.box.isConnected) return;
    const { traces, layout } = make();
    const axes = Object.fromEntries(Object.entries(layout).map(([name, value]) => (
      /^[xy]axis/.test(name) ? [name, axis(value)] : [name, value])));
    const data = traces.map((trace) => ({ ...trace, x: plain(trace.x), y: plain(trace.y), text: plain(trace.text) }));
    await Plotly.react(this.box, data, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "inherit", color: color("ink"), size: 12 },
      margin: { l: 64, r: 16, t: 8, b: 40 }, height: this.height, hovermode: "closest",
      hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") } },
      ...layout, ...axes,
    }, { displayModeBar: false, responsive: true, doubleClick: "reset" });
    if (this.onclick && !this.listening) {
      this.listening = true;
      this.box.on("plotly_click", (event) => this.onclick(event.points[0]));
    }
    this.box.dataset.drawn = String(Number(this.box.dataset.drawn ?? 0) + 1);
  }

  async redraw() {
    if (this.make) await this.draw(this.caption.textContent, this.make);
  }

  close() {
    if (window.Plotly) window.Plotly.purge(this.box);
  }
}

// Five places between two powers of ten, both included.
export const powers = (low, high) => [0, 1, 2, 3, 4].map((i) => low + ((high - low) * i) / 4);

// An axis of whole numbers: where there are few, each has its tick and nothing between them has one.
export const wholeAxis = (span, extra) => ({ ...(span <= 12 ? { dtick: 1 } : {}), tickformat: ",d", ...extra });

// A logarithmic axis: over decades only they are named, or labels would lie on one another.
export function logAxis(values, extra) {
  const known = values.filter((value) => value > 0);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), 0);
  return { type: "log", ...(high / low >= 5 ? { dtick: 1 } : { nticks: 5 }), ...extra };
}
