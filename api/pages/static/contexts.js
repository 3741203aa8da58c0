// Concurrency against context length: how much of the cache each pair would take, as the planner sizes it.

import { ask } from "./asking.js";
import { el, section } from "./elements.js";
import { percent, whole } from "./quantities.js";

const LEAST_CONTEXT = 1024;
const MOST_COLUMNS = 8;
const CONCURRENCIES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
// Up to these parts of the cache; beyond the last one the requests wait for each other.
const LEVELS = [0.5, 0.75, 0.9, 1];

/** Ask for each length under the chosen layout, and draw the map in a place of the page; a length that is refused leaves its column empty. */
export async function heatMap(answer, { request, signal }, place) {
  const lengths = contextLengths(answer.plan.settings.max_model_len);
  const { gpus, ...degrees } = answer.plan.layout;
  const held = await Promise.all(lengths.map((length) => requestsHeld(length, { ...request, layout: degrees,
    hardware: { ...request.hardware, gpus } }, signal)));
  if (signal.aborted) return;
  const rows = CONCURRENCIES.map((concurrency) => el("tr", {}, el("th", { scope: "row" }, whole(concurrency)),
    held.map((most) => cell(concurrency, most))));
  place.replaceChildren(section("Concurrency against context",
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Heat map" }, el("table", { class: "heat" },
      el("caption", {}, "Part of the whole deployment's cache that so many requests take, each of so many tokens; above 100 % some wait"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Requests"), lengths.map((length) => el("th", { scope: "col" }, whole(length))))),
      el("tbody", {}, rows)))));
}

function contextLengths(longest) {
  const lengths = [];
  for (let length = longest; length >= LEAST_CONTEXT && lengths.length < MOST_COLUMNS; length = Math.floor(length / 2)) lengths.unshift(length);
  return lengths.length ? lengths : [longest];
}

async function requestsHeld(length, request, signal) {
  const serving = { ...request.serving, max_model_len: length };
  // What matters here is the room, not the load: prompts of the original length may not fit a shorter context.
  for (const load of ["input_tokens", "output_tokens", "concurrency", "slo"]) delete serving[load];
  try {
    const { plan } = await ask("/plan/infer", { method: "POST", body: { ...request, serving }, signal });
    return plan.kv.max_concurrency * plan.layout.data_parallel;
  } catch (problem) {
    return null;
  }
}

function cell(concurrency, most) {
  if (most === null) return el("td", { class: "level-4" }, "–");
  const taken = most > 0 ? concurrency / most : Infinity;
  const level = LEVELS.findIndex((least) => taken <= least);
  return el("td", { class: `level-${level < 0 ? LEVELS.length : level}` }, taken > 10 ? "> 1000 %" : percent(taken));
}
