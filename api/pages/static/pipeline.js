// The pipeline's schedule as it runs: one row a stage, forward and backward passes, and the bubbles between them.

import { el, section, svg } from "./elements.js";
import { duration, percent, whole } from "./quantities.js";
import { chunksOf, layersText, runsText } from "./ranks.js";
import { pipelineSchedule } from "./schedule.js";

const ROW_HEIGHT = 26;
const WIDTH = 960;
// About a letter of 12 pixels, and a name that leaves most of the width to the passes.
const LETTER_WIDTH = 6.5;
const MOST_LABEL_LETTERS = 30;
// Of a longer step the beginning and the end are drawn: the middle goes on alike.
const MOST_SLOTS = 2400;
// Narrower passes have no room for a number.
const LEAST_NUMBERED = 14;

/** Return the drawing, or nothing where there is no pipeline. */
export function pipelinePart({ layout, step, sharding }) {
  const stages = layout.pipeline_parallel;
  const held = sharding.stages.map(chunksOf);
  if (stages === 1) return null;
  const all = layout.gradient_accumulation_steps;
  const chunks = layout.virtual_pipeline;
  const drawn = microBatchesDrawn(all, stages, chunks);
  const forward = step.parts.forward / all;
  const backward = (step.seconds - step.parts.forward - step.parts.pipeline_bubble - step.parts.data_parallel - step.parts.optimizer) / all;
  const schedule = pipelineSchedule({ stages, chunks, microBatches: drawn, forward, backward });
  const idle = step.parts.pipeline_bubble / step.seconds;
  return section("Pipeline schedule",
    el("p", {}, `${chunks > 1 ? `Interleaved, ${chunks} chunks a stage` : "1F1B"}, ${whole(all)} micro-batches: stages wait ${duration(step.parts.pipeline_bubble)} of each step, ${percent(idle)}.`),
    el("p", { class: "quiet" }, `Each pass takes what it takes on the slowest stage.${drawn < all ? ` Drawn with ${drawn} micro-batches; the middle goes on alike ${whole(all - drawn)} more times.` : ""}`),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Pipeline schedule" }, drawing(schedule, held)),
    el("ul", { class: "legend" }, [["forward", "forward (the number is the micro-batch)"], ["backward", `backward${chunks > 1 ? "; every other chunk of layers is darker or paler" : ""}`], ["idle", "bubble: the stage waits"]]
      .map(([kind, label]) => el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), label))));
}

function microBatchesDrawn(all, stages, chunks) {
  const most = Math.max(2 * stages, Math.floor(MOST_SLOTS / (2 * stages * chunks)));
  const few = Math.min(all, Math.min(most, 3 * stages));
  // Interleaving goes by groups of as many micro-batches as stages.
  return chunks > 1 ? Math.max(stages, few - (few % stages)) : few;
}

/** Return the drawing; `held` has the chunks of layers of each stage. */
function drawing({ slots, seconds, idleFraction }, held) {
  const stages = held.length;
  const height = stages * ROW_HEIGHT;
  const labels = labelsOf(held);
  const left = 8 + LETTER_WIDTH * Math.max(...labels.map((label) => label.length));
  const at = (time) => left + ((WIDTH - left) * time) / seconds;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "schedule", role: "img",
    "aria-label": `${stages} stages; in the drawing each waits ${percent(idleFraction)} of the time` },
  Array.from({ length: stages }, (_, stage) => svg("g", {},
    svg("rect", { x: left, y: stage * ROW_HEIGHT + 1, width: WIDTH - left, height: ROW_HEIGHT - 2, class: "idle" }),
    svg("text", { x: 0, y: stage * ROW_HEIGHT + 17 }, labels[stage], svg("title", {}, layersText(held[stage]))))),
  slots.map((slot) => pass(slot, held[slot.stage], at)));
}

/** Return what each row is called: the stage with its layers, where all are short enough. */
function labelsOf(held) {
  const whole = held.map((chunks, stage) => `Stage ${stage}: ${runsText(chunks)}`);
  return Math.max(...whole.map((label) => label.length)) <= MOST_LABEL_LETTERS ? whole : held.map((_, stage) => `Stage ${stage}`);
}

function pass({ stage, chunk, microBatch, isForward, start, end }, chunks, at) {
  const width = at(end) - at(start);
  const x = at(start);
  const y = stage * ROW_HEIGHT + 1;
  const name = `${isForward ? "Forward" : "Backward"} of micro-batch ${microBatch} through ${layersText([chunks[chunk] ?? chunks[0]])}`;
  return svg("g", {},
    svg("rect", { x, y, width, height: ROW_HEIGHT - 2, class: `pass ${isForward ? "forward" : "backward"}${chunk % 2 ? " odd" : ""}` }, svg("title", {}, name)),
    width < LEAST_NUMBERED ? null : svg("text", { x: x + width / 2, y: y + 16, class: "number", "text-anchor": "middle" }, microBatch));
}
