// Layouts beside the chosen one: step time against memory, and the front that nothing beats in both.

import { chart } from "./charts.js";
import { el, section, table } from "./elements.js";
import { setField } from "./forms.js";
import { GIB, counted, duration, durationAxis, gib, words } from "./quantities.js";
import { reasonsOf, whyNot } from "./whynot.js";

// Where each field of a layout stands in the form.
const FIELDS = {
  framework: "framework", framework_version: "framework_version", data_parallel: "layout.data_parallel", tensor_parallel: "layout.tensor_parallel",
  pipeline_parallel: "layout.pipeline_parallel", virtual_pipeline: "layout.virtual_pipeline", pipeline_layout: "layout.pipeline_layout", context_parallel: "layout.context_parallel",
  expert_parallel: "layout.expert_parallel", sequence_parallel: "layout.sequence_parallel", zero_stage: "layout.zero_stage",
  shard_group: "layout.shard_group", offload: "layout.offload", micro_batch_size: "training.micro_batch_size",
  recompute: "training.recompute", activation_offload: "training.activation_offload", fused_cross_entropy: "training.fused_cross_entropy",
};
// The colour of a point's verdict, as the style sheet has it.
const VERDICT_COLOURS = [["fits", 0, "fits"], ["tight", 1, "tight: only the estimate fits, not its high end"], ["no", 4, "does not fit"]];
// The degrees that are told of every layout; the rest only where they differ from doing nothing.
const TOLD = [["data_parallel", "data"], ["tensor_parallel", "tensor"], ["pipeline_parallel", "pipeline"], ["context_parallel", "context"], ["expert_parallel", "expert"]];
const COMPARED = ["data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "pipeline_layout", "context_parallel", "context_all_to_all",
  "expert_parallel", "sequence_parallel", "zero_stage", "shard_group", "offload", "micro_batch_size", "fused_cross_entropy", "framework"];

// What tells layouts apart that would else read alike, in this order.
const FURTHER = [["fused_cross_entropy", (fused) => `${fused ? "" : "no "}fused loss`], ["shard_group", (ranks) => `shard group ${ranks}`],
  ["context_all_to_all", (ranks) => `heads over ${ranks}`], ["sequence_parallel", (split) => `${split ? "" : "no "}sequence parallel`], ["offload_target", (target) => `to ${target}`], ["pipeline_schedule", (name) => name],
  ["pipeline_layout", (way) => (way === null ? "one stage" : `stages ${way}`)]];

/** Return a layout in a line. */
export function layoutText(layout) {
  const chunks = layout.virtual_pipeline > 1 ? ` in ${layout.virtual_pipeline} chunks` : "";
  const degrees = TOLD.filter(([field]) => layout[field] > 1).map(([field, name]) => `${name} ${layout[field]}${name === "pipeline" ? chunks : ""}`);
  const offload = layout.offload === "none" ? [] : [`offload ${layout.offload}`];
  const overlapped = layout.overlap?.expert_parallel ? ["exchange with experts overlapped"] : [];
  const whole = layout.offload_layers ? ` of ${layout.offload_layers} layers` : "";
  const parts = layout.offload_modules?.length ? ` of ${layout.offload_modules.join(", ")}` : whole;
  const activations = layout.activation_offload ? [`activations${parts} offloaded`] : [];
  const modules = layout.recompute_modules?.length ? ` of ${layout.recompute_modules.join(", ")}` : "";
  const covered = layout.recompute_every ? ` of one layer in ${layout.recompute_every}` : modules;
  const layers = layout.recompute_layers === null ? covered : ` of ${layout.recompute_layers} layers`;
  return [layout.framework, counted(layout.gpus, "GPU"), ...degrees, `ZeRO ${layout.zero_stage}`, `micro-batch ${layout.micro_batch_size}`,
    `recompute ${layout.recompute}${layers}`, ...overlapped, ...offload, ...activations].join(", ");
}

/** Return each layout in a line that no other one shares. */
export function layoutTexts(layouts) {
  return FURTHER.reduce((texts, [field, told]) => {
    const alike = new Map();
    layouts.forEach((layout, at) => alike.set(texts[at], (alike.get(texts[at]) ?? new Set()).add(layout[field])));
    return texts.map((text, at) => (alike.get(text).size > 1 ? `${text}, ${told(layouts[at][field])}` : text));
  }, layouts.map(layoutText));
}

/** Return those of [{x, y}] that no other one beats or equals in both, by growing x. */
export function paretoFront(points) {
  let best = Infinity;
  return [...points].sort((a, b) => a.x - b.x || a.y - b.y).filter((point) => {
    if (point.y >= best) return false;
    best = point.y;
    return true;
  });
}

/** Return the scatter and the table of alternatives; nothing where none fits. Selecting one fixes its layout in the form. */
export function alternativesPart(answer, context) {
  if (!answer.fits && !answer.alternatives.length) return null;
  const chosen = { layout: answer.plan.layout, peak_bytes: answer.plan.memory.peak_bytes, step_seconds: answer.plan.step.seconds, verdict: answer.verdict };
  const [chosenText, ...texts] = layoutTexts([chosen, ...answer.alternatives].map((entry) => entry.layout));
  const points = [chosen, ...answer.alternatives].map((entry, at) => ({
    x: entry.peak_bytes,
    y: entry.step_seconds,
    kind: entry === chosen ? "chosen" : entry.verdict,
    label: `${entry === chosen ? `Chosen: ${chosenText}` : texts[at - 1]}: ${gib(entry.peak_bytes)}, ${duration(entry.step_seconds)}`,
    act: context.form && entry !== chosen ? () => select(entry.layout, context) : null,
  }));
  const front = paretoFront(points);
  const drawing = chart({
    title: "Step time against memory; the line joins what nothing beats in both",
    x: { label: "Peak memory per GPU", format: gib, unit: GIB },
    y: { label: "Step time", ...durationAxis(Math.max(...points.map((point) => point.y))) },
    points,
    lines: [{ points: front.map((point) => [point.x, point.y]), kind: "front" }],
    marks: [{ x: answer.plan.memory.limit_bytes, label: "limit" }],
  });
  const rows = answer.alternatives.map((entry, at) => [texts[at], gib(entry.peak_bytes), stepText(entry),
    words(entry.verdict), actions(entry.layout, context)]);
  return section("Alternatives", drawing, verdictLegend(points), answer.alternatives.length
    ? el("details", {}, el("summary", {}, `All ${answer.alternatives.length} in a table`), table("Alternatives", ["Layout", "Peak", "Step", "Verdict", ""], rows))
    : el("p", { class: "quiet" }, "No other layout that fits is better in either."));
}

/** Return an alternative's step, marked where the evidence does not tell it from the plan's. */
const stepText = (entry) => duration(entry.step_seconds) + (entry.equal_within_band ? ", equal within the band" : "");

/** Return the words for the colours of the points; nothing where all fit. */
function verdictLegend(points) {
  const there = VERDICT_COLOURS.filter(([kind]) => points.some((point) => point.kind === kind));
  if (there.every(([kind]) => kind === "fits")) return null;
  return el("ul", { class: "legend" }, there.map(([kind, colour, meaning]) =>
    el("li", {}, el("span", { class: `swatch colour-${colour}`, "aria-hidden": "true" }), meaning)));
}

function actions(layout, context) {
  if (!context.form) return "";
  const told = el("div", { class: "told", role: "status" });
  return el("div", {}, el("button", { type: "button", onclick: () => select(layout, context) }, "Use"), " ",
    el("button", { type: "button", onclick: () => tellWhyNot(layout, context, told) }, "Why not?"), told);
}

/** Return whether the exchange with experts hides behind computation; null where there is none, or nothing was said of it. */
const exchangeHidden = (layout) => (layout.expert_parallel > 1 ? layout.overlap?.expert_parallel ?? null : null);

/** Return the recomputation as a request says it: a mode, layers of each stage, or modules. */
function recomputed(layout) {
  if (layout.recompute_modules?.length) return { modules: layout.recompute_modules };
  if (layout.recompute_every) return { every: layout.recompute_every };
  return layout.recompute_layers === null ? layout.recompute : { full_layers: layout.recompute_layers };
}

/** Return what of activations is offloaded as a request says it: layers, modules, all or nothing. */
function offloaded(layout) {
  if (layout.offload_layers) return { layers: layout.offload_layers };
  return layout.offload_modules?.length ? { modules: layout.offload_modules } : layout.activation_offload;
}

function select(layout, context) {
  for (const [field, name] of Object.entries(FIELDS)) {
    // Some layers or parts of them that are recomputed have no field of their own: the search finds them again.
    const value = field === "recompute" && recomputed(layout) !== layout.recompute ? "" : layout[field];
    setField(context.form.elements[name], String(value ?? ""));
  }
  setField(context.form.elements["layout.overlap.expert_parallel"], String(exchangeHidden(layout) ?? ""));
  setField(context.form.elements["hardware.gpus"], String(layout.gpus));
  context.replan();
}

async function tellWhyNot(layout, context, told) {
  const named = Object.fromEntries(COMPARED.map((field) => [field, layout[field]]));
  if (exchangeHidden(layout) !== null) named.overlap = { expert_parallel: exchangeHidden(layout) };
  named.recompute = recomputed(layout);
  named.activation_offload = offloaded(layout);
  told.textContent = "…";
  told.replaceChildren(...reasonsOf(await whyNot(context.request, named)));
}
