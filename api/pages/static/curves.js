// Where the moments of a step stand on its curve, what each is called, and how far a trace's are from the plan's.

import { percent, words } from "./quantities.js";

// Where in the forward pass a companion's pass stands, which runs after the policy's own.
const COMPANION_PLACE = 0.9;
// More points than these nobody goes through by keyboard.
const MOST_POINTS = 32;
// Of less the first digit would be 0.
const LEAST_TOLD = 0.001;
const FORWARD = "forward and loss";
const BACKWARD = "backward";

/**
 * Return the moments in their order, each with its place `x` and its `part` of the pass: "before" the layers, "behind" them,
 * or a layer. `spans` are the widths of the phases, `count` and `layers` the stage's. What comes before all steps is left out.
 */
export function placed(moments, spans, count, layers) {
  const at = placesOf(spans);
  return [FORWARD, BACKWARD].reduce((all, phase) => withParts(all, phase), moments)
    .map((moment) => ({ ...moment, x: at(moment, fractionOf(moment, moments, count, layers)) }))
    .filter(({ x }) => x !== null);
}

/** Return the moments with what those of a pass are that belong to no layer. */
function withParts(moments, phase) {
  const last = moments.findLastIndex((moment) => moment.phase === phase && moment.layer !== null);
  return moments.map((moment, index) => (moment.phase !== phase ? moment
    : { ...moment, part: moment.layer !== null ? "layer" : index < last ? "before" : beyond(phase, last) }));
}

// Plans of earlier versions have of the forward pass its end alone, and of a backward pass without layers its begin.
const beyond = (phase, last) => (last < 0 && phase === BACKWARD ? "before" : "behind");

/** Return how far into its pass a moment is; layers stand in their order, or by their number where some are left out. */
function fractionOf({ phase, layer, part }, moments, count, [first, last]) {
  if (part === "before") return 0;
  if (layer === null) return 1;
  const own = moments.filter((moment) => moment.phase === phase && moment.layer !== null).map((moment) => moment.layer);
  const index = own.length === count ? own.indexOf(layer) : phase === BACKWARD ? last - layer : layer - first;
  return (index + 0.5) / count;
}

function placesOf({ forward, backward, update, extra }) {
  const places = { forward: 0, "companion forward": forward * COMPANION_PLACE, "root gradient reduction": forward + backward,
    "optimizer step": forward + backward + update / 2, evaluation: forward + backward + update + extra / 2 };
  return ({ phase }, fraction) => {
    if (phase === FORWARD) return forward * fraction;
    return phase === BACKWARD ? forward + backward * fraction : places[phase] ?? null;
  };
}

/** Return a curve's corners: the moments' places and one of their quantities. */
export const lineOf = (moments, quantity) => moments.map((moment) => [moment.x, moment[quantity]]);

/** Return a moment in words. */
export function nameOf({ phase, layer, part }) {
  if (phase !== FORWARD && phase !== BACKWARD) return words(phase);
  const pass = phase === FORWARD ? "forward pass" : "backward pass";
  if (layer !== null) return `${pass} of layer ${layer}`;
  return `${part === "before" ? "start" : "end"} of the ${pass}`;
}

/** Return the moments that are drawn as points: those of no layer, `peak`, and of the layers as many as can be gone through. */
export function thinned(moments, peak) {
  const every = Math.ceil(moments.length / MOST_POINTS);
  return moments.filter((moment, index) => moment === peak || (moment.layer ?? null) === null || index % every === 0);
}

/** Return in words how far a traced stage is from its plan. */
export function distanceText({ moments, moments_within_one_percent: close }) {
  const parts = [FORWARD, BACKWARD].reduce((all, phase) => withParts(all, phase), moments);
  const worst = parts.reduce((most, moment) => (Math.abs(moment.distance) > Math.abs(most.distance) ? moment : most));
  const count = close === moments.length ? `all ${close}` : `${close} of ${moments.length}`;
  const near = `Plan and trace agree within 1 % of the peak at ${count} moments`;
  if (worst.distance === 0) return `${near}, and differ at none.`;
  return `${near}; they differ most at the ${nameOf(worst)}, where the plan is ${amount(worst.distance)} of the peak ${worst.distance < 0 ? "below" : "above"} the trace.`;
}

const amount = (distance) => (Math.abs(distance) < LEAST_TOLD ? "less than 0.1 %" : percent(Math.abs(distance)));
