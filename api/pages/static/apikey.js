// The API key, where the service asks for one: kept for this tab only, never in an address, sent as a header.

import { el } from "./elements.js";

const PLACE = "plimsoll-api-key";

/** Return the headers that show the key, none where there is none. */
export function keyHeaders() {
  const key = sessionStorage.getItem(PLACE);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Make the key's field in the page's head work; a new key is tried at once, by loading the page again. */
export function keyField() {
  const form = document.querySelector("#key");
  const field = form.elements.key;
  const told = form.querySelector("[role=status]");
  const tell = () => { told.textContent = sessionStorage.getItem(PLACE) ? "A key is in use in this tab." : "No key is in use."; };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(PLACE, field.value.trim());
    location.reload();
  });
  form.querySelector("#forget-key").addEventListener("click", () => {
    sessionStorage.removeItem(PLACE);
    field.value = "";
    tell();
  });
  tell();
}

/** Open the key's field, and return what to do, for a page that was refused. */
export function askForKey(status) {
  const box = document.querySelector("#key-box");
  box.open = true;
  const open = () => { box.open = true; document.querySelector("#key").elements.key.focus(); };
  return el("p", {}, status === 401
    ? "This service answers only with an API key. Whoever runs it makes one with “plimsoll keys create NAME --scope plan”. "
    : "The key lacks the scope for this: ask for one that has it. ",
  el("button", { type: "button", onclick: open }, "Enter a key"));
}
