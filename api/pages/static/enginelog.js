// An engine's start-up log, read by the service and set beside the plan.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { stackedBar } from "./bars.js";
import { el, section, table } from "./elements.js";
import { duration, gib, percent, quantityWords, short, signed, whole } from "./quantities.js";

/** Return the part of the page, and how to tell it which plan a log is of. It stays while answers come and go. */
export function engineLog() {
  let planId = null;
  const text = el("textarea", { rows: 6, name: "log", spellcheck: "false", placeholder: "… GPU KV cache size: 431,152 tokens …" });
  const told = el("div", { role: "status" });
  const compare = el("button", { type: "button", onclick: () => tell() }, "Compare with this plan");
  const part = section("Predicted beside measured", el("p", {}, "Run the deployment, then paste what the engine printed as it started. "
    + "The service reads the log, sets it beside this plan and keeps the figures as a measurement."),
  el("label", { class: "field" }, "Start-up log", text), el("p", {}, compare), told);

  async function tell() {
    told.replaceChildren();
    if (!text.value.trim()) { told.replaceChildren("Paste a log first."); return; }
    compare.disabled = true;
    try {
      const report = await ask("/measurements", { method: "POST", body: { plan_id: planId, source: "web page", log: text.value } });
      told.replaceChildren(...comparison(report));
    } catch (problem) {
      told.replaceChildren(...problemOf(problem));
    } finally {
      compare.disabled = false;
    }
  }

  return { part, ofPlan: (id) => { if (id !== planId) told.replaceChildren(); planId = id; } };
}

/** Return a table of each quantity, predicted and measured, and a pair of bars for each size. */
function comparison({ comparisons, not_learned: obstacle }) {
  const rows = comparisons.map(({ quantity, predicted, measured, relative_error: error }) => [quantityWords(quantity), predicted === null ? "–" : shown(quantity, predicted),
    shown(quantity, measured), error === null ? "–" : signed(error, percent)]);
  const sizes = comparisons.filter(({ quantity, predicted }) => quantity.endsWith("_bytes") && predicted !== null);
  const scale = Math.max(...sizes.flatMap(({ predicted, measured }) => [predicted, measured]));
  return [table("What the log says, beside the plan", ["Quantity", "Predicted", "Measured", "Predicted / measured − 1"], rows),
    ...sizes.flatMap(({ quantity, predicted, measured }) => [
      stackedBar({ title: `${quantityWords(quantity)}, predicted: ${gib(predicted)}`, parts: { [quantity]: predicted }, format: gib, scale }),
      stackedBar({ title: `${quantityWords(quantity)}, measured: ${gib(measured)}`, parts: { [quantity]: measured }, format: gib, scale })]),
    obstacle ? el("p", { class: "quiet" }, obstacle) : null].filter(Boolean);
}

function shown(quantity, value) {
  if (quantity.endsWith("_bytes")) return gib(value);
  return quantity.endsWith("seconds") && !quantity.endsWith("per_second") ? duration(value) : (Number.isInteger(value) ? whole : short)(value);
}
