// The schedule of a pipeline: 1F1B, or interleaved where a stage has several chunks of layers.
//
// Each stage works through a list of its own, in order, each entry as soon as what it needs is there.
// Sources: Narayanan et al. 2021, arXiv:2104.04473, figures 3 and 4; the order of the interleaved schedule and its
// number of warm-up passes as Megatron-LM's schedules.py has them.

/**
 * Return {slots: [{stage, chunk, microBatch, isForward, start, end}], seconds, idleFraction}.
 * `forward` and `backward` are the seconds of one micro-batch on one stage, all of its chunks together.
 */
export function pipelineSchedule({ stages, chunks, microBatches, forward, backward }) {
  const orders = Array.from({ length: stages }, (_, stage) => orderOf(stage, { stages, chunks, microBatches }));
  const spans = { true: forward / chunks, false: backward / chunks };
  const ends = new Map();
  const next = new Array(stages).fill(0);
  const free = new Array(stages).fill(0);
  const slots = [];
  for (let left = orders.reduce((sum, order) => sum + order.length, 0); left > 0;) {
    const before = left;
    for (let stage = 0; stage < stages; stage += 1) {
      for (let pass = orders[stage][next[stage]]; pass; pass = orders[stage][next[stage]]) {
        const ready = readyAt(pass, stage, stages, chunks, ends);
        if (ready === undefined) break;
        const start = Math.max(free[stage], ready);
        free[stage] = start + spans[pass.isForward];
        ends.set(nameOf(pass.isForward, pass.microBatch, pass.chunk * stages + stage), free[stage]);
        slots.push({ ...pass, stage, start, end: free[stage] });
        next[stage] += 1;
        left -= 1;
      }
    }
    if (left === before) throw new Error("The schedule waits for itself.");
  }
  const seconds = Math.max(...free);
  return { slots, seconds, idleFraction: 1 - (microBatches * (forward + backward)) / seconds };
}

/** Return what a stage does, in its order: forward passes to warm up, then one of each in turn, then what is left. */
function orderOf(stage, { stages, chunks, microBatches }) {
  const total = microBatches * chunks;
  const warmUp = Math.min(total, chunks === 1 ? stages - stage - 1 : 2 * (stages - stage - 1) + (chunks - 1) * stages);
  const passes = (isForward) => Array.from({ length: total }, (_, index) => passOf(index, isForward, { stages, chunks }));
  const forwards = passes(true);
  const backwards = passes(false);
  const order = forwards.slice(0, warmUp);
  for (let index = warmUp; index < total; index += 1) order.push(forwards[index], backwards[index - warmUp]);
  return [...order, ...backwards.slice(total - warmUp)];
}

/** Return the index-th pass: groups of as many micro-batches as stages go through one chunk after another. */
function passOf(index, isForward, { stages, chunks }) {
  if (chunks === 1) return { chunk: 0, microBatch: index, isForward };
  const group = Math.floor(index / (stages * chunks));
  const within = index % (stages * chunks);
  const place = Math.floor(within / stages);
  return { chunk: isForward ? place : chunks - 1 - place, microBatch: group * stages + (within % stages), isForward };
}

/** Return when a pass can begin: after the layers before it, backward after those behind it; undefined while unknown. */
function readyAt({ chunk, microBatch, isForward }, stage, stages, chunks, ends) {
  const place = chunk * stages + stage;
  if (isForward) return place === 0 ? 0 : ends.get(nameOf(true, microBatch, place - 1));
  const isLast = place === stages * chunks - 1;
  return ends.get(isLast ? nameOf(true, microBatch, place) : nameOf(false, microBatch, place + 1));
}

const nameOf = (isForward, microBatch, place) => `${isForward ? "f" : "b"} ${microBatch} ${place}`;
