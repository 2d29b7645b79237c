// How two versions differ, and what it costs to go from one to the other.

import { get } from "./api.js";
import { el, fields, labelled, link, panel, problem, table } from "./dom.js";
import { bytes, count, share, shareOf } from "./format.js";
import { stepTable } from "./islands.js";

function said(found) {
  if (found.identical_weights) return "The weights are the same, bit for bit.";
  const sure = found.exact ? "exactly" : "at most";
  if (found.compared === null) return "They have no common ancestor: nothing is known but that they differ.";
  if (found.uncompared.length) return `Nobody compared version ${found.uncompared[0]} with its parent, so nothing is known but that they differ.`;
  return `${sure} ${share(found.share_at_most)} of the elements differ: ${shareOf(found.at_most, found.elements)}.`;
}

function differences(found) {
  const only = (names, which) => names.length > 0 && el("p", {}, `Only in the ${which} version: ${names.slice(0, 20).join(", ")}${names.length > 20 ? " …" : ""}`);
  return [only(found.only_old, "old"), only(found.only_new, "new"), table(`${count(found.total)} tensors that may differ, most first`, [
    { name: "tensor", head: true, cell: (t) => link(`#/tensor?name=${encodeURIComponent(t.name)}`, t.name) },
    { name: found.difference.exact ? "changed" : "changed, at most", n: true, cell: (t) => share(t.share_at_most) },
    { name: "elements", n: true, cell: (t) => shareOf(t.at_most, t.elements) },
    { name: "in versions", n: true, cell: (t) => count(t.versions) },
  ], found.tensors, { class: "scroll tall" })];
}

function way(found) {
  if (!found.reachable) return el("p", {}, `There is no way: ${found.why}.`);
  if (!found.steps.length) return el("p", {}, "Nothing is to be downloaded.");
  return [el("p", {}, `${bytes(found.total_bytes)} in ${count(found.objects)} objects, ${found.steps.length} steps${found.steps.length > 200 ? ", the first 200 shown" : ""}.`), stepTable(found.steps)];
}

export async function show(main, route) {
  const newest = (await get("run")).newest?.version ?? 0;
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
        ["by the statistics of", found.compared === null ? "no versions" : `${count(found.compared.length)} versions`],
        ["files or side files differ", found.layout_changed ? "yes" : "no"],
      ]), !found.exact && el("p", { class: "note" }, "An element that changed twice is counted twice; one that changed back is counted too. For the exact number, on a host with room for both: skerry pull each version, then skerry diff the directories.")];
    }), part(tensors, async () => differences(await get("difference/tensors", { old: from, new: to, limit: 200 }))));
  }
  await Promise.all(work);
  return {};
}
