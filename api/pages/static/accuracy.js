// Predicted against measured: each validation that succeeded as a point, and all that is on record by kind.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { chart } from "./charts.js";
import { table } from "./elements.js";
import { GIB, gib, percent, whole } from "./quantities.js";

const note = document.querySelector("#note");

function points(jobs) {
  return jobs.filter((job) => job.result?.predicted?.peak_bytes > 0 && job.result?.measured?.peak_bytes > 0).map((job) => ({
    x: job.result.measured.peak_bytes,
    y: job.result.predicted.peak_bytes,
    kind: job.result.verdict === "refuted" ? "no" : "",
    label: `${job.result.level}, ${job.result.verdict}: measured ${gib(job.result.measured.peak_bytes)}, predicted ${gib(job.result.predicted.peak_bytes)}`,
  }));
}

try {
  const [accuracy, jobs] = await Promise.all([ask("/accuracy"), ask("/jobs?kind=validate&state=succeeded&limit=100")]);
  note.textContent = accuracy.measurements ? `${whole(accuracy.measurements)} comparisons on record.`
    : "Nothing is on record yet: validate a plan, or report a run to POST /measurements.";
  const drawn = points(jobs.items);
  if (drawn.length) {
    const most = Math.max(...drawn.map((point) => Math.max(point.x, point.y)));
    document.querySelector("#scatter").replaceChildren(chart({
      title: "The latest validations; on the line the prediction is exact",
      x: { label: "Measured", format: gib, unit: GIB }, y: { label: "Predicted", format: gib, unit: GIB },
      points: drawn, lines: [{ points: [[0, 0], [most, most]], kind: "front" }],
    }));
  }
  document.querySelector("#list").replaceChildren(table("Errors are predicted / measured − 1", ["Measured by", "Framework", "GPU", "Count", "Mean", "Median size", "90 % within", "Worst"],
    accuracy.items.map((group) => [group.level, group.framework, group.gpu, whole(group.count), percent(group.mean_relative_error),
      percent(group.median_absolute_relative_error), percent(group.p90_absolute_relative_error), percent(group.worst_absolute_relative_error)])));
} catch (problem) {
  note.replaceChildren(...problemOf(problem));
}
