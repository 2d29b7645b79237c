// Figures as people read them: sizes and shares keep their exact values in titles and tables.

const whole = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

// "1 version", "2 versions".
export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let unit = 0;
  let left = n;
  while (left >= 1000 && unit < UNITS.length - 1) { left /= 1000; unit += 1; }
  return unit === 0 ? `${n} B` : `${left.toPrecision(3)} ${UNITS[unit]}`;
}

export function share(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 %";
  const percent = 100 * value;
  return percent >= 0.01 ? `${percent.toPrecision(3)} %` : `${percent.toExponential(1)} %`;
}

export const shareOf = (changed, elements) =>
  changed === null ? `not compared, of ${count(elements)}` : `${count(changed)} of ${count(elements)}`;

const three = new Intl.NumberFormat("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

export const decimal = (value) => (value === null || value === undefined ? "–" : three.format(value));

export function moment(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? `${ms} ms` : date.toISOString().replace("T", " ").slice(0, 19) + "Z";
}

export function age(seconds) {
  if (seconds < 0) return `${(-seconds).toFixed(0)} s ahead`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

export const short = (digest) => (digest ? `${digest.slice(0, 12)}…` : "–");

// Plotly takes markup in what it draws: from data, which may be a store's, it gets none.
export function plain(data) {
  if (Array.isArray(data)) return data.map(plain);
  return typeof data === "string" ? data.replaceAll("&", "&amp;").replaceAll("<", "&lt;") : data;
}
