// Making elements. Text always goes in as text: nothing that a server or a user says is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element; attributes that begin with "on" are listeners, null and false leave an attribute away. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return an element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a table of rows of texts or elements; the first cell of a row is its heading. */
export function table(caption, headings, rows) {
  const cells = (row) => row.map((cell, at) => (at ? el("td", {}, cell) : el("th", { scope: "row" }, cell)));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, headings.map((heading) => (heading === "" ? el("td") : el("th", { scope: "col" }, heading))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, cells(row))))));
}

/** Return a part of an answer under its heading, by which it is known from answer to answer. */
export function section(title, ...children) {
  return el("section", { class: "part", "data-part": title, tabindex: -1 }, el("h2", {}, title), ...children);
}

/** Return [name, value] pairs as a list to take in at a glance. */
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Return a button that copies a text, and says so. */
export function copyButton(text, label = "Copy") {
  const button = el("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Could not copy";
    setTimeout(() => { button.textContent = label; }, 2000);
  });
  return button;
}

/** Copy a text; the answer says whether the browser allowed it (it does not outside loopback and HTTPS). */
export async function copied(text) {
  if (!navigator.clipboard) return false;
  return navigator.clipboard.writeText(text).then(() => true, () => false);
}
