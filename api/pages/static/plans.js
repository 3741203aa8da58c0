// The list of stored plans.

import { problemOf } from "./answers.js";
import { ask, debounced } from "./asking.js";
import { el, table } from "./elements.js";
import { remember, requestOf, restore } from "./forms.js";
import { words } from "./quantities.js";

const QUIET_MILLISECONDS = 200;
const PAGE_OF_KIND = { train: "/", infer: "/ui/serve" };

const form = document.querySelector("#filters");
const note = document.querySelector("#note");
const more = document.querySelector("#more");
let shown = [];

async function load(signal, cursor = null) {
  const query = new URLSearchParams({ ...requestOf(form), ...(cursor ? { cursor } : {}) });
  try {
    const page = await ask(`/plans?${query}`, { signal });
    shown = cursor ? [...shown, ...page.items] : page.items;
    draw(page.next_cursor);
  } catch (problem) {
    if (problem.name !== "AbortError") note.replaceChildren(...problemOf(problem));
  }
}

function draw(cursor) {
  note.textContent = shown.length ? "" : "No plans.";
  const list = table("Plans, newest first", ["Plan", "Kind", "Verdict", "Model", "GPUs", "With", "Made", "", "Summary"],
    shown.map((plan) => [
      el("a", { href: `${PAGE_OF_KIND[plan.kind]}?plan=${encodeURIComponent(plan.plan_id)}` }, el("code", {}, plan.plan_id.slice(0, 10))),
      plan.kind, words(plan.verdict), plan.model, `${plan.gpus} × ${plan.gpu}`, plan.framework,
      plan.created_at ? new Date(plan.created_at).toLocaleString() : "",
      el("a", { href: `/ui/compare?a=${encodeURIComponent(plan.plan_id)}` }, "compare"), plan.summary,
    ]));
  list.classList.add("nowrap", "cards");
  document.querySelector("#list").replaceChildren(list);
  more.hidden = cursor === null;
  more.onclick = () => load(undefined, cursor);
}

const reload = debounced(load);
form.addEventListener("input", () => { remember(form); reload(QUIET_MILLISECONDS); });
form.addEventListener("submit", (event) => { event.preventDefault(); reload(0); });
restore(form);
await load();
// Only to choose from: the list itself has said what is wrong.
const [models, gpus] = await Promise.all(["/models", "/hardware"].map((path) => ask(path).catch(() => ({ items: [] }))));
document.querySelector("#models").replaceChildren(...models.items.map((model) => el("option", { value: model.id })));
document.querySelector("#gpus").replaceChildren(...gpus.items.map((gpu) => el("option", { value: gpu.id }, gpu.name)));
