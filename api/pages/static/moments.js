// Memory over the time of a step: the live tensors of one stage as stacked areas, the peak named, and a trace's over them.

import { ask } from "./asking.js";
import { legend } from "./bars.js";
import { chart } from "./charts.js";
import { distanceText, lineOf, nameOf, placed, thinned } from "./curves.js";
import { el, section } from "./elements.js";
import { GIB, duration, gib, words } from "./quantities.js";

// A phase too short to be seen is drawn this wide, as a part of forward and backward.
const LEAST_WIDTH = 0.12;
// Of a plan's latest validations, among which its trace is looked for.
const LATEST_JOBS = 5;

/** Return the curves of a plan's memory; a pipeline's stage is chosen from a list, and a trace is drawn once it is found. */
export function memoryOverTime(plan, planId) {
  const { stages } = plan.memory;
  if (!stages.every((stage) => stage.moments?.length)) return null;
  const worst = stages.reduce((most, stage) => (stage.peak_bytes > most.peak_bytes ? stage : most));
  const place = el("div");
  let traced = new Map();
  let shown = worst;
  const draw = () => place.replaceChildren(...curve(shown, plan, traced.get(shown.stage)));
  const choice = stages.length === 1 ? null : el("label", { class: "field narrow" }, "Stage", el("select",
    { onchange: (event) => { shown = stages[event.target.selectedIndex]; draw(); } },
    stages.map((stage) => el("option", { selected: stage === worst }, `Stage ${stage.stage}${stage === worst ? " (the fullest)" : ""}`))));
  draw();
  tracedStages(planId).then((found) => {
    traced = found;
    if (found.size) draw();
  });
  return section("Memory over a step", choice, place, el("p", { class: "quiet" },
    "Live tensors while one micro-batch runs forward and backward (at the stage's fullest), then the optimizer's step. "
    + "Fragmentation and the runtime come on top; the dashed line is what they leave of the card."));
}

/** Return the stages of the plan's latest trace by their numbers; none where it has none, or nobody may see it. */
async function tracedStages(planId) {
  const query = new URLSearchParams({ kind: "validate", state: "succeeded", plan_id: planId, limit: LATEST_JOBS });
  const { items } = await ask(`/jobs?${query}`).catch(() => ({ items: [] }));
  const trace = items.find(({ result }) => result?.level === "trace" && result.stages?.some((stage) => stage.moments?.length));
  return new Map((trace?.result.stages ?? []).filter((stage) => stage.moments?.length).map((stage) => [stage.stage, stage]));
}

function curve(stage, plan, traced) {
  const spans = spansOf(plan);
  const count = stage.layers[1] - stage.layers[0] + 1;
  const moments = placed(stage.moments, spans, count, stage.layers);
  const peak = moments.reduce((most, moment) => (moment.allocated_bytes > most.allocated_bytes ? moment : most));
  const room = plan.memory.limit_bytes - stage.items.fragmentation - stage.items.runtime;
  return [chart({
    name: "moments",
    title: `Stage ${stage.stage}: the peak is ${nameOf(peak)}, ${gib(peak.allocated_bytes)} of tensors`,
    x: { label: "One micro-batch, then the optimizer", bands: bandsOf(spans, moments) },
    y: { label: "Live tensors", format: gib, unit: GIB },
    areas: areasOf(moments, stage, spans),
    lines: traced ? [{ points: lineOf(placed(traced.moments, spans, count, stage.layers), "traced_bytes"), kind: "traced" }] : [],
    points: thinned(moments, peak).map((moment) => ({ x: moment.x, y: moment.allocated_bytes, kind: moment === peak ? "chosen" : "small",
      label: `${nameOf(moment)}: ${gib(moment.allocated_bytes)} (${partsOf(moment.items)})` })),
    marks: room > 0 ? [{ y: room, label: `room for tensors, ${gib(room)}` }] : [],
    notes: [{ x: peak.x, y: peak.allocated_bytes, label: `Peak: ${nameOf(peak)}` }],
  }), legend(everLive(stage), null), traced ? el("p", {}, `The thick line is the plan's trace. ${distanceText(traced)}`) : null].filter(Boolean);
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

const partsOf = (items) => Object.entries(items).filter(([, bytes]) => bytes > 0).map(([name, bytes]) => `${words(name)} ${gib(bytes)}`).join(", ");
