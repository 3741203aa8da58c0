// "Why not this layout?": any layout, named in part or whole, set by the service beside the chosen one.

import { ask } from "./asking.js";
import { el, section } from "./elements.js";
import { labelOf, requestOf } from "./forms.js";
import { duration, gib, words } from "./quantities.js";

const OUTCOMES = { chosen: "This is the layout that was chosen" };
const DEGREES = ["data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"];

/**
 * Return a part of the page that asks of any layout, offering what the question's form does. Its `of(context)` returns it for
 * the question at hand; nothing for a stored plan, whose question is not known here.
 */
export function whyNotForm(question) {
  let request = null;
  const told = el("div", { class: "told", role: "status" });
  const frameworks = [...question.elements.framework.options].map(({ value }) => value).filter((name) => name !== "any");
  const modes = [...question.elements["training.recompute"].options].map(({ value }) => value).filter(Boolean);
  const form = el("form", { class: "filters", "aria-label": "Why not this layout?", onsubmit: (event) => { event.preventDefault(); tell(); } },
    choice("framework", "Framework", frameworks), DEGREES.map((name) => number(name, labelOf(question.elements[`layout.${name}`]), 1)),
    number("zero_stage", "ZeRO stage", 0, 3), number("micro_batch_size", "Micro-batch size", 1), choice("recompute", "Recompute", modes),
    el("div", { class: "row" }, el("button", {}, "Why not?")));

  async function tell() {
    const named = requestOf(form);
    if (!Object.keys(named).length) { told.textContent = "Name at least one part of the layout."; return; }
    told.textContent = "…";
    told.replaceChildren(...reasonsOf(await whyNot(request, named)));
  }

  const part = section("Why not this layout?", el("p", { class: "quiet" },
    "Name the parts that you have in mind; the best layout that has them is set beside the chosen one."), form, told);
  return { of: (context) => {
    if (!context.form) return null;
    told.replaceChildren();
    request = context.request;
    return part;
  } };
}

const number = (name, label, least, most) => el("label", { class: "field" }, label,
  el("input", { type: "number", inputmode: "numeric", name, min: least, max: most, placeholder: "any" }));
const choice = (name, label, values) => el("label", { class: "field" }, label,
  el("select", { name }, el("option", { value: "" }, "any"), values.map((value) => el("option", {}, value))));

/** Return the service's comparison of a layout with the plan of a request, or the problem in its place. */
export function whyNot(request, layout) {
  return ask("/plan/train", { method: "POST", body: { ...request, compare: [layout] } })
    .then(({ comparisons: [comparison] }) => comparison, (problem) => ({ problem }));
}

/** Return what came of a layout, and each reason. */
export function reasonsOf({ problem, outcome, reasons, peak_bytes: peak, step_seconds: step }) {
  if (problem) return [el("p", { class: "problem" }, problem.message)];
  const figures = peak == null ? "" : `: ${gib(peak)} at its peak${step == null ? "" : `, ${duration(step)} per step`}`;
  return [el("p", {}, el("strong", {}, OUTCOMES[outcome] ?? words(outcome)), `${figures}.`), el("ul", {}, reasons.map(({ detail }) => el("li", {}, detail)))];
}
