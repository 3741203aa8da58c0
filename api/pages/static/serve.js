// The serving page.

import { advicePart, applyChange, artifactsPart, assumptionsPart, memoryPart, verdictOf, within } from "./answers.js";
import { legend, stackedBar } from "./bars.js";
import { contextsPart } from "./contexts.js";
import { el, section, table } from "./elements.js";
import { engineLog } from "./enginelog.js";
import { setField } from "./forms.js";
import { performancePart } from "./latency.js";
import { alternativeText, layoutText, settingText } from "./layouts.js";
import { duration, gib, whole, words } from "./quantities.js";
import { runQuestion } from "./questions.js";

// Kept from answer to answer, with what was pasted.
const log = engineLog();

const verdict = (answer) => [...verdictOf(answer, figures(answer.plan)), el("p", {}, promises(answer).join(" "))];

function parts(answer, context) {
  const { plan } = answer;
  log.ofPlan(answer.plan_id);
  return [
    advicePart(answer.advice, context.form, context.form ? (change) => tryChange(change, context) : null),
    layoutPart(plan),
    memoryPart(plan, context.gpus.get(context.request?.hardware?.gpu)),
    cachePart(plan),
    contextsPart(plan, context.request?.serving?.concurrency),
    performancePart(plan, context.request?.serving?.slo),
    alternativesPart(answer.alternatives, context),
    artifactsPart(answer),
    log.part,
    assumptionsPart(answer),
  ].filter(Boolean);
}

/** Return what to see at first: what the cache holds, how fast it is and what it costs. */
function figures({ kv, layout, performance, cost_usd_per_million_output_tokens: cost }) {
  const caches = layout.data_parallel * layout.attention_data_parallel;
  return [
    ["Requests of the longest context", (kv.max_concurrency * caches).toFixed(1)],
    ["Cache, tokens", whole(kv.tokens * caches)],
    ...(performance ? [
      ["First token", within(performance.ttft_seconds, performance.ttft_low_seconds, performance.ttft_high_seconds, duration)],
      ["Each token", within(performance.tpot_seconds, performance.tpot_low_seconds, performance.tpot_high_seconds, duration)],
      ["Output tokens a second", whole(performance.output_tokens_per_second)],
    ] : []),
    ["A million output tokens", cost == null ? el("small", {}, "say US$ per GPU hour") : `US$ ${cost.toPrecision(3)}`],
  ];
}

/** Return sentences of what was asked for and is kept or not. */
function promises({ meets_concurrency: holds, meets_slo: isQuick, plan: { settings, performance } }) {
  const [kept, missed] = {
    bursts: [`Keeps up with bursts of ${whole(performance?.concurrency ?? 0)} requests`, `Does not keep up with bursts of ${whole(performance?.concurrency ?? 0)} requests`],
    random: ["Keeps up with the requests that come", "Does not keep up with the requests that come"],
  }[performance?.simulated?.arrivals ?? (holds === false ? "random" : "")] ?? [`Holds ${running(performance)} at once`, `Does not hold ${running(performance)} at once`];
  return [
    holds == null ? null : `${holds ? kept : missed}, each of ${whole(settings.input_tokens)} + ${whole(settings.output_tokens)} tokens.`,
    isQuick == null ? null : `${isQuick ? "Meets" : "Misses"} the service level.`,
  ].filter(Boolean);
}

const running = (performance) => performance ? `${whole(performance.concurrency)} requests` : "the requests";

function tryChange(change, context) {
  if (applyChange(context.form, change)) context.replan();
  else document.querySelector("#form-note").textContent = "The form has no field for this; send it to the API.";
}

const layoutPart = (plan) => section("Layout", el("p", {}, layoutText(plan.layout)), el("p", { class: "quiet" },
  `${plan.settings.engine} ${plan.settings.engine_version}: `
  + Object.entries(plan.settings).filter(([name, value]) => !name.startsWith("engine") && value !== null).map(settingText).join(", ")));

function cachePart({ kv, layout, settings: { max_model_len: longest } }) {
  const owner = layout.attention_data_parallel > 1 ? `each of ${layout.attention_data_parallel} attention ranks of a replica` : "one replica";
  const rows = kv.groups.map((group) => [words(group.kind), group.layers, whole(group.bytes_per_token_per_layer),
    group.window === null ? "none" : `${whole(group.window)} tokens`, group.state_bytes_per_layer ? gib(group.layers * group.state_bytes_per_layer) : "–"]);
  const kept = Object.fromEntries(kv.groups.map((group, index) => [kv.groups.length > 1 ? `${words(group.kind)} (${group.layers} layers${index ? `, group ${index + 1}` : ""})` : words(group.kind),
    group.layers * group.bytes_per_token_per_layer * Math.min(longest, group.window ?? longest)]));
  const total = Object.values(kept).reduce((sum, bytes) => sum + bytes, 0);
  return section("KV cache by group of layers", el("p", {}, `${gib(kv.available_bytes)} per GPU (between ${gib(kv.available_low_bytes)} and ${gib(kv.available_high_bytes)}) hold `
    + `${whole(kv.tokens)} tokens of ${owner} in ${whole(kv.blocks)} blocks of ${kv.block_size}: ${kv.max_concurrency.toFixed(1)} requests of the longest context.`),
  total > 0 ? stackedBar({ title: `What the layers keep of one request of ${whole(longest)} tokens, before parallelism: ${gib(total)}`, parts: kept, format: gib, scale: total }) : null,
  total > 0 ? legend(kept, gib) : null,
  table("Groups", ["Kind", "Layers", "Bytes a token and layer", "Window", "State of a sequence"], rows));
}

function alternativesPart(alternatives, context) {
  if (!alternatives.length) return null;
  return section("Alternatives", table("Other layouts", ["Layout", "Cache, tokens", "Requests held", "Each token", "Tokens a second", "A million tokens", "Verdict", ""],
    alternatives.map((entry) => [alternativeText(entry), whole(entry.kv_tokens), entry.max_concurrency.toFixed(1),
      entry.tpot_seconds == null ? "" : duration(entry.tpot_seconds), entry.output_tokens_per_second == null ? "" : whole(entry.output_tokens_per_second), costText(entry), words(entry.verdict),
      context.form ? el("button", { type: "button", onclick: () => use(entry.layout, context) }, "Use") : ""])));
}

/** Return what a million output tokens cost: dollars, or GPU hours where there is no price. */
function costText({ cost_usd_per_million_output_tokens: dollars, gpu_seconds_per_million_output_tokens: seconds }) {
  if (dollars != null) return `US$ ${dollars.toPrecision(3)}`;
  return seconds == null ? "" : `${(seconds / 3600).toPrecision(3)} GPU hours`;
}

function use({ gpus, ...degrees }, context) {
  for (const [name, degree] of Object.entries(degrees)) {
    const field = context.form.elements[`layout.${name}`];
    if (field) setField(field, String(degree));
  }
  setField(context.form.elements["hardware.gpus"], String(gpus));
  context.replan();
}

runQuestion({ path: "/plan/infer", verdict, parts });
