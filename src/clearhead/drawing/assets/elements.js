// Elements, numbers and texts. Text is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** A new element: el("p", {class: "quiet", onclick: f, "aria-label": "x"}, "text", child). */
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svgEl(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const button = (attributes, ...children) => el("button", { type: "button", ...attributes }, ...children);
const quiet = (text) => el("p", { class: "quiet" }, text);
const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const plural = (count, word, words = `${word}s`) => `${count.toLocaleString("en")} ${count === 1 ? word : words}`;

/**
 * A token, isolated so that its writing direction does not affect the text around it. The mark of
 * the space before it is faint.
 */
function token(label, most = 24, strong = false) {
  const [, spaces, text] = /^(\u2423*)(.*)$/su.exec(shorten(label, most));
  const mark = spaces && text ? el("span", { class: "space" }, spaces) : spaces;
  return el("bdi", { class: strong ? "word strong" : "word" }, mark, text);
}

/** The text, shortened to `most` characters with an ellipsis. */
function shorten(text, most) {
  const characters = Array.from(text);
  return characters.length <= most ? text : characters.slice(0, most - 1).join("") + "\u2026";
}

/** Up to five significant digits, enough to distinguish all float16 numbers. */
function exact(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not a number" : value < 0 ? "-inf" : "inf";
  if (value !== 0 && Math.abs(value) < 1e-4) {
    const [digits, power] = value.toExponential(3).split("e");
    const raised = power.replace(/./g, (c) => (c === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[c]));
    return `${Number(digits)} \u00d7 10${raised}`;
  }
  return String(Number(value.toPrecision(5)));
}

/** A number with a fixed number of decimals, and a proper minus sign. */
function fixed(value, decimals = 2) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value < 0 ? "\u2212inf" : "inf";
  if (Math.abs(value) >= 1e6) return value.toExponential(2).replace("-", "\u2212");
  const text = Math.abs(value).toFixed(decimals);
  return value < 0 && Number(text) !== 0 ? `\u2212${text}` : text;
}

/** Move between the items of a list with the arrow keys (a roving tabindex). */
function roving(items, event, { columns = 1 } = {}) {
  const at = items.indexOf(document.activeElement);
  const rtl = getComputedStyle(event.currentTarget).direction === "rtl" ? -1 : 1;
  const by = { ArrowRight: rtl, ArrowLeft: -rtl, ArrowDown: columns, ArrowUp: -columns }[event.key];
  let to = null;
  if (by !== undefined && at >= 0) to = clamp(at + by, 0, items.length - 1);
  if (event.key === "Home") to = 0;
  if (event.key === "End") to = items.length - 1;
  if (to === null) return null;
  event.preventDefault();
  items[to].focus();
  return to;
}

/** Announce a text to screen readers. */
function say(text) {
  byId("status").textContent = text;
}
