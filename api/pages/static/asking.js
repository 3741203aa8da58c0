// Asking the public API.

import { keyHeaders } from "./apikey.js";

/** What the API answered in place of what was asked for: an RFC 9457 problem document. */
export class Problem extends Error {
  constructor(document) {
    super(document.detail ?? document.title ?? "The service did not answer as expected.");
    this.errors = document.errors ?? [];
    this.status = document.status;
    this.code = document.code;
  }
}

/** Return the answer's JSON; throws Problem, or an AbortError when another question has overtaken it. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const request = { method, signal, headers: { accept: "application/json" } };
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  return (await fetched(path, request)).json();
}

/** Return the response to a request that shows the key; throws Problem where it is not a success, or an AbortError. */
export async function fetched(path, request) {
  const response = await fetch(path, { ...request, headers: { ...request.headers, ...keyHeaders() } }).catch((reason) => {
    if (reason.name === "AbortError") throw reason;
    throw new Problem({ detail: "The service cannot be reached." });
  });
  if (response.ok) return response;
  throw new Problem(await response.json().catch(() => ({ status: response.status, title: response.statusText })));
}

/**
 * Return a function that acts at once for a caller that was quiet so long, and else once it is so again; what is still
 * under way is dropped.
 */
export function debounced(act) {
  let timer;
  let running;
  let last = -Infinity;
  return (quietMilliseconds) => {
    const now = performance.now();
    const wait = now - last < quietMilliseconds ? quietMilliseconds : 0;
    last = now;
    clearTimeout(timer);
    timer = setTimeout(() => {
      running?.abort();
      running = new AbortController();
      act(running.signal);
    }, wait);
  };
}
