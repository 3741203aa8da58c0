// The search over the catalogue's models: a field with the list of what matches under it.
//
// Keys and roles are those of the combobox with a list, https://www.w3.org/WAI/ARIA/apg/patterns/combobox/.
// The form is told of a model only once it is chosen or wholly typed: half a name is no question.

import { el } from "./elements.js";
import { billions } from "./quantities.js";

// More than these nobody reads: another letter is quicker.
const MOST_LISTED = 60;

/** Offer models in the field that is named "model". */
export function offerModels(models) {
  const field = document.querySelector("[name=model]");
  const list = document.querySelector("#models");
  const known = new Set(models.flatMap((model) => [model.id, ...model.aliases].map(keyOf)));
  let told = field.value;
  let active = -1;

  const close = () => { list.hidden = true; active = -1; field.setAttribute("aria-expanded", "false"); field.removeAttribute("aria-activedescendant"); };
  const tell = () => {
    close();
    if (field.value.trim() === told) return;
    told = field.value.trim();
    field.dispatchEvent(new CustomEvent("input", { bubbles: true, detail: "told" }));
  };
  const choose = (id) => { field.value = id; tell(); };
  const open = (text) => {
    const matching = matchingModels(models, text);
    list.replaceChildren(...matching.slice(0, MOST_LISTED).map((model, index) => option(model, index, choose)),
      ...(matching.length > MOST_LISTED ? [el("li", { role: "presentation", class: "quiet" }, `and ${matching.length - MOST_LISTED} more`)] : []));
    list.hidden = matching.length === 0;
    active = -1;
    field.setAttribute("aria-expanded", String(!list.hidden));
  };
  const move = (step) => {
    if (list.hidden) open(field.value.trim() === told ? "" : field.value);
    const options = [...list.querySelectorAll("[role=option]")];
    if (!options.length) return;
    active = (active + step + options.length) % options.length;
    options.forEach((each, index) => each.setAttribute("aria-selected", String(index === active)));
    options[active].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", options[active].id);
  };
  const keys = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Escape: close,
    Enter: () => (active < 0 ? tell() : choose(list.querySelectorAll("[role=option]")[active].dataset.id)),
  };

  field.addEventListener("focus", () => { told = field.value.trim(); field.select(); });
  field.addEventListener("click", () => { if (list.hidden) open(""); });
  field.addEventListener("input", (event) => {
    if (event.detail === "told") return;
    if (known.has(keyOf(field.value))) { told = field.value.trim(); } else { event.stopPropagation(); }
    open(field.value);
  });
  field.addEventListener("change", tell);
  field.addEventListener("blur", tell);
  field.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  field.dataset.models = String(models.length);
}

/** Return the models in whose id or aliases every word of a text occurs, as `GET /models?search=` does, shortest ids first. */
export function matchingModels(models, text) {
  const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!parts.length) return models;
  const isMatch = (model) => parts.every((part) => [model.id, ...model.aliases].some((name) => name.toLowerCase().includes(part)));
  return models.filter(isMatch).sort((a, b) => a.id.length - b.id.length);
}

// As the service compares names.
const keyOf = (name) => name.trim().toLowerCase().replaceAll(/[ _]/g, "-");

const option = (model, index, choose) => el("li", { role: "option", id: `model-${index}`, "aria-selected": "false", "data-id": model.id,
  onmousedown: (event) => { event.preventDefault(); choose(model.id); } }, model.id, el("small", {}, `${billions(model.parameters.total)} parameters`));
