// What a finished job found: predicted beside measured, a trace's curve beside the plan's, or bytes before and after with the error of each layer.

import { legend, stackedBar } from "./bars.js";
import { beforeAndAfter } from "./jobestimate.js";
import { chart } from "./charts.js";
import { el, facts, table } from "./elements.js";
import { duration, gib, percent, words } from "./quantities.js";
import { tracedCurves } from "./tracedcurve.js";

const MOST_TENSORS_LISTED = 200;

/** Return the parts of a job's result. */
export function resultParts(job) {
  return [...(job.kind === "validate" ? validationParts(job.result) : quantizationParts(job.result)), wholeResult(job.result)];
}

function validationParts(result) {
  const parts = [el("p", { class: "verdict" }, el("strong", {}, words(result.verdict ?? "")),
    differenceText(result.relative_error))];
  const sides = ["predicted", "measured"].filter((side) => result[side]?.items && Object.keys(result[side].items).length);
  const scale = Math.max(...sides.map((side) => total(result[side].items)), 1);
  // One order of parts, so that a colour is the same on both sides.
  const names = [...new Set(sides.flatMap((side) => Object.keys(result[side].items)))];
  for (const side of sides) {
    const items = Object.fromEntries(names.map((name) => [name, result[side].items[name] ?? 0]));
    parts.push(stackedBar({ title: `${side}: ${gib(total(items))}`, parts: items, format: gib, scale }), legend(items, gib));
  }
  return [...parts, ...tracedCurves(result)];
}

function differenceText(error) {
  if (error == null) return "";
  return error === 0 ? ": predicted exactly what was measured" : `: predicted ${percent(Math.abs(error))} ${error < 0 ? "below" : "above"} measured`;
}

function quantizationParts(result) {
  const tensors = result.tensors ?? [];
  return [
    facts([["Bits a parameter", Number(result.bits_per_parameter).toFixed(2)], ["Relative error", Number(result.relative_error).toPrecision(3)],
      ["SQNR", result.sqnr_db == null ? "no error" : `${result.sqnr_db.toFixed(1)} dB`], ["Quantizing took", duration(result.seconds)], ["Rate", result.bytes_per_second == null ? "–" : `${gib(result.bytes_per_second)}/s`],
      ["Host memory", result.peak_host_bytes == null ? "–" : gib(result.peak_host_bytes)]]),
    ...beforeAndAfter(result),
    result.output ? el("p", {}, "Written to ", el("code", {}, result.output.path), `, ${gib(result.output.file_bytes)} of files.`) : null,
    tensors.length ? errorByLayer(tensors) : null,
    tensors.length ? tensorTable(tensors) : null,
  ].filter(Boolean);
}

/** Return each tensor's error at its layer, one line a kind of tensor. */
function errorByLayer(tensors) {
  const kinds = new Map();
  for (const tensor of tensors) {
    const [, layer, kind] = tensor.name.match(/\.(\d+)\.(.+?)(?:\.weight)?$/) ?? [];
    if (layer === undefined) continue;
    kinds.set(kind, [...(kinds.get(kind) ?? []), { x: Number(layer), y: tensor.relative_error, label: `${tensor.name}: ${Number(tensor.relative_error).toPrecision(3)}` }]);
  }
  if (!kinds.size) return null;
  const drawn = [...kinds.values()].map((points) => points.sort((a, b) => a.x - b.x));
  return el("div", {}, chart({
    title: "Relative error by layer",
    x: { label: "Layer", format: String, whole: true },
    y: { label: "Relative error", format: (error) => String(Number(error.toPrecision(2))) },
    lines: drawn.map((points, index) => ({ points: points.map(({ x, y }) => [x, y]), kind: `colour-line-${index % 8}` })),
    points: drawn.flatMap((points, index) => points.map((point) => ({ ...point, kind: `small fill-${index % 8}` }))),
  }), legend(Object.fromEntries([...kinds.keys()].map((kind) => [kind, 1])), null));
}

function tensorTable(tensors) {
  const listed = tensors.slice(0, MOST_TENSORS_LISTED);
  return el("details", {}, el("summary", {}, "Every tensor"), table(`Tensors (${listed.length} of ${tensors.length})`, ["Tensor", "Before", "After", "Relative error", "SQNR, dB"],
    listed.map((tensor) => [tensor.name, gib(tensor.original_bytes), gib(tensor.quantized_bytes), Number(tensor.relative_error).toPrecision(3), tensor.sqnr_db == null ? "–" : tensor.sqnr_db.toFixed(1)])));
}

const total = (items) => Object.values(items).reduce((sum, bytes) => sum + bytes, 0);

const wholeResult = (result) => el("details", {}, el("summary", {}, "The whole result"), el("pre", { tabindex: 0, "aria-label": "The whole result" }, JSON.stringify(result, null, 2)));
