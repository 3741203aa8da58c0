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

/** Return runs of layers: 0–3, 16–19. A chunk that has the embedding or the head alone ends before it begins. */
export const runsText = (chunks) => chunks.filter(([first, last]) => first <= last)
  .map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ") || "none";

/** Return the layers of a stage in words: of each chunk where it has several. */
export const layersText = (chunks) => (runsText(chunks) === "none" ? "no layers" : `layers ${runsText(chunks)}`);

/** Return [first, last] of each chunk of a stage; plans that were stored before there were chunks have one. */
export const chunksOf = ({ layers, chunks }) => chunks ?? [layers];
