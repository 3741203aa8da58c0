// Where a rank stands in the mesh.

/** Return a rank's place along each axis of a shape whose last axis counts fastest. */
export function coordinates(rank, shape) {
  const found = [];
  let rest = rank;
  for (const size of [...shape].reverse()) {
    found.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return found;
}

/** Return which of the expert ranks a rank is: experts are divided over the ranks of each stage in their own way. */
export function expertCoordinate(rank, mesh) {
  const perStage = mesh.shape.reduce((product, size, index) => (mesh.order[index] === "pipeline" ? product : product * size), 1);
  return Math.floor((rank % perStage) / mesh.expert_tensor_parallel) % mesh.expert_parallel;
}

/**
 * Return [first, last] of each run of layers that a stage holds: in chunks, each round of chunks goes through all stages.
 * Source: Megatron-LM, megatron/core/transformer/transformer_layer.py, get_transformer_layer_offset.
 */
export function layersHeld({ stage, layers: [first, last] }, stages, chunks) {
  const ofChunk = (last - first + 1) / chunks;
  const ofRound = (stages.at(-1).layers[1] + 1) / chunks;
  if (chunks === 1 || !Number.isInteger(ofChunk) || !Number.isInteger(ofRound)) return [[first, last]];
  return Array.from({ length: chunks }, (_, round) => round * ofRound + stage * ofChunk).map((start) => [start, start + ofChunk - 1]);
}

/** Return the layers of a stage in words. */
export const layersText = (stage, stages, chunks) => `layers ${layersHeld(stage, stages, chunks).map((run) => run.join("–")).join(", ")}`;
