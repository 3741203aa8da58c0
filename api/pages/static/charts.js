// Charts of points and lines as SVG: each point can be reached by keyboard and is named for a screen reader.

import { el, svg } from "./elements.js";

const WIDTH = 640;
const HEIGHT = 320;
const MARGIN = { left: 76, right: 16, top: 12, bottom: 44 };
const TICKS = 5;
// Axes go a little beyond the outermost point.
const HEADROOM = 1.06;
const POINT_RADIUS = 6;

/**
 * Return a chart.
 * `x` and `y`: {label, format, log, unit}; ticks are round in that unit (1 where absent). `points`: [{x, y, label, kind, act}]. `lines`: [{points: [[x, y]], kind}].
 * `marks`: [{y | x, label}] are drawn as dashed lines across.
 */
export function chart({ title, x, y, points = [], lines = [], marks = [] }) {
  const xs = [...points.map((point) => point.x), ...lines.flatMap((line) => line.points.map(([at]) => at)), ...known(marks, "x")];
  const ys = [...points.map((point) => point.y), ...lines.flatMap((line) => line.points.map(([, at]) => at)), ...known(marks, "y")];
  const across = scaleOf(xs, x, MARGIN.left, WIDTH - MARGIN.right);
  const up = scaleOf(ys, y, HEIGHT - MARGIN.bottom, MARGIN.top);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "group", "aria-label": title },
    across.ticks.map((tick) => xTick(tick, across.at(tick), x.format)),
    up.ticks.map((tick) => yTick(tick, up.at(tick), y.format)),
    svg("text", { x: (MARGIN.left + WIDTH) / 2, y: HEIGHT - 6, class: "axis", "text-anchor": "middle" }, x.label),
    svg("text", { x: 14, y: HEIGHT / 2, class: "axis", "text-anchor": "middle", transform: `rotate(-90 14 ${HEIGHT / 2})` }, y.label),
    marks.map((mark) => markLine(mark, across, up)),
    lines.map((line) => svg("polyline", { class: `line ${line.kind}`, points: line.points.map(([a, b]) => `${across.at(a)},${up.at(b)}`).join(" ") })),
    points.map((point) => pointMark(point, across, up)));
  return el("figure", {}, el("figcaption", {}, title), drawing);
}

const known = (marks, axis) => marks.map((mark) => mark[axis]).filter((value) => value !== undefined);

function scaleOf(values, { log = false, unit = 1 }, from, to) {
  const most = Math.max(...values) * HEADROOM || 1;
  const least = log ? Math.min(...values) / HEADROOM : 0;
  const place = log ? (value) => Math.log(value / least) / Math.log(most / least) : (value) => value / most;
  return { at: (value) => from + (to - from) * place(value), ticks: log ? powerTicks(least, most) : evenTicks(most / unit).map((tick) => tick * unit) };
}

function evenTicks(most) {
  const rough = most / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => index * step);
}

function powerTicks(least, most) {
  const base = most / least > 1e4 ? 10 : 2;
  const first = Math.ceil(Math.log(least) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(most) / Math.log(base) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / (2 * TICKS)));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => base ** (first + index)).filter((_, index) => index % every === 0);
}

const xTick = (tick, at, format) => svg("g", {},
  svg("line", { x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, class: "grid" }),
  svg("text", { x: at, y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle" }, format(tick)));

const yTick = (tick, at, format) => svg("g", {},
  svg("line", { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at, class: "grid" }),
  svg("text", { x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, format(tick)));

function markLine(mark, across, up) {
  const level = mark.y !== undefined;
  const at = level ? up.at(mark.y) : across.at(mark.x);
  const ends = level ? { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at } : { x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom };
  const where = level ? { x: WIDTH - MARGIN.right - 4, y: at - 4 } : { x: at - 4, y: MARGIN.top + 12 };
  return svg("g", {}, svg("line", { ...ends, class: "mark" }), svg("text", { ...where, "text-anchor": "end", class: "mark-text" }, mark.label));
}

function pointMark(point, across, up) {
  const attributes = { cx: across.at(point.x), cy: up.at(point.y), r: POINT_RADIUS, class: `point ${point.kind ?? ""}`, "aria-label": point.label, tabindex: 0, role: point.act ? "button" : "img" };
  const circle = svg("circle", attributes, svg("title", {}, point.label));
  if (point.act) {
    circle.addEventListener("click", point.act);
    circle.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      point.act();
    });
  }
  return circle;
}
