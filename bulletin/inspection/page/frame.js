// What both pages have around their content: the theme, and the form that asks for a token.

import { login } from "./api.js";
import { el, labelled, panel } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
  const name = localStorage.getItem("skerry-theme");
  return THEMES.includes(name) ? name : "auto";
}

// Sets the theme, now and when it changes; `then` draws anew what has colours of its own.
export function themed(then) {
  const button = document.getElementById("theme");
  const set = (name) => {
    const hue = name === "auto" ? (dark.matches ? "dark" : "light") : name;
    document.documentElement.dataset.theme = hue;
    button.textContent = `Theme: ${name}`;
    then();
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    localStorage.setItem("skerry-theme", next);
    set(next);
  });
  dark.addEventListener("change", () => set(chosen()));
  set(chosen());
}

export function tokenForm(opened) {
  const input = el("input", { type: "password", autocomplete: "current-password", required: true, maxlength: 512 });
  const wrong = el("p", { role: "alert" });
  const form = el("form", { class: "controls", onsubmit: async (event) => {
    event.preventDefault();
    if (await login(input.value)) opened(); else wrong.textContent = "That is not the token.";
  } }, labelled("Token", input), el("button", {}, "Open"));
  return [el("h1", {}, "Token"), panel(null, el("p", {}, "This service asks for the token that it was started with."), form, wrong)];
}
