// A form whose answer follows as one types: asked with each key, of keys that come in a burst with the last one, and shown
// when the latest answer comes.

import { planOfAddress, problemOf, verdictLine } from "./answers.js";
import { ask, debounced } from "./asking.js";
import { el } from "./elements.js";
import { countFixed, fillCatalogues, linkButtons, markFields, offerConditional, remember, requestOf, restore } from "./forms.js";
import { painted, swapParts } from "./parts.js";

// Only a wait that is felt is shown.
const FELT_MILLISECONDS = 400;
// Longer than a key that repeats by itself takes (33 ms), shorter than it takes to find the next one.
const QUIET_MILLISECONDS = 50;

/**
 * Run a page whose form is asked at `path`. `verdict(answer)` returns what is to be seen first, and `parts(answer, context)`
 * the rest, which is drawn once the verdict has been painted.
 */
export async function runQuestion({ path, verdict, parts }) {
  const form = document.querySelector("#question");
  const boxes = Object.fromEntries(["answer", "verdict", "parts", "glance", "updating"].map((id) => [id, document.querySelector(`#${id}`)]));
  let catalogues = Promise.resolve(new Map());
  let shown = null;

  let felt;

  // The answer before stays, dimmed, until the next one is there.
  function wait() {
    clearTimeout(felt);
    boxes.answer.classList.add("waiting");
    felt = setTimeout(() => {
      boxes.answer.classList.add("updating");
      if (boxes.parts.childElementCount) boxes.updating.textContent = "Updating …";
    }, FELT_MILLISECONDS);
  }

  // The verdict comes first, the parts a moment later.
  function waitNoMore() {
    clearTimeout(felt);
    boxes.answer.classList.remove("updating");
    boxes.updating.textContent = "";
  }

  async function show(answer, context, signal) {
    shown = null;
    waitNoMore();
    boxes.verdict.replaceChildren(...verdict(answer));
    boxes.glance.replaceChildren(...verdictLine(answer));
    boxes.answer.classList.remove("stale");
    const [gpus] = await Promise.all([catalogues, painted()]);
    if (signal?.aborted) return;
    swapParts(boxes.parts, parts(answer, { ...context, gpus }));
    boxes.answer.classList.remove("waiting");
    shown = JSON.stringify(context.request);
  }

  function refuse(problem) {
    shown = null;
    waitNoMore();
    markFields(form, problem.errors ?? []);
    boxes.verdict.replaceChildren(...problemOf(problem, form), ...(boxes.parts.childElementCount
      ? [el("p", { class: "quiet" }, "Showing the previous result.")] : []));
    boxes.glance.replaceChildren("No answer: see why");
    boxes.answer.classList.remove("waiting");
    boxes.answer.classList.add("stale");
  }

  async function answer(signal) {
    wait();
    try {
      const request = requestOf(form);
      // Typed and taken back.
      if (JSON.stringify(request) === shown) {
        waitNoMore();
        boxes.answer.classList.remove("waiting");
        return;
      }
      const answered = await ask(path, { method: "POST", body: request, signal });
      if (signal.aborted) return;
      markFields(form, []);
      await show(answered, { form, request, replan }, signal);
    } catch (problem) {
      if (problem.name !== "AbortError") refuse(problem instanceof SyntaxError ? new Error(`config.json is not JSON: ${problem.message}`) : problem);
    }
  }

  const askSoon = debounced(answer);
  // What is chosen from a list or by a button is meant at once.
  const replan = (event) => {
    offerConditional(form);
    countFixed(form);
    remember(form);
    askSoon(event?.type === "input" && event.target.tagName !== "SELECT" ? QUIET_MILLISECONDS : 0);
  };
  form.addEventListener("input", replan);
  form.addEventListener("submit", (event) => { event.preventDefault(); replan(); });
  linkButtons(form, replan);
  restore(form);
  offerConditional(form);
  countFixed(form);
  try {
    const stored = await planOfAddress();
    if (stored) {
      form.hidden = true;
      document.querySelector(".columns").classList.add("single");
      await show(stored, { form: null, request: null });
      return;
    }
  } catch (problem) {
    refuse(problem);
    return;
  }
  // The first question does not wait for the catalogues: the form holds its values already.
  catalogues = fillCatalogues(form).catch((problem) => { refuse(problem); return new Map(); });
  askSoon(0);
}
