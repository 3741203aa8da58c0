// Stacked bars: widths are set from script, colours come by position from the style sheet, the legend says all in words.

import { el } from "./elements.js";
import { words } from "./quantities.js";

const PERCENT = 100;
// The scale ends a little beyond its longest part, so that a limit at its end is seen.
const HEADROOM = 1.02;

/**
 * Return a bar of named parts; `scale` is the value at its full width.
 * `limit` draws a line, `reserved` hatches what lies beyond it, `low` and `high` draw the error bar.
 */
export function stackedBar({ title, parts, format, scale, limit, low, high, reserved }) {
  const at = (value) => `${Math.min(PERCENT, (PERCENT * value) / (scale * HEADROOM))}%`;
  const track = el("div", { class: "track", role: "img", "aria-label": `${title}: ${spoken(parts, format)}` });
  Object.entries(parts).forEach(([name, value], index) => {
    if (value <= 0) return;
    const piece = el("div", { class: `piece colour-${index}`, title: `${words(name)}: ${format(value)}` });
    piece.style.width = at(value);
    track.append(piece);
  });
  if (reserved > 0) track.append(placed("reserve", limit, reserved, at, `kept free: ${format(reserved)}`));
  if (high > low) track.append(placed("error", low, high - low, at, `between ${format(low)} and ${format(high)}`));
  if (limit !== undefined) track.append(placed("limit", limit, 0, at, `limit: ${format(limit)}`));
  return el("div", { class: "bar" }, el("div", { class: "bar-title" }, title), track);
}

/** Return the words for the colours of a bar's parts, with a value each where `format` is given. */
export function legend(parts, format) {
  return el("ul", { class: "legend" }, Object.entries(parts).map(([name, value], index) =>
    value <= 0 ? null : el("li", {}, el("span", { class: `swatch colour-${index}`, "aria-hidden": "true" }),
      format ? `${words(name)} ${format(value)}` : words(name))));
}

const spoken = (parts, format) => Object.entries(parts).filter(([, value]) => value > 0)
  .map(([name, value]) => `${words(name)} ${format(value)}`).join(", ");

function placed(kind, from, length, at, title) {
  const mark = el("div", { class: kind, title });
  mark.style.left = at(from);
  if (length > 0) mark.style.width = at(length);
  return mark;
}
