// The device mesh: every GPU in its node, with its coordinates and what it holds.

import { el, section, table } from "./elements.js";
import { whole, words } from "./quantities.js";

// The page stays quick with this many; beyond, the pattern goes on.
const MOST_GPUS_DRAWN = 512;
const STAGE_COLOURS = 8;

/** Return the mesh of a plan; ranks count in the mesh's order, its last axis fastest. */
export function meshPart(plan, gpusPerNode) {
  const { order, shape } = plan.sharding.mesh;
  const total = shape.reduce((product, size) => product * size, 1);
  const drawn = Math.min(total, MOST_GPUS_DRAWN);
  const told = el("output", { class: "told", "aria-live": "polite" }, "Point at a GPU, or reach it with the Tab key.");
  const nodes = [];
  for (let first = 0; first < drawn; first += gpusPerNode) {
    const cells = [];
    for (let rank = first; rank < Math.min(drawn, first + gpusPerNode); rank += 1) cells.push(gpuCell(plan, rank, coordinates(rank, shape), told));
    nodes.push(el("div", { class: "node" }, el("div", { class: "node-name" }, `Node ${first / gpusPerNode}`), el("div", { class: "gpus" }, cells)));
  }
  const axes = order.map((axis, index) => `${words(axis)} ${shape[index]}`).join(" × ");
  return section("Device mesh", el("p", { class: "quiet" }, `${axes}. Colours tell pipeline stages apart; d0 is the first place along data, t1 the second along tensor, and so on.`
    + (total > drawn ? ` The first ${whole(drawn)} of ${whole(total)} GPUs.` : "")), el("div", { class: "mesh" }, nodes), told, shards(plan));
}

function coordinates(rank, shape) {
  const found = [];
  for (const size of [...shape].reverse()) {
    found.unshift(rank % size);
    rank = Math.floor(rank / size);
  }
  return found;
}

function gpuCell(plan, rank, at, told) {
  const { order, shape } = plan.sharding.mesh;
  const axes = order.map((axis, index) => [axis, at[index], shape[index]]).filter(([, , size]) => size > 1);
  const stageIndex = at[order.indexOf("pipeline")] ?? 0;
  const held = plan.sharding.stages.filter((stage) => stage.stage % shape[Math.max(0, order.indexOf("pipeline"))] === stageIndex);
  const words = `Rank ${rank}${axes.map(([axis, index, size]) => `, ${axis} ${index} of ${size}`).join("")}: ${held.map(stageText).join("; ")}`;
  const tell = () => { told.textContent = words; };
  return el("button", { type: "button", class: `gpu colour-${stageIndex % STAGE_COLOURS}`, "aria-label": words, onmouseenter: tell, onfocus: tell, onclick: tell },
    el("span", { class: "rank" }, rank), axes.map(([axis, index]) => el("span", {}, `${axis[0]}${index}`)));
}

function stageText(stage) {
  const more = [stage.embedding ? "embedding" : null, stage.head ? "head" : null].filter(Boolean);
  return `layers ${stage.layers.join("–")}${more.length ? ` with ${more.join(" and ")}` : ""}`;
}

const shards = (plan) => el("details", {}, el("summary", {}, "What one GPU holds of each weight"),
  table("Shards", ["Weight", "Shape", "Split", "Held"], plan.sharding.weights.map((weight) =>
    [weight.name, weight.shape.join(" × "), weight.split, weight.local_shape.join(" × ")])));
