// Saving what the page already holds: a plain link would ask again, and could not show a key.

import { el } from "./elements.js";

/** Return a button that saves a text as a file. */
export function downloadButton(text, name) {
  return el("button", { type: "button", onclick: () => save(text, name) }, "Download");
}

function save(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  el("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
