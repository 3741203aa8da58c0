// A form whose answer follows as one types: asked once the typing pauses, shown when the latest answer comes.

import { problemOf, planOfAddress } from "./answers.js";
import { ask, debounced } from "./asking.js";
import { fillCatalogues, linkButtons, markFields, remember, requestOf, restore } from "./forms.js";

// With a planning of some 60 ms the answer stands well within 200 ms of the last key.
const QUIET_MILLISECONDS = 80;

/** Run a page whose form is asked at `path`; `show(answer, context)` draws an answer. */
export async function runQuestion({ path, show }) {
  const form = document.querySelector("#question");
  const answerBox = document.querySelector("#answer");
  const verdict = document.querySelector("#verdict");
  const context = { form, gpus: new Map() };

  async function answer(signal) {
    answerBox.classList.add("waiting");
    try {
      const request = requestOf(form);
      const answered = await ask(path, { method: "POST", body: request, signal });
      if (signal.aborted) return;
      markFields(form, []);
      show(answered, { ...context, request });
      answerBox.classList.remove("waiting", "stale");
    } catch (problem) {
      if (problem.name === "AbortError") return;
      const said = problem instanceof SyntaxError ? new Error(`config.json is not JSON: ${problem.message}`) : problem;
      markFields(form, problem.errors ?? []);
      verdict.replaceChildren(...problemOf(said));
      answerBox.classList.remove("waiting");
      answerBox.classList.add("stale");
    }
  }

  const askSoon = debounced(answer, QUIET_MILLISECONDS);
  context.replan = () => { remember(form); askSoon(); };
  form.addEventListener("input", context.replan);
  form.addEventListener("submit", (event) => { event.preventDefault(); context.replan(); });
  linkButtons(form);
  restore(form);
  try {
    const stored = await planOfAddress();
    if (stored) {
      form.hidden = true;
      document.querySelector(".columns").classList.add("single");
      show(stored, { form: null, gpus: new Map(), request: null });
      return;
    }
    // The first question does not wait for the catalogues: the form holds its values already.
    const first = new AbortController();
    const [gpus] = await Promise.all([fillCatalogues(form), answer(first.signal)]);
    context.gpus = gpus;
  } catch (problem) {
    verdict.replaceChildren(...problemOf(problem));
  }
}
