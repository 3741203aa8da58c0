// Jobs: start one, follow it, cancel it, list them all.

import { problemOf } from "./answers.js";
import { ask } from "./asking.js";
import { el, table } from "./elements.js";
import { markFields, offerConditional, remember, requestOf, restore } from "./forms.js";
import { follow } from "./jobprogress.js";
import { offerModels } from "./modelsearch.js";
import { words } from "./quantities.js";

const note = document.querySelector("#note");
const filters = document.querySelector("#filters");
const validation = document.querySelector("#validate");
const quantization = document.querySelector("#quantize");

async function start(form, path, body) {
  note.replaceChildren();
  try {
    const answer = await ask(path, { method: "POST", body });
    markFields(form, []);
    open((answer.job ?? answer).job_id);
  } catch (problem) {
    refuse(form, problem);
  }
}

function refuse(form, problem) {
  // Where no model is named it is read of the checkpoint's folder.
  for (const error of problem.errors ?? []) if (error.pointer === "/model/path") error.pointer = "/weights/path";
  markFields(form, problem.errors ?? []);
  note.replaceChildren(...problemOf(problem, form));
  note.scrollIntoView({ block: "nearest" });
}

function open(id) {
  const place = document.querySelector("#job");
  history.replaceState(null, "", `${location.pathname}${location.search}#${id}`);
  follow(id, place, list);
  place.scrollIntoView({ block: "nearest" });
  list();
}

async function list() {
  try {
    const { items } = await ask(`/jobs?${new URLSearchParams(requestOf(filters))}`);
    const jobs = table(items.length ? "Jobs, newest first" : "No jobs", ["Job", "Kind", "State", "Plan", "Begun", "Worker"],
      items.map((job) => [
        el("button", { type: "button", onclick: () => open(job.job_id) }, job.job_id.slice(0, 8)), job.kind, words(job.state),
        job.plan_id ? el("code", {}, job.plan_id.slice(0, 10)) : "", job.started_at ? new Date(job.started_at).toLocaleString() : "", job.worker ?? "",
      ]));
    jobs.classList.add("cards");
    document.querySelector("#list").replaceChildren(jobs);
  } catch (problem) {
    note.replaceChildren(...problemOf(problem));
  }
}

validation.addEventListener("submit", (event) => {
  event.preventDefault();
  const { plan_id: id, level } = requestOf(validation);
  start(validation, `/plans/${encodeURIComponent(id.trim())}/validate`, { level });
});
quantization.addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    const request = requestOf(quantization);
    start(quantization, "/quantize", { ...(request.weights ? { model: request.weights } : {}), ...request });
  } catch (problem) {
    refuse(quantization, new Error(`config.json is not JSON: ${problem.message}`));
  }
});
quantization.addEventListener("input", () => offerConditional(quantization));
offerConditional(quantization);
filters.addEventListener("input", () => { remember(filters); list(); });

const query = new URLSearchParams(location.search);
if (query.has("plan_id")) validation.elements.plan_id.value = query.get("plan_id");
restore(filters);
// A link to a job has its id behind the #.
if (location.hash) open(decodeURIComponent(location.hash.slice(1)));
else await list();
// Only to choose from; a key that may not list plans can still name one.
const [models, plans] = await Promise.all(["/models", "/plans"].map((path) => ask(path).catch(() => ({ items: [] }))));
offerModels(models.items);
document.querySelector("#plans").replaceChildren(...plans.items.map((plan) => el("option", { value: plan.plan_id }, plan.summary)));
