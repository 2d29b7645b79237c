// How two versions differ, and what it costs to go from one to the other.

import { get, getSlowly } from "./api.js";
import { el, fields, labelled, link, panel, problem, table } from "./dom.js";
import { bytes, count, many, share, shareOf } from "./format.js";
import { stepTable } from "./islands.js";

function said(found) {
  if (found.identical_weights) return "The weights are the same, bit for bit.";
  const sure = found.exact ? "Exactly" : "At most";
  if (found.compared === null) return "They have no common ancestor: nothing is known but that they differ.";
  if (found.uncompared.length) return `Nobody compared version ${found.uncompared[0]} with its parent, so nothing is known but that they differ.`;
  return `${sure} ${share(found.share_at_most)} of the elements differ: ${shareOf(found.at_most, found.elements)}.`;
}

function differences(found) {
  const only = (names, which) => names.length > 0 && el("p", {}, `Only in the ${which} version: ${names.slice(0, 20).join(", ")}${names.length > 20 ? " …" : ""}`);
  return [only(found.only_old, "old"), only(found.only_new, "new"), table(`${many(found.total, "tensor")} that may differ, most first`, [
    { name: "tensor", head: true, cell: (t) => link(`#/tensor?name=${encodeURIComponent(t.name)}`, t.name) },
    { name: found.difference.exact ? "changed" : "changed, at most", n: true, cell: (t) => share(t.share_at_most) },
    { name: "elements", n: true, cell: (t) => shareOf(t.at_most, t.elements) },
    { name: "in versions", n: true, cell: (t) => count(t.versions) },
  ], found.tensors, { class: "scroll tall" })];
}

function way(found) {
  if (!found.reachable) return el("p", {}, `There is no way: ${found.why}.`);
  if (!found.steps.length) return el("p", {}, "Nothing is to be downloaded.");
  return [el("p", {}, `${bytes(found.total_bytes)} in ${many(found.objects, "object")}, ${many(found.steps.length, "step")}${found.steps.length > 200 ? ", the first 200 shown" : ""}.`), stepTable(found.steps)];
}

const quoted = (text) => (/^[A-Za-z0-9_@%+=:,.\/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// This service decodes no patch: whoever has weights, or room for them, does.
const exactly = (address, from, to) => el("div", { class: "note" },
  el("p", {}, "An element that changed twice is counted twice; one that changed back is counted too. The exact number takes the weights: an agent of this run works it out, or, without --agent, the host that asks."),
  el("code", { class: "command", tabindex: "0" }, `skerry diff ${quoted(address)} ${from} ${to} --exact --agent http://HOST:PORT --control-token-file FILE`));

export async function show(main, route) {
  const run = await get("run");
  const newest = run.newest?.version ?? 0;
  let open = true;
  const to = route.number("new") ?? newest;
  const from = route.number("old");
  const input = (value) => el("input", { type: "number", min: 0, value: value ?? "" });
  const [a, b] = [input(from), input(to)];
  const swap = el("button", { type: "button", onclick: () => { [a.value, b.value] = [b.value, a.value]; } }, "Swap");
  const form = el("form", {
    class: "controls", onsubmit: (event) => { event.preventDefault(); location.hash = `#/compare?${new URLSearchParams({ old: a.value, new: b.value })}`; },
  }, labelled("From version (empty: nothing)", a), labelled("to version", b), swap, el("button", {}, "Compare"));
  const total = el("div");
  const tensors = el("div");
  const cost = el("div");
  main.replaceChildren(el("h1", {}, "Compare"), panel(null, form), panel("Catching up", cost), panel("Difference", total, tensors));
  const part = async (box, load) => {
    try { box.replaceChildren(...[await load()].flat().filter(Boolean)); } catch (error) { box.replaceChildren(problem(error)); }
  };
  const work = [part(cost, async () => way(await get("catch-up", { have: from, want: to })))];
  if (from === null) total.replaceChildren(el("p", { class: "note" }, "Give two versions to see how they differ."));
  else {
    work.push(part(total, async () => {
      const found = await get("difference", { old: from, new: to });
      return [el("p", {}, said(found)), fields([
        ["by the statistics of", found.compared === null ? "no versions" : many(found.compared.length, "version")],
        ["files or side files differ", found.layout_changed ? "yes" : "no"],
      ]), !found.exact && exactly(run.address, from, to)];
    }), part(tensors, async () => differences(await getSlowly("difference/tensors", { old: from, new: to, limit: 200 }, () => open))));
  }
  await Promise.all(work);
  return { close: () => { open = false; } };
}
