// A trace beside its plan, moment by moment: both curves of each stage, and the largest allocations with their lives.

import { chart } from "./charts.js";
import { distanceText, lineOf, nameOf, placed, thinned } from "./curves.js";
import { el, table } from "./elements.js";
import { GIB, gib, words } from "./quantities.js";

// No times are known of a trace: a pass is as wide as the other, the update narrower.
const SPANS = { forward: 1, backward: 1, update: 0.25, extra: 0 };

/** Return the curves of each traced stage; none of traces that were not compared so. */
export function tracedCurves(result) {
  return (result.stages ?? []).filter((stage) => stage.moments?.length).flatMap((stage) => [
    curves(stage, result.stages.length > 1),
    el("p", {}, distanceText(stage)),
    allocationTable(stage.largest_allocations ?? []),
  ]).filter(Boolean);
}

function curves(stage, isOneOfMany) {
  const layers = new Set(stage.moments.map(({ layer }) => layer).filter((layer) => layer !== null));
  const moments = placed(stage.moments, SPANS, layers.size, stage.layers);
  const peak = moments.reduce((most, moment) => (moment.traced_bytes > most.traced_bytes ? moment : most));
  return el("div", {}, chart({
    name: "traced",
    title: `${isOneOfMany ? `Stage ${stage.stage}: l` : "L"}ive tensors over the last step, planned and traced`,
    x: { label: "One micro-batch, then the optimizer", bands: [{ from: 0, to: 1, label: "forward" }, { from: 1, to: 2, label: "backward" }, { from: 2, to: 2.25, label: "update" }] },
    y: { label: "Live tensors", format: gib, unit: GIB },
    lines: [{ points: lineOf(moments, "planned_bytes"), kind: "colour-line-0" }, { points: lineOf(moments, "traced_bytes"), kind: "traced" }],
    points: thinned(moments, peak).map((moment) => ({ x: moment.x, y: moment.traced_bytes, kind: "small",
      label: `${nameOf(moment)}: planned ${gib(moment.planned_bytes)}, traced ${gib(moment.traced_bytes)}` })),
  }), el("ul", { class: "legend" }, [["colour-0", "planned"], ["traced", "traced"]].map(([colour, text]) =>
    el("li", {}, el("span", { class: `swatch ${colour}`, "aria-hidden": "true" }), text))));
}

function allocationTable(allocations) {
  if (!allocations.length) return null;
  return el("details", {}, el("summary", {}, "The largest allocations"), table(
    "Largest allocations of the last step", ["What", "Each", "Of these", "Allocated", "Released", "Planned then"],
    allocations.map((each) => [`${words(each.kind)} ${each.name}`, gib(each.bytes), String(each.count), momentText(each.allocated_at, "before the step"),
      momentText(each.released_at, "after the step"), each.planned_item_bytes === null ? "–" : `${words(each.item)} ${gib(each.planned_item_bytes)}`]),
  ));
}

const momentText = (moment, otherwise) => (moment === null ? otherwise : moment.layer === null ? words(moment.phase) : `${words(moment.phase)}, layer ${moment.layer}`);
