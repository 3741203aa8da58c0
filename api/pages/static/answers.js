// The parts of an answer that training and serving share: verdict, memory, advice, assumptions, launch files.

import { askForKey } from "./apikey.js";
import { ask } from "./asking.js";
import { legend, stackedBar } from "./bars.js";
import { downloadButton } from "./downloads.js";
import { copyButton, el, facts, section } from "./elements.js";
import { fieldOf, labelOf, setField, shownIn } from "./forms.js";
import { duration, gib, signed, whole, words } from "./quantities.js";
import { chunksOf, layersText } from "./ranks.js";

const VERDICTS = { fits: "Fits", tight: "Tight", no: "Does not fit" };

// Another key may help; a path that is not allowed stays so with any.
const KEY_WANTED = new Set(["unauthenticated", "scope-missing"]);

/** Return the verdict in a line: with its margin, or where a load was to be served, whether it is. */
export function verdictLine(answer) {
  if (answer.kind === "infer" && answer.fits && answer.plan.performance) {
    const { concurrency, tpot_seconds: token } = answer.plan.performance;
    return [el("strong", { class: answer.meets === false ? "no" : answer.verdict }, answer.meets === false ? "Misses what was asked" : "Serves"),
      ` ${whole(concurrency)} request${concurrency === 1 ? "" : "s"} at once, a token every ${duration(token)}`];
  }
  const spared = answer.plan.memory.margin_bytes;
  return [el("strong", { class: answer.verdict }, VERDICTS[answer.verdict] ?? answer.verdict),
    ` ${gib(Math.abs(spared))} ${spared < 0 ? "too much" : "to spare"} on each GPU`];
}

/** Return the verdict, the figures that matter most and the summary. */
export function verdictOf(answer, figures) {
  return [
    el("p", { class: `verdict ${answer.verdict}` }, verdictLine(answer)),
    facts(figures),
    el("p", {}, answer.summary),
  ];
}

/** Return a quantity with the ends of its error bar. */
export function within(value, low, high, format) {
  return el("span", {}, format(value), low === undefined ? null : el("small", {}, ` ${format(low)} to ${format(high)}`));
}

/** Return a problem as the page shows it; fields of `form`, where there is one, by what they are called there. */
export function problemOf(problem, form = null) {
  const details = (problem.errors ?? []).map(({ pointer, detail }) => ({ pointer, text: `${fieldText(form, pointer)}: ${detail}` }));
  const [only] = details;
  const isOfField = only && problem.message.startsWith(only.pointer || "The body");
  const message = !isOfField ? problem.message : details.length === 1 ? only.text : `${details.length} fields need another value.`;
  // A list of all that is known may follow, which is no headline.
  const [headline] = message.match(/^.*?[.;](?=\s)|.*/s);
  return [el("div", { class: "problem", role: "alert" }, el("strong", {}, headline), message.slice(headline.length),
    KEY_WANTED.has(problem.code) ? askForKey(problem.status) : null,
    details.length > 1 ? el("ul", {}, details.map(({ text }) => el("li", {}, text))) : null)];
}

/** Return what a pointer of the request is called in a form; the pointer itself where no field stands for it. */
function fieldText(form, pointer) {
  const field = form?.elements[fieldOf(pointer)];
  return field?.labels?.length ? labelOf(field) : pointer;
}

/** Return each pipeline stage's memory against the limit; `gpu` (of the catalogue) tells what is kept free of it. */
export function memoryPart({ memory, sharding, step }, gpu) {
  const capacity = Math.max(gpu?.memory_bytes ?? 0, memory.limit_bytes);
  const scale = Math.max(capacity, memory.peak_high_bytes ?? 0, ...memory.stages.map((stage) => stage.peak_bytes));
  const worst = Math.max(...memory.stages.map((stage) => stage.peak_bytes));
  const bars = memory.stages.map((stage) => stackedBar({
    title: `${memory.stages.length === 1 ? "Each GPU" : `Stage ${stage.stage}`}, ${layersText(chunksOf(sharding?.stages[stage.stage] ?? stage))}: ${gib(stage.peak_bytes)}${paceText(memory, step, stage.stage)}`,
    parts: stage.items,
    format: gib,
    scale,
    limit: memory.limit_bytes,
    reserved: capacity - memory.limit_bytes,
    low: stage.peak_bytes === worst ? memory.peak_low_bytes : undefined,
    high: stage.peak_bytes === worst ? memory.peak_high_bytes : undefined,
  }));
  return section("Memory of one GPU", ...bars, stagesLegend(memory),
    el("p", { class: "quiet" }, `The line is the limit, ${gib(memory.limit_bytes)}${capacity > memory.limit_bytes ? `; hatched is what is kept free, ${gib(capacity - memory.limit_bytes)}` : ""}`
      + `${memory.peak_high_bytes === undefined ? "" : "; the thin bar is how far the fullest GPU may be off"}.`));
}

/** Return what one micro-batch takes on a stage, where there are several; earlier versions did not say. */
function paceText(memory, step, number) {
  const own = memory.stages.length > 1 ? step?.stages?.[number] : undefined;
  return own === undefined ? "" : `, ${duration(own.micro_batch_seconds)} per micro-batch`;
}

/** Return the legend of all stages: with values where there is but one, and every part that any of them has. */
function stagesLegend({ items, stages }) {
  if (stages.length === 1) return legend(items, gib);
  return legend(Object.fromEntries(Object.keys(items).map((name) => [name, Math.max(...stages.map((stage) => stage.items[name]))])));
}

/** Return the advice with what each change gains, in the words of the form where there is one; `take` is called with a change that is to be tried. */
export function advicePart(advice, form, take) {
  if (!advice.length) return null;
  return section("Advice", el("p", { class: "quiet" }, "Each change was planned, and does what it says."), el("ul", { class: "advice" }, advice.map((entry) => el("li", {},
    el("div", { class: "row" }, take ? el("button", { type: "button", onclick: () => take(entry.change) }, "Try") : null,
      el("strong", {}, Object.entries(entry.change).map(([name, value]) => changeText(form, name, value)).join(", ")),
      verdictOfAdvice(entry)),
    el("p", {}, `Peak ${gib(entry.peak_bytes)}${gain(entry.peak_bytes_difference, gib)}`
      + `${entry.kv_tokens === undefined ? "" : `, a cache of ${whole(entry.kv_tokens)} tokens`}`
      + `${entry.step_seconds == null ? "" : `, step ${duration(entry.step_seconds)}${gain(entry.step_seconds_difference, duration)}`}`
      + `${entry.tpot_seconds == null ? "" : `, ${duration(entry.ttft_seconds)} to the first token, ${duration(entry.tpot_seconds)} per token`}. `, entry.reason)))));
}

// Serving plans of earlier versions say only whether they fit.
function verdictOfAdvice({ verdict, fits }) {
  const known = verdict ?? (fits ? "fits" : "no");
  return el("strong", { class: known }, VERDICTS[known] ?? words(known));
}

const gain = (difference, format) => (difference == null ? "" : ` (${signed(difference, format)})`);

/** Return a changed field as the form shows it, or as the request has it where the form has no such field. */
function changeText(form, name, value) {
  const field = form?.elements[name];
  if (!field || typeof value === "object") return `${name} = ${typeof value === "object" ? JSON.stringify(value) : value}`;
  return `${labelOf(field)}: ${shownIn(field, String(value))}`;
}

/** Put a change that advice names into the form; answers whether the form has a field for all of it. */
export function applyChange(form, change) {
  const fields = Object.entries(change).map(([name, value]) => [form.elements[name], value]);
  if (!fields.every(([field, value]) => field && typeof value !== "object")) return false;
  for (const [field, value] of fields) setField(field, String(value));
  if ("model" in change) form.elements["model.config"].value = "";
  return true;
}

/** Return the launch files, each to copy or to download, and those that cannot be made, with why. */
export function artifactsPart({ plan_id: planId, artifacts, missing_artifacts: missing = {} }) {
  const files = Object.entries(artifacts).map(([name, content], index) => {
    const text = typeof content === "string" ? content : JSON.stringify(content, null, 2);
    return el("details", { class: "file", open: index === 0 }, el("summary", {}, name), el("div", { class: "row" }, copyButton(text),
      downloadButton(planId, name)), el("pre", { tabindex: 0, "aria-label": name }, text));
  });
  const reasons = Object.entries(missing).map(([name, why]) => el("li", {}, el("strong", {}, name), `: ${why.join(" ")}`));
  if (!files.length && !reasons.length) return null;
  return section("Launch", files.length ? null : el("p", {}, "No program can be told this plan."), files,
    reasons.length ? el("div", { class: "missing" }, el("h3", {}, "Programs that have no options for this plan"), el("ul", {}, reasons)) : null);
}

/** Return what was assumed, what had to be left out, and which plan this is. */
export function assumptionsPart(answer) {
  const omitted = (answer.omitted ?? []).map(({ part, reason }) => el("li", {}, "Left out: ", el("strong", {}, part), `: ${reason}`));
  return section("Assumptions", el("ul", {}, answer.assumptions.map((line) => el("li", {}, line)), omitted),
    el("p", { class: "quiet" }, "Plan ", el("code", {}, answer.plan_id), ` · planner ${answer.planner_version} · catalogue ${answer.catalogue_revision} · `,
      el("a", { href: `/ui/jobs?plan_id=${encodeURIComponent(answer.plan_id)}` }, "validate it"), " · ",
      el("a", { href: `/ui/compare?a=${encodeURIComponent(answer.plan_id)}` }, "compare it")));
}

/** Return the stored plan that the address names, or null. */
export async function planOfAddress() {
  const id = new URLSearchParams(location.search).get("plan");
  return id === null ? null : ask(`/plans/${encodeURIComponent(id)}`);
}
