// The serving page.

import { advicePart, applyChange, artifactsPart, assumptionsPart, memoryPart, verdictOf } from "./answers.js";
import { chart } from "./charts.js";
import { heatMap } from "./contexts.js";
import { el, section, table } from "./elements.js";
import { duration, gib, short, whole, words } from "./quantities.js";
import { runQuestion } from "./questions.js";

// Kept from answer to answer: the old map stands until the new one is there.
const contexts = el("div");

function show(answer, context) {
  const { plan } = answer;
  document.querySelector("#verdict").replaceChildren(...verdictOf(answer), el("p", {}, promises(answer).join(" ")));
  document.querySelector("#parts").replaceChildren(...[
    layoutPart(plan),
    memoryPart(plan.memory, context.gpus.get(context.request?.hardware?.gpu)),
    cachePart(plan.kv),
    ...performanceParts(answer, context.request?.serving?.slo),
    context.form ? contexts : null,
    advicePart(answer.advice, context.form ? (change) => tryChange(change, context) : null),
    alternativesPart(answer.alternatives),
    artifactsPart(answer),
    assumptionsPart(answer),
  ].filter(Boolean));
}

const PROMISES = [["meets_concurrency", "the concurrency"], ["meets_slo", "the service level"]];
const promises = (answer) => PROMISES.filter(([field]) => answer[field] != null)
  .map(([field, name]) => `${answer[field] ? "Meets" : "Misses"} ${name}.`);

function tryChange(change, context) {
  if (applyChange(context.form, change)) context.replan();
  else document.querySelector("#form-note").textContent = "The form has no field for this; send it to the API.";
}

const layoutText = (layout) => Object.entries(layout).filter(([name, degree]) => name === "gpus" || degree > 1)
  .map(([name, degree]) => `${words(name)} ${degree}`).join(", ");

const layoutPart = (plan) => section("Layout", el("p", {}, layoutText(plan.layout)), el("p", { class: "quiet" },
  `${plan.settings.engine} ${plan.settings.engine_version}: `
  + Object.entries(plan.settings).filter(([name]) => !name.startsWith("engine")).map(([name, value]) => `${words(name)} ${value}`).join(", ")));

function cachePart(kv) {
  const rows = kv.groups.map((group) => [words(group.kind), group.layers, whole(group.bytes_per_token_per_layer),
    group.window === null || group.window === undefined ? "none" : whole(group.window), gib(group.layers * group.bytes_per_token_per_layer * 1000)]);
  return section("KV cache", el("p", {}, `${gib(kv.available_bytes)} a GPU (between ${gib(kv.available_low_bytes)} and ${gib(kv.available_high_bytes)}) hold `
    + `${whole(kv.tokens)} tokens of one replica in ${whole(kv.blocks)} blocks of ${kv.block_size}: ${kv.max_concurrency.toFixed(1)} requests of the longest context.`),
  table("By group of layers", ["Group", "Layers", "Bytes a token and layer", "Window, tokens", "1,000 tokens"], rows));
}

function performanceParts(answer, slo) {
  const { performance } = answer.plan;
  if (!performance?.curve?.length) return [];
  const { curve } = performance;
  const asked = performance.concurrency;
  const concurrency = { label: "Concurrency", format: short, log: true };
  const series = (field) => curve.map((point) => [point.concurrency, point[field]]);
  const latency = (title, label, field, promised) => chart({
    title, x: concurrency, y: { label, format: (seconds) => (seconds ? duration(seconds) : "0") },
    lines: [{ points: series(field), kind: "" }],
    points: curve.map((point) => ({ x: point.concurrency, y: point[field], kind: point.concurrency === asked ? "chosen" : "", label: `concurrency ${point.concurrency}: ${duration(point[field])}` })),
    marks: promised ? [{ y: promised, label: `SLO ${duration(promised)}` }] : [],
  });
  const throughput = chart({
    title: "Throughput", x: concurrency, y: { label: "Output tokens a second", format: short },
    lines: [{ points: series("output_tokens_per_second"), kind: "second" }],
    points: curve.map((point) => ({ x: point.concurrency, y: point.output_tokens_per_second, kind: point.concurrency === asked ? "chosen" : "second", label: `concurrency ${point.concurrency}: ${whole(point.output_tokens_per_second)} tokens a second` })),
  });
  const cost = answer.plan.cost_usd_per_million_output_tokens;
  return [section("Latency and throughput",
    el("p", {}, `At concurrency ${asked}: first token ${duration(performance.ttft_seconds)}, each further ${duration(performance.tpot_seconds)}, `
      + `${whole(performance.output_tokens_per_second)} output tokens a second${cost == null ? "" : `, US$ ${cost.toPrecision(3)} a million`}.`),
    latency("Time per output token", "Each token", "tpot_seconds", slo?.tpot_seconds),
    latency("Time to first token", "First token", "ttft_seconds", slo?.ttft_seconds), throughput)];
}

function alternativesPart(alternatives) {
  if (!alternatives.length) return null;
  return section("Alternatives", table("Other layouts", ["Layout", "Cache, tokens", "Requests held", "Each token", "Tokens a second", "Verdict"],
    alternatives.map((entry) => [layoutText(entry.layout), whole(entry.kv_tokens), entry.max_concurrency.toFixed(1),
      entry.tpot_seconds == null ? "" : duration(entry.tpot_seconds), entry.output_tokens_per_second == null ? "" : whole(entry.output_tokens_per_second), words(entry.verdict)])));
}

runQuestion({ path: "/plan/infer", show, after: (answer, context) => heatMap(answer, context, contexts) });
