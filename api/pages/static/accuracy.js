// Predicted against measured: each measurement on record as a point, by framework and model, and all of them by kind.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { legend } from "./bars.js";
import { chart } from "./charts.js";
import { savingButton } from "./downloads.js";
import { el, table } from "./elements.js";
import { remember, restore } from "./forms.js";
import { GIB, durationAxis, gib, percent, short, signed, whole, words } from "./quantities.js";

const COLOURS = 8;
const form = document.querySelector("#filters");
const note = document.querySelector("#note");
const place = document.querySelector("#scatter");

function axisOf(quantity, most) {
  if (quantity.endsWith("_bytes")) return { format: gib, unit: most < GIB ? GIB / 1024 : GIB };
  return quantity.endsWith("per_second") || quantity.endsWith("tokens") ? { format: short } : durationAxis(most);
}

function draw(points) {
  const { quantity, framework, model } = Object.fromEntries(["quantity", "framework", "model"].map((name) => [name, form.elements[name].value]));
  const chosen = points.filter((point) => point.quantity === quantity && (!framework || point.framework === framework) && (!model || point.model === model));
  const frameworks = [...new Set(points.map((point) => point.framework))].sort();
  if (!chosen.length) { place.replaceChildren(el("p", { class: "quiet" }, "No measurement matches.")); return; }
  const most = Math.max(...chosen.flatMap((point) => [point.predicted, point.measured]));
  const axis = axisOf(quantity, most);
  place.replaceChildren(chart({
    title: `${words(quantity)}: ${chosen.length} of the newest measurements; on the line the prediction is exact`,
    x: { label: "Measured", ...axis }, y: { label: "Predicted", ...axis },
    points: chosen.map((point) => ({ x: point.measured, y: point.predicted, kind: `fill-${frameworks.indexOf(point.framework) % COLOURS}`,
      label: `${point.model} on ${point.gpu}, ${point.framework} (${point.level}): measured ${axis.format(point.measured)}, predicted ${axis.format(point.predicted)}, ${signed(point.predicted / point.measured - 1, percent)}` })),
    lines: [{ points: [[0, 0], [most, most]], kind: "front" }],
  }), legend(Object.fromEntries(frameworks.map((name) => [name, Number(chosen.some((point) => point.framework === name))])), null));
}

function fill(name, values) {
  form.elements[name].append(...[...new Set(values)].sort().map((value) => el("option", { value }, words(value))));
}

try {
  const { measurements, items, points } = await ask("/accuracy");
  document.querySelector("#export").replaceChildren(savingButton("/accuracy?format=csv", "Download all as CSV"));
  note.textContent = measurements ? `${whole(measurements)} comparison${measurements === 1 ? "" : "s"} on record.`
    : "Nothing is on record yet: validate a plan, or report a run to POST /measurements.";
  fill("quantity", points.map((point) => point.quantity));
  fill("framework", points.map((point) => point.framework));
  fill("model", points.map((point) => point.model));
  form.hidden = !points.length;
  if (points.length) {
    restore(form);
    if (!form.elements.quantity.value) form.elements.quantity.selectedIndex = 0;
    form.addEventListener("input", () => { remember(form); draw(points); });
    draw(points);
  }
  document.querySelector("#list").replaceChildren(table("Errors are predicted / measured − 1", ["Measured by", "Framework", "Family", "GPU", "Count", "Mean", "Median size", "90 % within", "Worst"],
    items.map((group) => [group.level, group.framework, group.family ?? "", group.gpu, whole(group.count), percent(group.mean_relative_error),
      percent(group.median_absolute_relative_error), percent(group.p90_absolute_relative_error), percent(group.worst_absolute_relative_error)])));
} catch (problem) {
  note.replaceChildren(...problemOf(problem));
}
