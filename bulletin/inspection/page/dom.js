// Builds the page.  Whatever comes from a store is text: nothing here, or elsewhere in the page,
// reads markup from a string.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// columns: [{name, n: right-aligned figures, cell: (row) => node or text, code}]
export function table(caption, columns, rows, props) {
  const head = el("tr", {}, columns.map((c) => el("th", { scope: "col", class: c.n && "n" }, c.name)));
  const body = rows.map((row) => el("tr", {}, columns.map((c) => {
    const kind = c.n ? "n" : c.code && "code";
    return c.head ? el("th", { scope: "row", class: kind }, c.cell(row)) : el("td", { class: kind }, c.cell(row));
  })));
  const made = el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body));
  // A box that scrolls must be reachable by the keyboard.
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, ...props }, made);
}

export const chip = (text, kind) => el("span", { class: `chip ${kind ?? ""}` }, text);
export const link = (href, ...children) => el("a", { href }, children);

export function fields(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export const panel = (title, ...children) => el("section", { class: "panel" }, title && el("h2", {}, title), children);

export function labelled(text, control, props) {
  return el("label", props, text, control);
}

export function problem(error) {
  const acts = error.acts ? `Who acts: ${error.acts}` : null;
  return el("div", { class: "panel problem", role: "alert" }, el("h2", {}, error.kind ?? "Error"),
    el("p", {}, error.message), acts && el("p", { class: "note" }, acts));
}
