// Two stored plans beside each other: what was asked, and what came of it, field by field.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { el, section } from "./elements.js";
import { remember, restore } from "./forms.js";
import { duration, gib, percent, quantityWords, short, whole } from "./quantities.js";

// From twice as much on a multiple says more than a percentage.
const LEAST_MULTIPLE = 2;

const form = document.querySelector("#pair");
const note = document.querySelector("#note");
const place = document.querySelector("#list");

/** Return [[name, figure]] of all that a value holds; what is in a list is one figure, or left away. */
function figures(value, { lists }, path = "") {
  if (value === null || typeof value !== "object") return [[path, value]];
  if (Array.isArray(value)) return lists && value.length ? [[path, JSON.stringify(value)]] : [];
  return Object.entries(value).flatMap(([name, inner]) => figures(inner, { lists }, path ? `${path}.${name}` : name));
}

function shown(name, value) {
  if (typeof value !== "number") return value === null ? "–" : String(value);
  if (name.endsWith("_bytes") || name.includes(".items.")) return gib(value);
  if (name.endsWith("seconds") || name.includes(".parts.")) return duration(value);
  if (name.endsWith("utilization") || name.endsWith("goodput")) return percent(value);
  return Number.isInteger(value) && value < 1e6 ? whole(value) : short(value);
}

function difference(name, first, second) {
  // Of degrees and settings a part says nothing, nor does it across zero.
  if (/^(layout|settings)/.test(name) || typeof first !== "number" || typeof second !== "number" || first === second || first * second < 0) return "";
  if (first === 0) return "new";
  const ratio = second / first;
  return ratio < LEAST_MULTIPLE ? `${ratio < 1 ? "−" : "+"}${percent(Math.abs(ratio - 1))}` : `× ${short(ratio)}`;
}

/** Return a table of both sides' figures under a title, and how many of them differ. */
function sideBySide(title, caption, first, second, changeOf) {
  const [left, right] = [new Map(first), new Map(second)];
  let differing = 0;
  const rows = [...new Set([...left.keys(), ...right.keys()])].map((name) => {
    // What one plan leaves away and the other has as nothing is the same.
    const pair = [left.get(name) ?? null, right.get(name) ?? null];
    const differs = pair[0] !== pair[1];
    differing += differs;
    return el("tr", { class: differs ? "differs" : null }, el("th", { scope: "row" }, differs ? "≠ " : "", quantityWords(name).replaceAll(".", ": ")),
      pair.map((value) => el("td", {}, shown(name, value))), changeOf ? el("td", {}, changeOf(name, ...pair)) : null);
  });
  const headings = ["Figure", "First", "Second", ...(changeOf ? ["Change"] : [])];
  return section(title, el("p", { class: "quiet" }, differing ? `${whole(differing)} of ${whole(rows.length)} figures differ, marked ≠.${caption}` : "No difference."),
    el("div", { class: `scroll compared ${changeOf ? "changes" : ""}`, tabindex: 0, role: "region", "aria-label": title }, el("table", { class: differing ? null : "alike" },
      el("thead", {}, el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)))), el("tbody", {}, rows))));
}

// Beside the request itself a plan's id rests on these.
const questionOf = ({ planner_version, catalogue_revision, calibration_revision }, { kind, request }) =>
  figures({ kind, ...request, planner_version, catalogue_revision, calibration_revision }, { lists: true });
const answerOf = ({ verdict, summary, plan }) => figures({ verdict, summary, ...plan }, { lists: false });

function draw(plans, questions) {
  const isOnly = place.querySelector("input")?.checked ?? true;
  const both = el("div", { class: isOnly ? "only-differing" : null },
    sideBySide("What was asked", " What is – was left to the planner.", ...plans.map((plan, index) => questionOf(plan, questions[index]))),
    sideBySide("What came of it", "", ...plans.map(answerOf), difference));
  place.replaceChildren(el("label", { class: "field check" }, el("input", { type: "checkbox", checked: isOnly,
    onchange: (event) => both.classList.toggle("only-differing", event.target.checked) }), "Only what differs"), both);
}

async function compare() {
  const paths = [form.elements.a.value, form.elements.b.value].map((id) => id && `/plans/${encodeURIComponent(id)}`);
  note.replaceChildren(paths.every(Boolean) ? "" : "Choose two plans.");
  if (!paths.every(Boolean)) { place.replaceChildren(); return; }
  try {
    draw(...await Promise.all(["", "/question"].map((of) => Promise.all(paths.map((path) => ask(path + of))))));
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
