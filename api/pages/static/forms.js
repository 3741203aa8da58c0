// Forms whose fields are named by their place in the request, and links that restore them.

import { ask } from "./asking.js";
import { copied, el } from "./elements.js";
import { gib, short } from "./quantities.js";

/** Return the request that a form describes: empty fields are left away. Throws SyntaxError for a torn config. */
export function requestOf(form) {
  const request = {};
  for (const field of namedFields(form)) {
    const text = field.value.trim();
    if (text === "" || field.name === "model.config") continue;
    place(request, field.name.split("."), valueOf(field, text));
  }
  const config = form.elements["model.config"]?.value.trim();
  if (config) request.model = { config: JSON.parse(config) };
  return request;
}

function valueOf(field, text) {
  if (field.type === "number") return Number(text);
  return field.dataset.type === "boolean" ? text === "true" : text;
}

function place(target, steps, value) {
  const last = steps.pop();
  for (const step of steps) target = target[step] ??= {};
  target[last] = value;
}

const namedFields = (form) => [...form.elements].filter((field) => field.name);

// A pasted config may be longer than any server takes as an address: it stands behind the #, which is never sent.
const isLong = (field) => field.tagName === "TEXTAREA";
const asQuery = (fields) => new URLSearchParams(fields.map((field) => [field.name, field.value.trim()]));

/** Put a form's filled fields into the address, so that the address restores it. */
export function remember(form) {
  const filled = namedFields(form).filter((field) => field.value.trim() !== "");
  const long = filled.filter(isLong);
  history.replaceState(null, "", `${location.pathname}?${asQuery(filled.filter((field) => !isLong(field)))}${long.length ? `#${asQuery(long)}` : ""}`);
}

/**
 * Fill a form from the address: what the address leaves away is empty, or as it stands where a list has no empty choice.
 * An address without a query changes nothing.
 */
export function restore(form) {
  const query = new URLSearchParams(location.search);
  if (![...query.keys()].some((name) => form.elements[name])) return;
  const long = new URLSearchParams(location.hash.slice(1));
  for (const field of namedFields(form)) {
    const value = (isLong(field) ? long : query).get(field.name);
    if (value !== null || mayBeEmpty(field)) setField(field, value ?? "");
  }
}

const mayBeEmpty = (field) => field.tagName !== "SELECT" || [...field.options].some((option) => option.value === "");

/** Set a field; a choice that a list does not hold is added, so that the service can say what is wrong with it. */
export function setField(field, value) {
  if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) {
    field.append(el("option", { value }, value));
  }
  field.value = value;
  const folded = field.closest("details");
  if (folded && value !== "") folded.open = true;
}

/** Fill the lists of models and GPUs from the catalogues; answers the GPUs by id. */
export async function fillCatalogues(form) {
  const [models, gpus] = await Promise.all([ask("/models"), ask("/hardware")]);
  fillModels(models.items);
  const select = form.elements["hardware.gpu"];
  const chosen = select.value;
  select.replaceChildren(...gpus.items.map((gpu) => el("option", { value: gpu.id }, `${gpu.name} (${gib(gpu.memory_bytes)})`)));
  setField(select, chosen);
  return new Map(gpus.items.map((gpu) => [gpu.id, gpu]));
}

/** Offer the catalogue's models to search in. */
export function fillModels(models) {
  document.querySelector("#models").replaceChildren(...models.map((model) =>
    el("option", { value: model.id }, `${short(model.parameters.total)} parameters`)));
}

/** Mark the fields that a problem points at, and take earlier marks away. */
export function markFields(form, errors) {
  const pointed = new Map(errors.map((error) => [error.pointer.slice(1).replaceAll("/", "."), error.detail]));
  for (const field of namedFields(form)) {
    const detail = pointed.get(field.name);
    field.toggleAttribute("aria-invalid", Boolean(detail));
    if (detail) field.setAttribute("aria-invalid", "true");
    field.title = detail ?? "";
  }
}

/** Make the buttons under a form work: copy its link, start over. */
export function linkButtons(form) {
  const note = document.querySelector("#form-note");
  document.querySelector("#copy-link").addEventListener("click", async () => {
    remember(form);
    note.textContent = (await copied(location.href)) ? "Link copied." : "The address bar holds the link.";
  });
  document.querySelector("#start-over").addEventListener("click", () => location.assign(location.pathname));
}
