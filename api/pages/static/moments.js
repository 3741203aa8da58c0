// Memory over the time of a step: the live tensors of one stage as stacked areas, with the peak named.

import { legend } from "./bars.js";
import { chart } from "./charts.js";
import { el, section } from "./elements.js";
import { GIB, duration, gib, words } from "./quantities.js";
import { layerAt } from "./ranks.js";

// A phase too short to be seen is drawn this wide, as a part of forward and backward.
const LEAST_WIDTH = 0.12;
// Where in the forward pass a companion's pass stands, which runs after the policy's own.
const COMPANION_PLACE = 0.9;

/** Return the curves of a plan's memory; a pipeline's stage is chosen from a list. */
export function memoryOverTime(plan) {
  const { stages } = plan.memory;
  if (!stages.every((stage) => stage.moments?.length)) return null;
  const worst = stages.reduce((most, stage) => (stage.peak_bytes > most.peak_bytes ? stage : most));
  const place = el("div");
  const draw = (stage) => place.replaceChildren(curve(stage, plan), legend(everLive(stage), null));
  const choice = stages.length === 1 ? null : el("label", { class: "field narrow" }, "Stage", el("select",
    { onchange: (event) => draw(stages[event.target.selectedIndex]) },
    stages.map((stage) => el("option", { selected: stage === worst }, `Stage ${stage.stage}${stage === worst ? " (the fullest)" : ""}`))));
  draw(worst);
  return section("Memory over a step", choice, place, el("p", { class: "quiet" },
    "Live tensors while one micro-batch runs forward and backward (at the stage's fullest), then the optimizer's step. "
    + "Fragmentation and the runtime come on top; the dashed line is what they leave of the card."));
}

function curve(stage, plan) {
  const held = plan.sharding.stages[stage.stage];
  const spans = spansOf(plan);
  const moments = stage.moments.filter((moment) => placeOf(moment, stage, spans) !== null)
    .map((moment) => ({ ...moment, x: placeOf(moment, stage, spans) }));
  const peak = moments.reduce((most, moment) => (moment.allocated_bytes > most.allocated_bytes ? moment : most));
  const room = plan.memory.limit_bytes - stage.items.fragmentation - stage.items.runtime;
  return chart({
    name: "moments",
    title: `Stage ${stage.stage}: the peak is ${nameOf(peak, held)}, ${gib(peak.allocated_bytes)} of tensors`,
    x: { label: "One micro-batch, then the optimizer", bands: bandsOf(spans, moments) },
    y: { label: "Live tensors", format: gib, unit: GIB },
    areas: areasOf(moments, stage, spans),
    points: moments.map((moment) => ({ x: moment.x, y: moment.allocated_bytes, kind: moment === peak ? "chosen" : "small",
      label: `${nameOf(moment, held)}: ${gib(moment.allocated_bytes)} (${partsOf(moment.items)})` })),
    marks: room > 0 ? [{ y: room, label: `room for tensors, ${gib(room)}` }] : [],
    notes: [{ x: peak.x, y: peak.allocated_bytes, label: `Peak: ${nameOf(peak, held)}` }],
  });
}

/** Return how wide each phase is drawn: the seconds of one micro-batch and of the update, short ones widened. */
function spansOf({ step, layout }) {
  const { parts } = step;
  const forward = parts.forward / layout.gradient_accumulation_steps;
  const backward = (step.seconds - parts.forward - parts.pipeline_bubble - parts.data_parallel - parts.optimizer) / layout.gradient_accumulation_steps;
  const least = LEAST_WIDTH * (forward + backward);
  return { forward, backward, update: Math.max(parts.data_parallel + parts.optimizer, least), extra: least, seconds: { forward, backward, update: parts.data_parallel + parts.optimizer } };
}

function bandsOf({ forward, backward, update, extra, seconds }, moments) {
  const ends = [forward, forward + backward, forward + backward + update];
  const bands = [{ from: 0, to: ends[0], label: `forward ${duration(seconds.forward)}` }, { from: ends[0], to: ends[1], label: `backward ${duration(seconds.backward)}` },
    { from: ends[1], to: ends[2], label: `update ${duration(seconds.update)}` }];
  return moments.some((moment) => moment.phase === "evaluation") ? [...bands, { from: ends[2], to: ends[2] + extra, label: "evaluation" }] : bands;
}

/** Return when a moment comes; null for what comes before all steps. */
function placeOf({ phase, layer }, { layers }, { forward, backward, update, extra }) {
  if (phase === "backward") {
    const [first, last] = layers;
    return forward + backward * (layer === null ? 0 : (last - layer + 0.5) / (last - first + 1));
  }
  const places = { forward: 0, "companion forward": forward * COMPANION_PLACE, "forward and loss": forward,
    "root gradient reduction": forward + backward, "optimizer step": forward + backward + update / 2, evaluation: forward + backward + update + extra / 2 };
  return places[phase] ?? null;
}

/** Return the items stacked, in the colours that the bar of memory has; the optimizer's moment lasts to the end. */
function areasOf(moments, stage, spans) {
  const names = Object.keys(moments[0].items);
  const colours = Object.keys(stage.items);
  const end = Math.max(moments.at(-1).x, spans.forward + spans.backward + spans.update);
  const corners = [...moments, { ...moments.at(-1), x: end }];
  return names.map((name, index) => {
    const below = names.slice(0, index);
    const sum = (items, of) => of.reduce((total, each) => total + items[each], 0);
    return { colour: colours.indexOf(name), points: corners.map(({ x, items }) => [x, sum(items, below), sum(items, below) + items[name]]) };
  });
}

/** Return the most of each item that any moment holds: what is never there needs no colour. */
const everLive = ({ moments }) => Object.fromEntries(Object.keys(moments[0].items)
  .map((name) => [name, Math.max(...moments.map((moment) => moment.items[name]))]));

const nameOf = ({ phase, layer }, held) => (layer === null ? words(phase) : `${words(phase)} of layer ${layerAt(held, layer)}`);
const partsOf = (items) => Object.entries(items).filter(([, bytes]) => bytes > 0).map(([name, bytes]) => `${words(name)} ${gib(bytes)}`).join(", ");
