// One job as it goes: server-sent events while it runs, its result once it is done.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { el } from "./elements.js";
import { eventsOf } from "./events.js";
import { estimateParts } from "./jobestimate.js";
import { resultParts } from "./jobresult.js";
import { duration, gib, whole, words } from "./quantities.js";

const TICK_MILLISECONDS = 1000;
const STAGE = "stage";
const FINISHED = new Set(["succeeded", "failed", "cancelled"]);
let following = new AbortController();

/** Follow a job in a place of the page until it is finished; `changed` is called whenever its state is another. */
export async function follow(id, place, changed) {
  following.abort();
  following = new AbortController();
  const { signal } = following;
  const path = `/jobs/${encodeURIComponent(id)}`;
  const ticking = setInterval(() => tick(place), TICK_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(ticking));
  try {
    const job = await ask(path, { signal });
    if (draw(job, place)) return;
    const pace = paceFrom(job.progress);
    for await (const event of eventsOf(`${path}/events`, signal)) {
      if (event.kind === "progress") {
        showProgress(JSON.parse(event.data), pace, place);
        continue;
      }
      const isFinished = draw(await ask(path, { signal }), place);
      changed();
      if (isFinished) return;
    }
  } catch (problem) {
    if (problem.name !== "AbortError") place.replaceChildren(...problemOf(problem));
  } finally {
    clearInterval(ticking);
  }
}

/** Say how long a job has been running, whether or not it says how far it is. */
function tick(place) {
  const clock = place.querySelector("[data-started]");
  if (clock) clock.textContent = `Running for ${duration(Math.max(0, Math.round((Date.now() - Date.parse(clock.dataset.started)) / 1000)))}`;
}

/** Draw a job; answers whether it is finished. */
function draw(job, place) {
  const isFinished = FINISHED.has(job.state);
  const cancel = el("button", { type: "button", onclick: async () => {
    cancel.disabled = true;
    cancel.textContent = "Cancelling …";
    await ask(`/jobs/${encodeURIComponent(job.job_id)}/cancel`, { method: "POST" }).catch((problem) => place.append(...problemOf(problem)));
  } }, "Cancel");
  place.replaceChildren(...[
    el("h2", {}, `${words(job.kind)}: ${job.state}`),
    el("p", { class: "quiet" }, el("code", {}, job.job_id), job.worker ? ` on ${job.worker}` : "", tookText(job)),
    isFinished ? null : el("div", { class: "progress" }, el("progress", { "aria-label": "Progress" }), el("p", { class: "told" }, job.state === "queued" ? "Waiting for a worker …" : "Starting …"),
      job.state === "running" ? el("p", { class: "quiet", "data-started": job.started_at }) : null),
    isFinished ? null : cancel,
    job.error ? el("div", { class: "problem" }, job.error.detail ?? job.error.message ?? JSON.stringify(job.error)) : null,
    ...(job.estimate && !job.result ? estimateParts(job.estimate) : []),
    ...(job.result ? resultParts(job) : []),
  ].filter(Boolean));
  if (!isFinished && job.progress.total) showProgress(job.progress, null, place);
  tick(place);
  return isFinished;
}

const tookText = ({ started_at: started, finished_at: finished }) => (started && finished ? `, took ${duration((new Date(finished) - new Date(started)) / 1000)}` : "");

/** Return what is left at the rate since `progress`: events that are told again count for nothing. */
function paceFrom(progress) {
  const begun = { at: performance.now(), done: progress.done };
  return ({ done, total }) => {
    const rate = (done - begun.done) / ((performance.now() - begun.at) / 1000);
    return rate > 0 ? { rate, seconds: (total - done) / rate } : null;
  };
}

function showProgress(progress, pace, place) {
  const bar = place.querySelector("progress");
  if (!bar) return;
  if (progress.total) { bar.max = progress.total; bar.value = progress.done; }
  const parts = [amountText(progress)];
  const left = progress.unit === STAGE ? null : pace?.(progress);
  // A worker that knows its own rate says it in its message.
  if (left && !/ left$/.test(progress.message)) parts.push(`${left.rate.toPrecision(2)} a second, ${duration(left.seconds)} left`);
  if (progress.message) parts.push(progress.message);
  place.querySelector(".told").textContent = parts.join(" · ");
}

/** Return how much is done; of stages, which take unlike times, which one is under way. */
function amountText({ done, total, unit }) {
  if (unit === STAGE) return `Stage ${Math.min(done + 1, total)} of ${total}`;
  return unit === "bytes" ? `${gib(done)} of ${gib(total)}` : `${whole(done)} of ${whole(total)} ${unit}`;
}
