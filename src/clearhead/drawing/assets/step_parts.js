// The parts that steps are drawn with: vectors as boxes, tables of keys, shapes.

const MOST_KEYS = 24, MOST_NUMBERS = 12, FIRST_NUMBERS = 8;

const explain = (...parts) => el("p", { class: "explain" }, parts);
const arrow = (text) => el("p", { class: "arrow-down" }, `\u2193 ${text}`);
const hatchedCell = (text) => el("span", { class: "cell hatched" }, text);

/** A vector as a line of numbers, with its name and its token. */
function strip(title, values, label, { piece = 0, head = null, strong = false } = {}) {
  const of = el("span", { class: "of" },
    title === null ? null : el("code", {}, title),
    title !== null && label !== null ? " of " : null,
    label === null ? null : token(label, 18));
  return el("div", { class: strong ? "strip strong" : "strip" }, of, numbers(values, { piece, head }));
}

/** The vector of the followed token in a tensor; of the selected head, if the tensor has heads. */
function vectorStrip(tensor, at) {
  const axes = axesOf(tensor), elsewhere = axes.includes("context_tokens");
  const title = at.many && axes.some((axis) => axis.endsWith("heads")) ? `${tensor}, head ${at.head}` : tensor;
  const i = elsewhere ? state.key : at.i;
  return strip(title, vectorOf(tensor, at.head, i), (elsewhere ? at.from.columns : at.from.rows)[i]);
}

/** The pieces of all heads, one per line. */
function pieces(tensor, heads, at) {
  const all = Array.from({ length: heads }, (_, head) => head);
  const shown = heads <= 8 ? all : all.filter((head) => Math.abs(head - at.head) <= 3);
  const lines = shown.map((head) => {
    const strong = at.many && head === at.head;
    return strip(`head ${head}`, vectorOf(tensor, head, at.i), null, { head, strong });
  });
  return shown.length < heads ? [...lines, quiet(`and ${heads - shown.length} more heads`)] : lines;
}

/** Numbers in boxes, coloured by sign and size, with a coloured edge for the head. */
function numbers(values, { piece = 0, head = null, faint = false, most = FIRST_NUMBERS } = {}) {
  const top = Math.max(...Array.from(values, Math.abs), 1e-9);
  const all = Array.from(values.keys());
  let shown = all;
  if (values.length > MOST_NUMBERS) {
    const begins = (i) => i % piece < 2 && i < 4 * piece; // the first two of each piece
    shown = piece ? all.filter(begins) : all.slice(0, most);
  }
  const boxes = shown.map((i) => {
    const value = values[i], owner = piece ? Math.floor(i / piece) : head;
    const share = Math.round((42 * Math.abs(value)) / top);
    const style = {
      "background-color": `color-mix(in srgb, var(${sideOf(value)}) ${share}%, var(--card))`,
      ...(owner === null ? {} : { "border-bottom": `3px solid var(--head-${owner % PALETTE.heads})` }),
    };
    return el("span", { class: piece && i && i % piece === 0 ? "box cut" : "box", style }, fixed(value));
  });
  const rest = values.length > shown.length ? `\u2026 ${values.length} numbers` : "";
  if (rest) boxes.push(el("span", { class: "rest" }, rest));
  return el("span", { class: faint ? "numbers faint" : "numbers" }, boxes);
}

const sideOf = (value) => (value < 0 ? "--negative" : "--positive");

/** One dot product, term by term. */
function product(at, k) {
  const shown = Math.min(at.q.length, 8);
  const line = (label, values) => el("tr", {},
    el("th", { scope: "row" }, label),
    Array.from(values.slice(0, shown), (value) => el("td", {}, fixed(value))),
    values.length > shown ? el("td", {}, "\u2026") : null);
  const names = [token(at.label, 18), " with ", token(at.from.columns[state.key], 18)];
  return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "One score, term by term" },
    el("table", { class: "product" },
      el("caption", {}, "One score, term by term: ", names),
      el("tbody", {},
        line("query", at.q),
        line("\u00d7 key", k),
        line("= product", at.q.map((value, d) => value * k[d])),
        el("tr", { class: "total" },
          el("th", { scope: "row" }, "sum"),
          el("td", {}, fixed(at.scores[state.key], 4))))));
}

/** A table with a row for each key. Selecting a key highlights its row. */
function table(head, rows, at, total = null) {
  // A column of bars has no title. It is left out where there is no room for it.
  const drawn = (i) => (head[i] === "" ? "drawn" : null);
  const cells = (row) => row.map((cell, i) => (i ? el("td", { class: drawn(i) }, cell) : el("th", { scope: "row" }, cell)));
  const titles = head.map((text, i) => (text ? el("th", { scope: "col" }, text) : el("td", { class: drawn(i) })));
  const here = (i) => (at.shown[i] === state.key ? "here" : null);
  const body = rows.map((row, i) => el("tr", { class: here(i) }, cells(row)));
  return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Numbers for each key" },
    el("table", { class: head.length > 5 ? "keys many-columns" : "keys" },
      el("thead", {}, el("tr", {}, titles)),
      el("tbody", {}, body),
      total && el("tfoot", {}, el("tr", {}, cells(total)))));
}

function keyName(at, j) {
  const current = j === state.key ? "true" : null;
  return button({ class: "key-name", "aria-current": current, onclick: () => change({ key: j }) },
    token(at.from.columns[j], 18));
}

/** A share as a bar. A signed bar starts in the middle. */
function bar(share, signed = false) {
  const long = Math.abs(share) * (signed ? 50 : 100);
  const style = { width: `${long}%`, "background-color": "var(--accent)" };
  if (signed) {
    style["margin-left"] = share < 0 ? `${50 - long}%` : "50%";
    style["background-color"] = `var(${sideOf(share)})`;
  }
  return el("span", { class: signed ? "gauge signed" : "gauge", "aria-hidden": "true" },
    el("span", { class: "fill", style }));
}

function more(at) {
  const rest = at.from.columns.length - at.shown.length;
  const text = `These are the ${at.shown.length} keys with the largest weights. ${rest} more are not shown.`;
  return rest > 0 ? quiet(text) : null;
}

/** What the colours of numbers mean. */
function numberLegend() {
  const colour = (name) => `color-mix(in srgb, var(--${name}) 42%, var(--card))`;
  const swatch = (name) => el("span", { class: "swatch", style: { "background-color": colour(name) } });
  return el("p", { class: "legend" },
    el("span", { class: "key" }, swatch("negative"), "negative"),
    el("span", { class: "key" }, swatch("positive"), "positive"),
    el("span", { class: "key" }, "The stronger the colour, the larger the number within its vector."));
}

/** The shapes, formula and code of a step. */
function shapes(step) {
  const dim = ([axis, size]) => el("span", { class: "dim" }, el("b", {}, String(size)), el("span", {}, axis));
  const shape = (title, dims) => el("div", { class: "shape" },
    el("code", {}, title),
    el("span", { class: "dims" }, dims.map(dim)));
  return [
    el("h3", {}, "Shapes"),
    shape("in", step.before),
    el("p", { class: "arrow-down" }, "\u2193 ", el("code", {}, step.operation)),
    ...Object.entries(step.dims).map(([made, dims]) => shape(made, dims)),
    el("h3", {}, "Formula"),
    el("p", { class: "formula" }, step.formula),
    el("h3", {}, "PyTorch"),
    el("pre", { tabindex: 0 }, el("code", {}, step.code)),
  ];
}
