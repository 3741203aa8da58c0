// Concurrency against context length: how much of the cache each pair would take.

import { el, section } from "./elements.js";
import { short, whole } from "./quantities.js";

const CONCURRENCIES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
// Up to these parts of the cache; beyond the last one the requests wait for each other.
const LEVELS = [0.5, 0.75, 0.9, 1];
// More would say nothing further.
const MOST_TOLD = 10;

/** Return the map of a plan's cache; `concurrency` is what was asked for, which stands out. */
export function contextsPart({ kv, layout }, concurrency) {
  const columns = kv.contexts.map(({ tokens, requests }) => ({ tokens, most: requests * layout.data_parallel }));
  const asked = [...new Set([...CONCURRENCIES, ...(concurrency ? [concurrency] : [])])].sort((a, b) => a - b);
  const rows = asked.map((requests) => el("tr", { class: requests === concurrency ? "asked" : null },
    el("th", { scope: "row" }, whole(requests)), columns.map(({ most }) => cell(requests, most))));
  return section("Concurrency against context",
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Heat map" }, el("table", { class: "heat" },
      el("caption", {}, "Part of the whole deployment's cache that so many requests take, each of so many tokens. Above 100 % some wait."),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Requests"), columns.map(({ tokens }) => el("th", { scope: "col" }, whole(tokens)))),
        el("tr", {}, el("th", { scope: "row" }, "Holds at most"), columns.map(({ most }) => el("td", {}, short(most))))),
      el("tbody", {}, rows))));
}

function cell(requests, most) {
  const taken = most > 0 ? requests / most : Infinity;
  const level = LEVELS.findIndex((least) => taken <= least);
  return el("td", { class: `level-${level < 0 ? LEVELS.length : level}` }, taken > MOST_TOLD ? `> ${MOST_TOLD * 100} %` : `${taken < 0.01 ? "< 1" : Math.round(taken * 100)} %`);
}
