// Forms whose fields are named by their place in the request, and links that restore them.

import { ask } from "./asking.js";
import { copied, el } from "./elements.js";
import { offerModels } from "./modelsearch.js";
import { gib } from "./quantities.js";

/** Return the request that a form describes: empty fields are left away. Throws SyntaxError for a torn config. */
export function requestOf(form) {
  const request = {};
  for (const field of namedFields(form)) {
    const text = field.value.trim();
    if (text === "" || field.name === "model.config" || isUnasked(field)) continue;
    place(request, field.name.split("."), valueOf(field, text));
  }
  const config = form.elements["model.config"]?.value.trim();
  if (config) request.model = { config: JSON.parse(config) };
  return request;
}

function valueOf(field, text) {
  if (field.type === "number") return Number(inBaseUnit(field, text));
  return field.dataset.type === "boolean" ? text === "true" : text;
}

function place(target, steps, value) {
  const last = steps.pop();
  for (const step of steps) target = target[step] ??= {};
  target[last] = value;
}

const namedFields = (form) => [...form.elements].filter((field) => field.name);

// A field that another one's value calls for, and that it does not call for now.
const isUnasked = (field) => field.closest("[data-when]")?.hidden === true;

/** Show those fields that the values of others call for (data-when="name=value|value"), and hide the rest of their kind. */
export function offerConditional(form) {
  for (const part of form.querySelectorAll("[data-when]")) {
    const [name, values] = part.dataset.when.split("=");
    part.hidden = !values.split("|").includes(form.elements[name].value);
  }
}

/** Say how much of the layout is fixed. */
export function countFixed(form) {
  const fixed = fixedLayout(form);
  form.querySelector("#fixed").textContent = fixed.length ? `${fixed.length} fixed` : "searched";
  form.querySelector("#free-layout").disabled = fixed.length === 0;
}

const fixedLayout = (form) => [...form.querySelectorAll("#layout [name]")].filter((field) => field.value.trim() !== "");

// A pasted config may be longer than any server takes as an address: it stands behind the #, which is never sent.
const isLong = (field) => field.tagName === "TEXTAREA";
const asQuery = (fields) => new URLSearchParams(fields.map((field) => [field.name, inBaseUnit(field, field.value.trim())]));
// A field may ask in a unit of its own (data-unit, in base units); requests and addresses have base units.
const inBaseUnit = (field, text) => (field.dataset.unit && text !== "" ? String(Number(text) * field.dataset.unit) : text);
const inOwnUnit = (field, text) => (field.dataset.unit && text !== "" ? String(Number(text) / field.dataset.unit) : text);

/** Put a form's fields into the address, so that the address restores it: the filled ones, and those emptied that began filled. */
export function remember(form) {
  const filled = namedFields(form).filter((field) => field.value.trim() !== "" || field.defaultValue);
  const long = filled.filter(isLong);
  history.replaceState(null, "", `${location.pathname}?${asQuery(filled.filter((field) => !isLong(field)))}${long.length ? `#${asQuery(long)}` : ""}`);
}

/** Fill a form from the address; what the address does not name stays as the form begins. */
export function restore(form) {
  const query = new URLSearchParams(location.search);
  const long = new URLSearchParams(location.hash.slice(1));
  for (const field of namedFields(form)) {
    const value = (isLong(field) ? long : query).get(field.name);
    if (value !== null) setField(field, value);
  }
}

/** Set a field to a value of the request; a choice that a list does not hold is added, so that the service can say what is wrong with it. */
export function setField(field, value) {
  if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) {
    field.append(el("option", { value }, value));
  }
  field.value = inOwnUnit(field, value);
  // Folds of a layout say how much of it is fixed; anything else that is set is shown.
  const folded = field.closest("details");
  if (folded && folded.id !== "layout" && value !== "") folded.open = true;
}

/** Return what a field is called. */
export const labelOf = (field) => field.labels[0].firstChild.textContent.trim();

/** Return a value of the request as a field shows it. */
export function shownIn(field, value) {
  return [...(field.options ?? [])].find((option) => option.value === value)?.textContent ?? inOwnUnit(field, value);
}

/** Fill the lists of models and GPUs from the catalogues; answers the GPUs by id. */
export async function fillCatalogues(form) {
  const [models, gpus] = await Promise.all([ask("/models"), ask("/hardware")]);
  offerModels(models.items);
  const select = form.elements["hardware.gpu"];
  const chosen = select.value;
  select.replaceChildren(...gpus.items.map((gpu) => el("option", { value: gpu.id }, `${gpu.name} (${gib(gpu.memory_bytes)})`)));
  setField(select, chosen);
  return new Map(gpus.items.map((gpu) => [gpu.id, gpu]));
}

/** Return the name of the field that a problem's pointer leads to. */
export const fieldOf = (pointer) => pointer.slice(1).replaceAll("/", ".");

/** Mark the fields that a problem points at, and take earlier marks away. */
export function markFields(form, errors) {
  const pointed = new Map(errors.map((error) => [fieldOf(error.pointer), error.detail]));
  for (const field of namedFields(form)) {
    const detail = pointed.get(field.name);
    field.toggleAttribute("aria-invalid", Boolean(detail));
    if (detail) field.setAttribute("aria-invalid", "true");
    field.title = detail ?? "";
  }
}

/** Make the buttons of a form work: copy its link, start over, leave the layout to the search again (`replan` is then called). */
export function linkButtons(form, replan) {
  const note = document.querySelector("#form-note");
  document.querySelector("#copy-link").addEventListener("click", async () => {
    remember(form);
    note.textContent = (await copied(location.href)) ? "Link copied." : "The address bar holds the link.";
  });
  document.querySelector("#free-layout").addEventListener("click", () => {
    for (const field of fixedLayout(form)) field.value = "";
    replan();
  });
  document.querySelector("#start-over").addEventListener("click", () => location.assign(location.pathname));
}
