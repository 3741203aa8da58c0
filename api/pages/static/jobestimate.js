// What a quantization will leave, as it was estimated when it was queued.

import { legend, stackedBar } from "./bars.js";
import { el, table } from "./elements.js";
import { billions, counted, gib, percent, whole } from "./quantities.js";

/** Return the bytes before and after, and what is left alone, with why. */
export function estimateParts({ original_bytes: before, quantized_bytes: after, quantized_parameters: quantized, parameters, bits_per_parameter: bits, skipped, assumptions }) {
  const leftBytes = skipped.reduce((sum, weights) => sum + weights.bytes, 0);
  const split = (bytes) => ({ quantized: bytes - leftBytes, "left alone": leftBytes });
  const bar = (title, bytes) => stackedBar({ title, parts: split(bytes), format: gib, scale: before });
  return [
    el("h3", {}, "What it will leave"),
    bar(`Before: ${gib(before)}`, before),
    bar(`After: ${gib(after)}, ${percent(after / before)} of it, ${bits.toFixed(2)} bits a parameter`, after),
    legend({ quantized: 1, "left alone": leftBytes }, null),
    el("p", { class: "quiet" }, `${billions(quantized)} of ${billions(parameters)} parameters are quantized. The bytes are exact; the error and the time are measured as it runs.`),
    skipped.length ? el("details", {}, el("summary", {}, `Left alone: ${counted(skipped.length, "kind")} of weights, ${gib(leftBytes)}`),
      table("Weights that are left alone", ["Weight", "How many", "Size", "Why"], skipped.map(({ name, tensors, bytes, reason }) => [name, whole(tensors), gib(bytes), reason]))) : null,
    assumptions.length ? el("ul", {}, assumptions.map((line) => el("li", {}, line))) : null,
  ].filter(Boolean);
}
