// The device mesh: every GPU in its node, with its coordinates and what it holds.

import { el, section, table } from "./elements.js";
import { counted, gib, whole, words } from "./quantities.js";
import { coordinates, expertCoordinate, layersText } from "./ranks.js";

// The page stays quick with this many; beyond, the pattern goes on.
const MOST_GPUS_DRAWN = 512;
const STAGE_COLOURS = 8;

/** Return the mesh of a plan; ranks count in the mesh's order, its last axis fastest. */
export function meshPart(plan, gpusPerNode) {
  const { order, shape } = plan.sharding.mesh;
  const total = shape.reduce((product, size) => product * size, 1);
  const drawn = Math.min(total, MOST_GPUS_DRAWN);
  const told = el("div", { class: "holds" });
  const tell = (rank) => told.replaceChildren(...holdings(plan, rank, Math.floor(rank / gpusPerNode)));
  const nodes = [];
  for (let first = 0; first < drawn; first += gpusPerNode) {
    const cells = [];
    for (let rank = first; rank < Math.min(drawn, first + gpusPerNode); rank += 1) cells.push(gpuCell(plan, rank, tell));
    nodes.push(el("div", { class: "node" }, el("div", { class: "node-name" }, `Node ${first / gpusPerNode}`), el("div", { class: "gpus" }, cells)));
  }
  tell(0);
  const axes = order.map((axis, index) => `${words(axis)} ${shape[index]}`).join(" × ");
  return section("Device mesh", el("p", { class: "quiet" }, `${axes}. Colours tell pipeline stages apart; d0 is the first place along data, t1 the second along tensor, and so on. `
    + `Point at a GPU, or reach it with the Tab key, for what it holds.${total > drawn ? ` The first ${whole(drawn)} of ${whole(total)} GPUs are drawn.` : ""}`),
  el("div", { class: "mesh", tabindex: 0, role: "region", "aria-label": "Device mesh" }, nodes), told);
}

/** Return [[axis, coordinate, size]] of a rank, axes of size one left away. */
function placesOf({ mesh }, rank) {
  const at = coordinates(rank, mesh.shape);
  const places = mesh.order.map((axis, index) => [axis, at[index], mesh.shape[index]]);
  if (mesh.expert_parallel > 1) places.push(["expert", expertCoordinate(rank, mesh), mesh.expert_parallel]);
  return places.filter(([, , size]) => size > 1);
}

const stageOf = ({ mesh }, rank) => coordinates(rank, mesh.shape)[mesh.order.indexOf("pipeline")];

function gpuCell(plan, rank, tell) {
  const places = placesOf(plan.sharding, rank);
  const spoken = `GPU ${rank}${places.map(([axis, at]) => `, ${axis} ${at}`).join("")}, ${stageText(plan, stageOf(plan.sharding, rank))}`;
  const show = () => tell(rank);
  return el("button", { type: "button", class: `gpu colour-${stageOf(plan.sharding, rank) % STAGE_COLOURS}`, "aria-label": spoken, onmouseenter: show, onfocus: show, onclick: show },
    el("span", { class: "rank" }, rank), places.map(([axis, at]) => el("span", {}, `${axis[0]}${at}`)));
}

function stageText({ sharding: { stages }, layout }, number) {
  const stage = stages[number];
  const more = [stage.embedding ? "embedding" : null, stage.head ? "head" : null].filter(Boolean);
  return `${layersText(stage, stages, layout.virtual_pipeline)}${more.length ? ` with ${more.join(" and ")}` : ""}`;
}

function holdings(plan, rank, node) {
  const { sharding, memory, layout } = plan;
  const number = stageOf(sharding, rank);
  const places = placesOf(sharding, rank).map(([axis, at, size]) => `${axis} ${at} of ${size}`);
  const rows = sharding.weights.filter((weight) => weight.stage_copies[number] > 0).map((weight) => [weight.name, whole(weight.stage_copies[number]), weight.shape.join(" × "),
    weight.axis === null ? words(weight.split) : `${words(weight.split)}, dimension ${weight.axis}`, weight.local_shape.join(" × ")]);
  const further = layout.zero_stage === 3 ? ` ZeRO stage 3 cuts each of these once more, over ${layout.shard_group} GPUs.` : "";
  return [el("p", {}, el("strong", {}, `GPU ${rank} in node ${node}`), `${places.length ? `: ${places.join(", ")}` : ""}. Stage ${number} holds ${stageText(plan, number)}; `
    + `${gib(memory.stages[number].peak_bytes)} at its peak.${further}`),
  el("details", {}, el("summary", {}, `Its ${counted(rows.length, "kind")} of weights`), table(`Weights of GPU ${rank}`, ["Weight", "How many", "Shape", "Split", "Held"], rows))];
}
