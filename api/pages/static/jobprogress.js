// One job as it goes: server-sent events while it runs, its result once it is done.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { stackedBar, legend } from "./bars.js";
import { el, table } from "./elements.js";
import { duration, gib, percent, whole, words } from "./quantities.js";

const FINISHED = new Set(["succeeded", "failed", "cancelled"]);
const MOST_TENSORS_LISTED = 200;
let stream;

/** Follow a job in a place of the page until it is finished; `changed` is called whenever its state is another. */
export async function follow(id, place, changed) {
  stream?.close();
  const path = `/jobs/${encodeURIComponent(id)}`;
  try {
    if (draw(await ask(path), place)) return;
  } catch (problem) {
    place.replaceChildren(...problemOf(problem));
    return;
  }
  const events = new EventSource(`${path}/events`);
  stream = events;
  const begun = { at: null, done: 0 };
  events.addEventListener("progress", (event) => showProgress(JSON.parse(event.data), begun, place));
  const reload = async () => {
    if (events !== stream) return;
    const job = await ask(path).catch(() => null);
    if (job && draw(job, place)) events.close();
    changed();
  };
  events.addEventListener("state", reload);
  events.addEventListener("result", reload);
}

/** Draw a job; answers whether it is finished. */
function draw(job, place) {
  const isFinished = FINISHED.has(job.state);
  const cancel = el("button", { type: "button", onclick: async () => {
    cancel.disabled = true;
    await ask(`/jobs/${encodeURIComponent(job.job_id)}/cancel`, { method: "POST" }).catch((problem) => place.append(...problemOf(problem)));
  } }, "Cancel");
  place.replaceChildren(...[
    el("h2", {}, `${words(job.kind)}: ${job.state}`),
    el("p", { class: "quiet" }, el("code", {}, job.job_id), job.worker ? ` on ${job.worker}` : ""),
    isFinished ? null : el("div", { class: "progress" }, el("progress", { "aria-label": "Progress" }), el("p", { class: "told" }, job.state === "queued" ? "Waiting for a worker …" : "Running …")),
    isFinished ? null : cancel,
    job.error ? el("div", { class: "problem" }, job.error.detail ?? job.error.message ?? JSON.stringify(job.error)) : null,
    ...(job.result ? resultParts(job) : []),
  ].filter(Boolean));
  if (!isFinished && job.progress.total) showProgress(job.progress, { at: null }, place);
  return isFinished;
}

function showProgress(progress, begun, place) {
  const bar = place.querySelector("progress");
  if (!bar) return;
  if (progress.total) { bar.max = progress.total; bar.value = progress.done; }
  const now = performance.now() / 1000;
  if (begun.at === null) Object.assign(begun, { at: now, done: progress.done });
  const rate = (progress.done - begun.done) / (now - begun.at);
  const left = rate > 0 ? `, ${rate.toPrecision(2)} a second, ${duration((progress.total - progress.done) / rate)} left` : "";
  place.querySelector(".told").textContent = `${progress.message ? `${progress.message}: ` : ""}${whole(progress.done)} of ${whole(progress.total)} ${progress.unit}${left}`;
}

function resultParts(job) {
  return job.kind === "validate" ? validationParts(job.result) : quantizationParts(job.result);
}

function validationParts(result) {
  const parts = [el("p", { class: "verdict" }, el("strong", {}, words(result.verdict ?? "")),
    result.relative_error == null ? "" : ` predicted ${percent(Math.abs(result.relative_error))} ${result.relative_error < 0 ? "below" : "above"} measured`)];
  const sides = ["predicted", "measured"].filter((side) => result[side]?.items && Object.keys(result[side].items).length);
  const scale = Math.max(...sides.map((side) => total(result[side].items)), 1);
  for (const side of sides) {
    parts.push(stackedBar({ title: `${side}: ${gib(total(result[side].items))}`, parts: result[side].items, format: gib, scale }), legend(result[side].items, gib));
  }
  return [...parts, factsOf(result)];
}

function quantizationParts(result) {
  const sums = result.total ?? result;
  const sizes = ["original_bytes", "quantized_bytes"].filter((name) => sums[name] != null);
  const parts = sizes.map((name) => stackedBar({ title: `${words(name)}: ${gib(sums[name])}`, parts: { [name]: sums[name] }, format: gib, scale: sums.original_bytes }));
  if (Array.isArray(result.tensors)) {
    const listed = result.tensors.slice(0, MOST_TENSORS_LISTED);
    parts.push(table(`Tensors (${listed.length} of ${result.tensors.length})`, ["Tensor", "Before", "After", "Relative error", "SQNR, dB"],
      listed.map((tensor) => [tensor.name, gib(tensor.original_bytes), gib(tensor.quantized_bytes), Number(tensor.relative_error).toPrecision(3), Number(tensor.sqnr_db).toFixed(1)])));
  }
  return [...parts, factsOf(result)];
}

const total = (items) => Object.values(items).reduce((sum, bytes) => sum + bytes, 0);

function factsOf(result) {
  return el("details", {}, el("summary", {}, "The whole result"), el("pre", { tabindex: 0 }, JSON.stringify(result, null, 2)));
}
