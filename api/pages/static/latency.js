// How fast a deployment answers, at every concurrency, against what was promised.

import { chart } from "./charts.js";
import { el, section, table } from "./elements.js";
import { duration, durationAxis, short, whole } from "./quantities.js";

// Two stand beside each other on a large screen.
const WIDEST = 420;

/** Return the curves of latency and throughput; nothing where not even one request fits. */
export function performancePart({ performance, cost_usd_per_million_output_tokens: cost }, slo) {
  if (!performance?.curve?.length) return null;
  const { curve, concurrency: asked } = performance;
  const axis = { label: "Concurrency", format: short, log: true };
  const drawn = (title, label, field, measure, kind, promised) => chart({
    title, widest: WIDEST, x: axis, y: { label, ...measure },
    lines: [{ points: curve.map((point) => [point.concurrency, point[field]]), kind }],
    points: curve.map((point) => ({ x: point.concurrency, y: point[field], kind: point.concurrency === asked ? "chosen" : kind,
      label: `concurrency ${point.concurrency}: ${measure.format(point[field])}` })),
    marks: promised ? [{ y: promised, label: `service level ${duration(promised)}` }] : [],
  });
  const timed = (title, label, field) => drawn(title, label, field,
    durationAxis(Math.max(slo?.[field] ?? 0, ...curve.map((point) => point[field]))), "", slo?.[field]);
  return section("Latency and throughput",
    el("p", {}, `At concurrency ${asked}: first token ${duration(performance.ttft_seconds)}, each further ${duration(performance.tpot_seconds)}, `
      + `${whole(performance.output_tokens_per_second)} output tokens a second${cost == null ? "" : `, US$ ${cost.toPrecision(3)} a million`}.`),
    el("div", { class: "charts" },
      timed("Time per output token", "Each token", "tpot_seconds"),
      timed("Time to first token", "First token", "ttft_seconds"),
      drawn("Throughput", "Output tokens a second", "output_tokens_per_second", { format: short }, "second")),
    performance.simulated ? simulatedTable(performance.simulated) : null);
}

/** Return what single requests of the asked load see: the mean, and what 50 to 99 of 100 do not exceed. */
function simulatedTable({ arrivals, counted_requests: counted, burst_clears_seconds: clears, gave_way_fraction: gaveWay, ...times }) {
  const rows = [["First token", times.ttft], ["Each token", times.tpot], ["Whole answer", times.request]]
    .map(([name, seconds]) => [name, ...["mean", "p50", "p90", "p95", "p99"].map((part) => duration(seconds[`${part}_seconds`]))]);
  const kind = { closed_loop: "a closed loop", random: "random arrivals", bursts: "bursts" }[arrivals];
  const told = [`Simulated request by request: ${whole(counted)} of ${kind}.`,
    clears == null ? null : `A burst is answered to the last after ${duration(clears)}.`,
    gaveWay > 0 ? `${(gaveWay * 100).toPrecision(2)} % of them had to give their cache away and were computed again.` : null];
  return el("div", {}, el("p", {}, told.filter(Boolean).join(" ")), table("Requests one by one", ["", "Mean", "50 of 100 within", "90", "95", "99"], rows));
}
