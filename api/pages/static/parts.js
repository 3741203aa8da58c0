// Swapping the parts of an answer for those of the next one, without taking away what the reader was at.

// A frame comes every 17 ms where someone looks; a page that nobody sees has none to wait for.
const UNSEEN_MILLISECONDS = 100;
const SCROLLED = "[role=region], pre";

/** Return once what was just drawn has been painted. */
export function painted() {
  return new Promise((resolve) => {
    const unseen = setTimeout(resolve, UNSEEN_MILLISECONDS);
    requestAnimationFrame(() => { clearTimeout(unseen); setTimeout(resolve); });
  });
}

/** Put parts into their place: what was unfolded or scrolled stays so, and whoever was in a part is in its new one. */
export function swapParts(place, parts) {
  const shown = new Map([...place.children].map((part) => [part.dataset.part, part]));
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = scrollsOf(place);
  for (const part of parts) if (shown.get(part.dataset.part) !== part) unfoldAs(shown.get(part.dataset.part), part);
  const within = focused?.closest(".part").dataset.part;
  place.replaceChildren(...parts);
  for (const element of scrolled.size ? place.querySelectorAll(SCROLLED) : []) element.scrollTo(...(scrolled.get(nameOf(element)) ?? [0, 0]));
  if (focused) (focused.isConnected ? focused : parts.find((part) => part.dataset.part === within))?.focus({ preventScroll: true });
}

const nameOf = (element) => `${element.closest(".part").dataset.part}: ${element.getAttribute("aria-label")}`;

const scrollsOf = (place) => new Map([...place.querySelectorAll(SCROLLED)].filter((element) => element.scrollLeft || element.scrollTop)
  .map((element) => [nameOf(element), [element.scrollLeft, element.scrollTop]]));

function unfoldAs(old, part) {
  if (!old) return;
  const open = new Map([...old.querySelectorAll("details")].map((fold) => [titleOf(fold), fold.open]));
  for (const fold of part.querySelectorAll("details")) fold.open = open.get(titleOf(fold)) ?? fold.open;
}

// Without its numbers, which change from answer to answer.
const titleOf = (fold) => fold.querySelector("summary").textContent.replace(/[\d,.]+/g, "");
