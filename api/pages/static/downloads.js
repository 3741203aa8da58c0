// Saving what the API answers as a file: a plain link could not show a key.

import { fetched } from "./asking.js";
import { el } from "./elements.js";

/** Return a button that saves a plan's launch file. */
export function downloadButton(planId, artifact) {
  return savingButton(`/plans/${encodeURIComponent(planId)}/artifacts/${encodeURIComponent(artifact)}`, "Download");
}

/** Return a button that saves what an address answers with, under the name that the service gives it. */
export function savingButton(path, text) {
  const button = el("button", { type: "button" }, text);
  button.addEventListener("click", () => save(path).catch((problem) => { button.textContent = problem.message; }));
  return button;
}

async function save(path) {
  const response = await fetched(path, {});
  const [, name] = response.headers.get("content-disposition").match(/filename="(.+)"/);
  const address = URL.createObjectURL(new Blob([await response.arrayBuffer()], { type: "application/octet-stream" }));
  el("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
