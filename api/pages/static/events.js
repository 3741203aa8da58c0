// Server-sent events through fetch, which, unlike EventSource, can show a key.

import { fetched } from "./asking.js";

const RETRY_MILLISECONDS = 2000;

/** Yield the events of a stream, reconnecting after the last one seen, until it ends by itself or `signal` aborts it. */
export async function* eventsOf(path, signal) {
  let lastId = null;
  while (!signal.aborted) {
    try {
      const headers = { accept: "text/event-stream", ...(lastId === null ? {} : { "last-event-id": lastId }) };
      const response = await fetched(path, { headers, signal });
      const read = parser();
      for await (const text of chunksOf(response)) {
        for (const event of read(text)) {
          lastId = event.id ?? lastId;
          yield event;
        }
      }
      return;
    } catch (problem) {
      if (problem.name === "AbortError") return;
      // The service said no; what was merely cut off is asked for again.
      if (problem.status) throw problem;
      await new Promise((resolve) => { setTimeout(resolve, RETRY_MILLISECONDS); });
    }
  }
}

async function* chunksOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
}

/** Return a function that takes pieces of a stream and gives the events that each completes. */
export function parser() {
  let kept = "";
  return (piece) => {
    const blocks = (kept + piece).replaceAll("\r\n", "\n").split("\n\n");
    kept = blocks.pop();
    return blocks.map(eventOf).filter((event) => event.data !== "");
  };
}

function eventOf(block) {
  const event = { kind: "message", id: null, data: "" };
  for (const line of block.split("\n")) {
    const [, field, value] = line.match(/^([^:]*):? ?(.*)$/);
    if (field === "event") event.kind = value;
    if (field === "id") event.id = value;
    if (field === "data") event.data += event.data ? `\n${value}` : value;
  }
  return event;
}
