// The device mesh: every GPU in its node, with its coordinates and what it holds.

import { el, section, table } from "./elements.js";
import { counted, gib, whole, words } from "./quantities.js";
import { chunksOf, coordinates, expertCoordinate, layersText } from "./ranks.js";

// The page stays quick with this many; the others are a page on.
const MOST_GPUS_DRAWN = 512;
const STAGE_COLOURS = 8;
// As the style sheet sets a node's GPUs.
const GPUS_A_ROW = 4;
const KEYS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: GPUS_A_ROW, ArrowUp: -GPUS_A_ROW, Home: -Infinity, End: Infinity };

// The GPU that is told of: kept from answer to answer.
let chosen = 0;

/** Return the mesh of a plan; ranks count in the mesh's order, its last axis fastest. */
export function meshPart(plan, gpusPerNode) {
  const { order, shape } = plan.sharding.mesh;
  const total = shape.reduce((product, size) => product * size, 1);
  const aPage = Math.max(1, Math.floor(MOST_GPUS_DRAWN / gpusPerNode)) * gpusPerNode;
  const told = el("div", { class: "holds" });
  const grid = el("div", { class: "mesh", role: "region", "aria-label": "Device mesh" });
  const cellOf = (rank) => grid.querySelector(`[data-rank="${rank}"]`);
  const pages = total > aPage ? pager(total, aPage, gpusPerNode, (rank) => show(rank)) : null;

  function tell(rank) {
    cellOf(chosen)?.setAttribute("tabindex", -1);
    chosen = rank;
    cellOf(rank).setAttribute("tabindex", 0);
    told.replaceChildren(...holdings(plan, rank, Math.floor(rank / gpusPerNode)));
  }
  function show(rank) {
    const first = rank - (rank % aPage);
    if (!cellOf(rank)) grid.replaceChildren(...nodesFrom(first, Math.min(total, first + aPage), plan, gpusPerNode));
    pages?.tell(rank, first);
    tell(rank);
  }
  const pointed = ({ target }) => { const cell = target.closest("[data-rank]"); if (cell) tell(Number(cell.dataset.rank)); };
  for (const kind of ["mouseover", "focusin", "click"]) grid.addEventListener(kind, pointed);
  grid.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    show(Math.max(0, Math.min(total - 1, chosen + KEYS[event.key])));
    cellOf(chosen).focus();
  });

  show(Math.min(chosen, total - 1));
  return section("Device mesh", el("p", { class: "quiet" }, `${order.map((axis, index) => `${words(axis)} ${shape[index]}`).join(" × ")}. ${lettersText(plan.sharding)}`
    + "Point at a GPU, or go to it with the Tab and the arrow keys, for what it holds."), pages?.part, grid, told);
}

/** Return the letters of a cell in words, for the axes that it names. */
function lettersText({ mesh }) {
  const axes = placesOf({ mesh }, 0).map(([axis]) => axis);
  const letters = axes.map((axis, index) => `${axis[0]}${index ? "" : " is the place"} along ${axis}`).join(", ");
  return `${axes.includes("pipeline") ? "Colours tell pipeline stages apart. " : ""}${letters ? `Of each GPU ${letters}, counted from 0. ` : ""}`;
}

/** Return a row that leads to other GPUs than the first ones, and how to tell it where the reader is. */
function pager(total, aPage, gpusPerNode, go) {
  let from = 0;
  const where = el("span", { role: "status" });
  const field = el("input", { type: "number", inputmode: "numeric", min: 0, max: total - 1, oninput: () => {
    const rank = Number(field.value);
    if (field.value !== "" && Number.isInteger(rank) && rank >= 0 && rank < total) go(rank);
  } });
  const button = (text, step) => el("button", { type: "button", onclick: () => go(from + step) }, text);
  const [earlier, later] = [button("Earlier nodes", -aPage), button("Later nodes", aPage)];
  const part = el("div", { class: "row pager" }, earlier, later, el("label", { class: "field inline" }, "Go to GPU", field), where);
  return { part, tell: (rank, first) => {
    from = first;
    const last = Math.min(total, first + aPage) - 1;
    earlier.disabled = first === 0;
    later.disabled = last === total - 1;
    if (Number(field.value) !== rank || field.value === "") field.value = rank;
    where.textContent = `Nodes ${whole(Math.floor(first / gpusPerNode))} to ${whole(Math.floor(last / gpusPerNode))} of ${whole(Math.ceil(total / gpusPerNode))}: `
      + `GPUs ${whole(first)} to ${whole(last)} of ${whole(total)}.`;
  } };
}

function nodesFrom(first, end, plan, gpusPerNode) {
  const nodes = [];
  for (let node = first; node < end; node += gpusPerNode) {
    const cells = [];
    for (let rank = node; rank < Math.min(end, node + gpusPerNode); rank += 1) cells.push(gpuCell(plan, rank));
    nodes.push(el("div", { class: "node" }, el("div", { class: "node-name" }, `Node ${node / gpusPerNode}`), el("div", { class: "gpus" }, cells)));
  }
  return nodes;
}

/** Return [[axis, coordinate, size]] of a rank, axes of size one left away. */
function placesOf({ mesh }, rank) {
  const at = coordinates(rank, mesh.shape);
  const places = mesh.order.map((axis, index) => [axis, at[index], mesh.shape[index]]);
  if (mesh.expert_parallel > 1) places.push(["expert", expertCoordinate(rank, mesh), mesh.expert_parallel]);
  return places.filter(([, , size]) => size > 1);
}

const stageOf = ({ mesh }, rank) => coordinates(rank, mesh.shape)[mesh.order.indexOf("pipeline")];

function gpuCell(plan, rank) {
  const places = placesOf(plan.sharding, rank);
  const spoken = `GPU ${rank}${places.map(([axis, at]) => `, ${axis} ${at}`).join("")}, ${stageText(plan, stageOf(plan.sharding, rank))}`;
  return el("button", { type: "button", class: `gpu colour-${stageOf(plan.sharding, rank) % STAGE_COLOURS}`, "data-rank": rank, tabindex: -1 },
    el("span", { class: "spoken" }, spoken), el("span", { class: "rank", "aria-hidden": "true" }, rank), places.map(([axis, at]) => el("span", { "aria-hidden": "true" }, `${axis[0]}${at}`)));
}

function stageText({ sharding: { stages } }, number) {
  const stage = stages[number];
  const more = [stage.embedding ? "embedding" : null, stage.head ? "head" : null].filter(Boolean);
  return `${layersText(chunksOf(stage))}${more.length ? ` with ${more.join(" and ")}` : ""}`;
}

function holdings(plan, rank, node) {
  const { sharding, memory, layout } = plan;
  const number = stageOf(sharding, rank);
  const places = placesOf(sharding, rank).map(([axis, at, size]) => `${axis} ${at} of ${size}`);
  const rows = sharding.weights.filter((weight) => weight.stage_copies[number] > 0).map((weight) => [weight.name, whole(weight.stage_copies[number]), weight.shape.join(" × "),
    weight.axis === null ? words(weight.split) : `${words(weight.split)}, dimension ${weight.axis}`, weight.local_shape.join(" × ")]);
  const further = layout.zero_stage === 3 ? " ZeRO stage 3 cuts each of these once more, over its shard group." : "";
  return [el("p", {}, el("strong", {}, `GPU ${rank} in node ${node}`), `${places.length ? `: ${places.join(", ")}` : ""}. Stage ${number} holds ${stageText(plan, number)}; `
    + `${gib(memory.stages[number].peak_bytes)} at its peak.${further}`),
  el("details", {}, el("summary", {}, `Its ${counted(rows.length, "kind")} of weights`), table(`Weights of GPU ${rank}`, ["Weight", "How many", "Shape", "Split", "Held"], rows))];
}
