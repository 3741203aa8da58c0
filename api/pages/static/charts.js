// Charts of points, lines and areas as SVG: each point can be reached by keyboard and is named for a screen reader.

import { el, svg } from "./elements.js";
import { scaleOf } from "./scales.js";

const WIDEST = 832;
const NARROWEST = 320;
// What stands beside a chart on a narrow screen.
const GUTTER = 34;
const HEIGHT = 300;
const MARGIN = { left: 86, right: 16, top: 18, bottom: 44 };
const POINT_RADIUS = 6;
// About the width of a letter of 12 pixels.
const LETTER_WIDTH = 6.5;

/**
 * Return a chart; `name` tells it from others on the page, `widest` is its width in pixels where there is room.
 * `x` and `y`: {label, format, log, unit, whole, bands}; ticks are round in that unit (1 where absent), and `bands`
 * ([{from, to, label}]) stand in place of ticks. `points`: [{x, y, label, kind, act}]. `lines`: [{points: [[x, y]], kind}].
 * `areas`: [{points: [[x, low, high]], colour}]. `marks`: [{y | x, label}] are drawn as dashed lines across.
 * `notes`: [{x, y, label}] are written beside their place.
 */
export function chart({ name, title, widest = WIDEST, x, y, points = [], lines = [], areas = [], marks = [], notes = [] }) {
  // One unit of the drawing is a pixel, so that its text is as large on a phone.
  const width = Math.max(NARROWEST, Math.min(widest, document.documentElement.clientWidth - GUTTER));
  const xs = [...points.map((point) => point.x), ...[...lines, ...areas].flatMap((drawn) => drawn.points.map(([at]) => at)), ...known(marks, "x")];
  const ys = [...points.map((point) => point.y), ...lines.flatMap((line) => line.points.map(([, at]) => at)),
    ...areas.flatMap((area) => area.points.map(([, , high]) => high)), ...known(marks, "y")];
  const across = scaleOf(xs, x, MARGIN.left, width - MARGIN.right);
  const up = scaleOf(ys, y, HEIGHT - MARGIN.bottom, MARGIN.top);
  const frame = { width, across, up };
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, class: "chart", role: "group", "aria-label": title },
    up.ticks.map((tick) => yTick(tick, y.format, frame)),
    areas.map((area) => svg("polygon", { class: `area fill-${area.colour}`, points: outline(area, frame) })),
    x.bands ? x.bands.map((band) => xBand(band, frame)) : across.ticks.map((tick) => xTick(across.at(tick), x.format(tick))),
    svg("text", { x: (MARGIN.left + width) / 2, y: HEIGHT - 6, class: "axis", "text-anchor": "middle" }, x.label),
    svg("text", { x: 14, y: HEIGHT / 2, class: "axis", "text-anchor": "middle", transform: `rotate(-90 14 ${HEIGHT / 2})` }, y.label),
    marks.map((mark) => markLine(mark, frame)),
    lines.map((line) => svg("polyline", { class: `line ${line.kind}`, points: line.points.map(([a, b]) => `${across.at(a)},${up.at(b)}`).join(" ") })),
    points.map((point) => pointMark(point, frame)),
    notes.map((note) => noteText(note, frame)));
  return el("figure", { "data-part": name }, el("figcaption", {}, title), drawing);
}

const known = (marks, axis) => marks.map((mark) => mark[axis]).filter((value) => value !== undefined);

const outline = (area, { across, up }) => [...area.points.map(([at, , high]) => [at, high]), ...[...area.points].reverse().map(([at, low]) => [at, low])]
  .map(([at, value]) => `${across.at(at)},${up.at(value)}`).join(" ");

const xTick = (at, label) => svg("g", {},
  svg("line", { x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, class: "grid" }),
  svg("text", { x: at, y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle" }, label));

function xBand({ from, to, label }, { across }) {
  const [start, end] = [across.at(from), across.at(to)];
  return svg("g", {},
    svg("line", { x1: end, x2: end, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom + 6, class: "grid" }),
    svg("text", { x: (start + end) / 2, y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle" }, fitting(label, end - start)));
}

/** Return as much of a label as there is room for: all of it, its first word, or nothing. */
const fitting = (label, width) => [label, label.split(" ")[0], ""].find((text) => text.length * LETTER_WIDTH <= width);

const yTick = (tick, format, { width, up }) => svg("g", {},
  svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: up.at(tick), y2: up.at(tick), class: "grid" }),
  svg("text", { x: MARGIN.left - 6, y: up.at(tick) + 4, "text-anchor": "end" }, format(tick)));

function markLine(mark, { width, across, up }) {
  const level = mark.y !== undefined;
  const at = level ? up.at(mark.y) : across.at(mark.x);
  const ends = level ? { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at } : { x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom };
  // Beside the left end of a level line, where curves that grow are still low.
  const where = level ? { x: MARGIN.left + 6, y: at - 5, "text-anchor": "start" } : { x: at - 4, y: MARGIN.top + 12, "text-anchor": "end" };
  const labelWidth = mark.label.length * LETTER_WIDTH + 6;
  // Over an area of any colour the line and its label lie on one of the page's.
  return svg("g", {}, svg("line", { ...ends, class: "mark-ground" }), svg("line", { ...ends, class: "mark" }),
    svg("rect", { x: where.x - (level ? 3 : labelWidth - 3), y: where.y - 11, width: labelWidth, height: 14, class: "mark-label" }), svg("text", { ...where, class: "mark-text" }, mark.label));
}

function noteText(note, { width, across, up }) {
  const at = across.at(note.x);
  const beyond = at > width / 2;
  return svg("text", { x: at + (beyond ? -11 : 11), y: Math.max(12, up.at(note.y) - 6), class: "note", "text-anchor": beyond ? "end" : "start" }, note.label);
}

function pointMark(point, { across, up }) {
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
