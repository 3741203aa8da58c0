// Saving a launch file: a plain link could not show a key.

import { fetched } from "./asking.js";
import { el } from "./elements.js";

/** Return a button that saves a plan's launch file under the name that the service gives it. */
export function downloadButton(planId, artifact) {
  const button = el("button", { type: "button" }, "Download");
  button.addEventListener("click", () => save(planId, artifact).catch((problem) => { button.textContent = problem.message; }));
  return button;
}

async function save(planId, artifact) {
  const response = await fetched(`/plans/${encodeURIComponent(planId)}/artifacts/${encodeURIComponent(artifact)}`, {});
  const [, name] = response.headers.get("content-disposition").match(/filename="(.+)"/);
  const address = URL.createObjectURL(new Blob([await response.arrayBuffer()], { type: "application/octet-stream" }));
  el("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
