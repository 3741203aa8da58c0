// Two stored plans beside each other, field by field.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { el } from "./elements.js";
import { remember, restore } from "./forms.js";
import { duration, gib, percent, quantityWords, short, whole } from "./quantities.js";

const form = document.querySelector("#pair");
const note = document.querySelector("#note");
const place = document.querySelector("#list");

// Single figures only: the lists of a plan are drawn on its own page.
function figures(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, value]];
  if (Array.isArray(value)) return [];
  return Object.entries(value).flatMap(([name, inner]) => figures(inner, path ? `${path}.${name}` : name));
}

function shown(name, value) {
  if (typeof value !== "number") return value === null ? "–" : String(value);
  if (name.endsWith("_bytes") || name.includes(".items.")) return gib(value);
  if (name.endsWith("seconds") || name.includes(".parts.")) return duration(value);
  if (name.endsWith("utilization") || name.endsWith("goodput")) return percent(value);
  return Number.isInteger(value) ? whole(value) : short(value);
}

function difference(name, first, second) {
  // Of degrees and settings a part says nothing.
  if (/^(layout|settings)/.test(name) || typeof first !== "number" || typeof second !== "number" || first === second) return "";
  return first ? `${second < first ? "−" : "+"}${percent(Math.abs(second / first - 1))}` : "new";
}

function draw(first, second) {
  const left = new Map(figures({ summary: first.summary, verdict: first.verdict, ...first.plan }));
  const right = new Map(figures({ summary: second.summary, verdict: second.verdict, ...second.plan }));
  const names = [...new Set([...left.keys(), ...right.keys()])];
  const rows = names.map((name) => {
    // What one plan leaves away and the other has as nothing is the same.
    const pair = [left.get(name) ?? null, right.get(name) ?? null];
    const differs = pair[0] !== pair[1];
    return el("tr", { class: differs ? "differs" : null }, el("th", { scope: "row" }, differs ? "≠ " : "", quantityWords(name).replaceAll(".", ": ")),
      pair.map((value) => el("td", {}, shown(name, value))), el("td", {}, difference(name, ...pair)));
  });
  const isOnly = place.lastElementChild?.classList.contains("only-differing") ?? true;
  const only = el("label", { class: "field check" }, el("input", { type: "checkbox", checked: isOnly,
    onchange: (event) => place.lastElementChild.classList.toggle("only-differing", event.target.checked) }), "Only what differs");
  place.replaceChildren(only, el("div", { class: isOnly ? "scroll compared only-differing" : "scroll compared", tabindex: 0, role: "region", "aria-label": "Comparison" }, el("table", {},
    el("caption", {}, "Rows with ≠ differ"),
    el("thead", {}, el("tr", {}, ["Figure", "First", "Second", "Change"].map((heading) => el("th", { scope: "col" }, heading)))), el("tbody", {}, rows))));
}

async function compare() {
  const ids = [form.elements.a.value, form.elements.b.value];
  note.replaceChildren(ids.every(Boolean) ? "" : "Choose two plans.");
  if (!ids.every(Boolean)) { place.replaceChildren(); return; }
  try {
    draw(...await Promise.all(ids.map((id) => ask(`/plans/${encodeURIComponent(id)}`))));
  } catch (problem) {
    note.replaceChildren(...problemOf(problem));
  }
}

try {
  const { items } = await ask("/plans?limit=100");
  for (const field of [form.elements.a, form.elements.b]) {
    field.append(...items.map((plan) => el("option", { value: plan.plan_id }, `${plan.plan_id.slice(0, 8)}: ${plan.kind} ${plan.model} on ${plan.gpus} × ${plan.gpu}, ${plan.framework}`)));
  }
  restore(form);
  form.addEventListener("input", () => { remember(form); compare(); });
  await compare();
} catch (problem) {
  note.replaceChildren(...problemOf(problem));
}
