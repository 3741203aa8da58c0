// How serving layouts, their alternatives and an engine's settings read in a line.

import { counted, words } from "./quantities.js";

/** Return a layout's degrees above one. */
export const layoutText = (layout) => Object.entries(layout).filter(([name, degree]) => name === "gpus" || degree > 1)
  .map(([name, degree]) => (name === "gpus" ? `${degree} GPU${degree === 1 ? "" : "s"}` : `${words(name)} ${degree}`)).join(", ");

/** Return what an alternative is; plans of earlier versions name neither its card nor its formats. */
export const alternativeText = ({ gpu, layout, weights, kv_cache: cache, concurrency }) => [gpu, layoutText(layout),
  weights && `${weights}/${cache}`, concurrency && `${counted(concurrency, "request")} at once`].filter(Boolean).join(", ");

/** Return one setting by its name; of one with parts, those that are set. */
export const settingText = ([name, value]) => `${words(name)} ${value !== null && typeof value === "object"
  ? Object.values(value).filter((part) => part !== null).join(" ") : value}`;
