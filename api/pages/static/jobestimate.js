// What a quantization leaves: as it was estimated when it was queued, and as it turned out.

import { legend, stackedBar } from "./bars.js";
import { el, table } from "./elements.js";
import { billions, counted, gib, percent, whole } from "./quantities.js";

/** Return what was estimated of a quantization. */
export function estimateParts(estimate) {
  const { quantized_parameters: quantized, parameters, bits_per_parameter: bits, assumptions } = estimate;
  return [
    el("h3", {}, "What it will leave"),
    ...beforeAndAfter(estimate),
    el("p", { class: "quiet" }, `${billions(quantized)} of ${billions(parameters)} parameters are quantized: ${bits.toFixed(2)} bits a parameter in all. `
      + "These bytes are exact; errors and time are measured as it runs."),
    assumptions.length ? el("ul", {}, assumptions.map((line) => el("li", {}, line))) : null,
  ].filter(Boolean);
}

/** Return the bytes before and after as bars, and which weights are left alone, with why. */
export function beforeAndAfter({ original_bytes: before, quantized_bytes: after, skipped = [] }) {
  const left = skipped.reduce((sum, weights) => sum + weights.bytes, 0);
  const bar = (title, bytes) => stackedBar({ title, parts: { quantized: bytes - left, "left alone": left }, format: gib, scale: before });
  return [
    bar(`Before: ${gib(before)}`, before),
    bar(`After: ${gib(after)}, ${percent(after / before)} of it`, after),
    legend({ quantized: before - left, "left alone": left }, null),
    ...(skipped.length ? [el("details", {}, el("summary", {}, `Left alone: ${counted(skipped.length, "kind")} of weights, ${gib(left)}`),
      table("Weights that are left alone", ["Weight", "How many", "Size", "Why"], skipped.map(({ name, tensors, bytes, reason }) => [name, whole(tensors), gib(bytes), reason])))] : []),
  ];
}
