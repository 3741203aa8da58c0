// From values to places on a drawing, with round ticks.

const TICKS = 5;
// Axes go a little beyond the outermost point.
const HEADROOM = 1.06;
// Beyond this range powers of two stand too close.
const WIDE_RANGE = 1e4;

/**
 * Return {at(value), ticks} of an axis from one place to another that holds the values: from 0, or from the least one
 * where it is logarithmic. Ticks are round in `unit`, and `whole` for what is counted. An axis of `bands` has no ticks and ends with its last one.
 */
export function scaleOf(values, { log = false, unit = 1, bands = null, whole = false }, from, to) {
  if (bands) {
    const last = bands.at(-1).to;
    return { at: (value) => from + ((to - from) * value) / last, ticks: [] };
  }
  const most = Math.max(...values) * HEADROOM || 1;
  const least = log ? Math.min(...values) / HEADROOM : 0;
  const place = log ? (value) => Math.log(value / least) / Math.log(most / least) : (value) => value / most;
  return { at: (value) => from + (to - from) * place(value), ticks: log ? powerTicks(least, most) : evenTicks(most / unit, whole ? 1 : 0).map((tick) => tick * unit) };
}

function evenTicks(most, leastStep) {
  const rough = Math.max(most / TICKS, leastStep);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => index * step);
}

function powerTicks(least, most) {
  const base = most / least > WIDE_RANGE ? 10 : 2;
  const first = Math.ceil(Math.log(least) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(most) / Math.log(base) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / (2 * TICKS)));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => base ** (first + index)).filter((_, index) => index % every === 0);
}
