// The training page.

import { alternativesPart, layoutText } from "./alternatives.js";
import { advicePart, applyChange, artifactsPart, assumptionsPart, memoryPart, verdictOf, within } from "./answers.js";
import { legend, stackedBar } from "./bars.js";
import { el, facts, section, table } from "./elements.js";
import { meshPart } from "./mesh.js";
import { memoryOverTime } from "./moments.js";
import { pipelinePart } from "./pipeline.js";
import { count, counted, duration, durationAxis, gib, percent, whole, words } from "./quantities.js";
import { runQuestion } from "./questions.js";
import { whyNotForm } from "./whynot.js";

// Kept from answer to answer, with what was named.
const whyNot = whyNotForm(document.querySelector("#question"));

function parts(answer, context) {
  const { plan } = answer;
  const gpu = context.gpus.get(context.request?.hardware?.gpu);
  const perNode = context.request?.hardware?.gpus_per_node ?? gpu?.gpus_per_node ?? Math.min(plan.layout.gpus, 8);
  return [
    section("Layout", el("p", {}, layoutText(plan.layout)), el("p", { class: "quiet" },
      `${whole(answer.search.layouts_considered)} layouts evaluated, ${whole(answer.search.layouts_fitting)} fit, ${whole(answer.search.layouts_excluded)} excluded by a rule, in ${duration(answer.search.seconds)}.`)),
    advicePart(answer.advice, context.form, context.form ? (change) => tryChange(change, context) : null),
    memoryPart(plan, gpu),
    memoryOverTime(plan, answer.plan_id),
    stepPart(plan.step),
    pipelinePart(plan),
    alternativesPart(answer, context),
    whyNot.of(context),
    runPart(plan.run),
    meshPart(plan, perNode),
    communicationPart(plan.communication),
    artifactsPart(answer),
    assumptionsPart(answer),
  ].filter(Boolean);
}

/** Return what to see at first: the peak, the step and what they come to. */
function figures({ layout, memory, step, run }) {
  const { format: time } = durationAxis(step.high_seconds);
  return [
    ["Peak per GPU", within(memory.peak_bytes, memory.peak_low_bytes, memory.peak_high_bytes, gib)],
    ["Limit", gib(memory.limit_bytes)],
    ["Step", within(step.seconds, step.low_seconds, step.high_seconds, time)],
    ["Tokens a second", whole(step.tokens_per_second)],
    ["GPUs", whole(layout.gpus)],
    ...(run?.steps ? [["Run", duration(run.expected_seconds ?? run.seconds)]] : []),
    ...(run?.cost_usd == null ? [] : [["Cost", `US$ ${whole(run.cost_usd)}`]]),
  ];
}

function tryChange(change, context) {
  if (applyChange(context.form, change)) context.replan();
  else document.querySelector("#form-note").textContent = "The form has no field for this; send it to the API.";
}

/** What is said of a pair of stack and GPU that nobody timed. */
const UNTIMED = {
  none_on_gpu: " No timed run on this GPU was fitted.",
  other_stacks_on_gpu: " No timed run of this framework on this GPU was fitted.",
};

function stepPart(step) {
  const { format: time } = durationAxis(step.high_seconds);
  return section("Step time",
    stackedBar({ title: `One step: ${time(step.seconds)}, between ${time(step.low_seconds)} and ${time(step.high_seconds)}`,
      parts: step.parts, format: duration, scale: step.high_seconds, low: step.low_seconds, high: step.high_seconds }),
    legend(step.parts, duration),
    el("p", {}, `${whole(step.tokens_per_second)} tokens/s, ${Math.round(step.tflops_per_gpu)} TFLOP/s per GPU, `
      + `model FLOPs utilization ${percent(step.model_flops_utilization)}.${UNTIMED[step.timed_runs] ?? ""}`));
}

function runPart(run) {
  if (!run?.steps) return null;
  const known = [
    ["Steps", whole(run.steps)], ["Time", duration(run.expected_seconds ?? run.seconds)], ["GPU hours", whole(run.gpu_hours)],
    ["Cost", run.cost_usd == null ? el("small", {}, "say US$ per GPU hour") : `US$ ${whole(run.cost_usd)}`], ["Work", `${count(run.model_flops)} FLOP`],
    ["Failures a day", failuresText(run)], ["Checkpoint", `${gib(run.checkpoint_bytes)} every ${duration(run.checkpoint_interval_seconds)}`],
    ["Goodput", percent(run.goodput)],
  ];
  return section("Run", facts(known));
}

/** Return how often a run fails, and between which numbers that lies; plans of earlier versions do not bound it. */
function failuresText(run) {
  const [told, low, high] = [run.failures_per_day, run.failures_per_day_low, run.failures_per_day_high]
    .map((failures) => failures?.toPrecision(2));
  return low === undefined ? told : `${told} (${low} to ${high})`;
}

function communicationPart(calls) {
  if (!calls.length) return null;
  return section("Communication", el("details", {}, el("summary", {}, `${counted(calls.length, "kind")} of calls in a step`),
    table("Communication of one step", ["Group", "Operation", "Bytes a layer", "Calls", "Time"],
      calls.map((call) => [call.group, words(call.operation), gib(call.bytes_per_layer), whole(call.calls_per_step), duration(call.seconds)]))));
}

runQuestion({ path: "/plan/train", verdict: (answer) => verdictOf(answer, figures(answer.plan)), parts });
