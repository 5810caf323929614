// The frame around the views: tabs, tools, keyboard, start-up.

const views = { heads: headsView, matrix: matrixView, sentence: sentenceView };
if (walk) views.steps = stepsView;
const KEYS = [
  ["1 2 3 4", "Heads, Matrix, Sentence, Steps"],
  ["arrow keys", "Move between heads, cells, tokens or steps"],
  ["Enter", "Select; in the matrix: show this query in the sentence; on a token: pin it"],
  ["[ and ]", "Previous or next head"],
  ["{ and }", "Previous or next layer"],
  ["b and n", "Previous or next step"],
  ["l", "Switch between linear and logarithmic colours"],
  ["w", "Switch between what a token attends to and what attends to it"],
  ["+ \u2212 0", "In the matrix: zoom in, zoom out, fit"],
  ["s and p", "Save as SVG or PNG"],
  ["t", "Switch between light and dark"],
  ["?", "Show this list"],
  ["Esc", "Close this list, or unpin a token"],
];

function buildTabs() {
  const tabs = Object.keys(views).map((view) => button(
    { role: "tab", id: `tab-${view}`, "aria-controls": `panel-${view}`, onclick: () => change({ view }) },
    VIEWS[view]));
  byId("tabs").append(...tabs);
  byId("tabs").addEventListener("keydown", (event) => {
    const to = roving(tabs, event);
    if (to !== null) change({ view: Object.keys(views)[to] });
  });
  for (const [view, { build }] of Object.entries(views)) {
    const named = { id: `panel-${view}`, "aria-labelledby": `tab-${view}` };
    const panel = el("section", { class: "panel", role: "tabpanel", hidden: true, ...named });
    if (view !== "steps") panel.append(el("h2", { class: "unseen" }, VIEWS[view]));
    byId("main").append(panel);
    build.call(views[view], panel);
  }
}

function buildTools() {
  const tool = (text, label, onclick) =>
    button({ class: "tool", "aria-label": label, title: label, onclick }, text);
  byId("tools").append(
    tool("SVG", "Save this view as SVG", () => saveAs("svg")),
    tool("PNG", "Save this view as PNG", () => saveAs("png")),
    tool("\u25d0", "Switch between light and dark", otherTheme),
    tool("?", "Help and keyboard shortcuts", openHelp));
}

function openHelp() {
  const dialog = el("dialog", { "aria-labelledby": "help-title", onclose: () => dialog.remove() },
    el("h2", { id: "help-title" }, "How to read this page"),
    el("p", {},
      "Attention gives every token (the query) a weight for every token that it may attend to (the keys). ",
      "The weights of a query add up to 1. Several heads do this side by side, each in its own way."),
    el("p", {},
      "All views show the same numbers. What you select in one view stays selected in the others. ",
      "The selection is part of the address, so you can share a link to it."),
    el("h3", {}, "Keyboard"),
    el("dl", { class: "help" }, KEYS.flatMap(([keys, text]) => [el("dt", {}, keys), el("dd", {}, text)])),
    button({ class: "go strong", onclick: () => dialog.close() }, "Close"));
  document.body.append(dialog);
  dialog.showModal();
}

const darkByDefault = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (state.theme ? state.theme === "dark" : darkByDefault.matches);
const otherTheme = () => change({ theme: isDark() ? "light" : "dark" });

function update(patch) {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const view of Object.keys(views)) {
    const here = view === state.view;
    byId(`panel-${view}`).hidden = !here;
    byId(`tab-${view}`).setAttribute("aria-selected", String(here));
    byId(`tab-${view}`).tabIndex = here ? 0 : -1;
  }
  views[state.view].update(patch);
}

const nextStep = (by) => { if (state.view === "steps") change({ step: state.step + by }); };
const nextHead = (by) => change({ head: (state.head + by + layer().heads) % layer().heads });
const shortcuts = {
  "[": () => nextHead(-1), "]": () => nextHead(1),
  "{": () => change({ layer: state.layer - 1 }), "}": () => change({ layer: state.layer + 1 }),
  b: () => nextStep(-1), n: () => nextStep(1),
  l: () => change({ scale: state.scale === "log" ? "linear" : "log" }),
  w: () => change({ way: state.way === "from" ? "to" : "from" }),
  s: () => saveAs("svg"), p: () => saveAs("png"), t: otherTheme, "?": openHelp,
  Escape: () => change({ pin: false }),
};
Object.keys(views).forEach((view, i) => { shortcuts[i + 1] = () => change({ view }); });

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof Element && event.target.closest("select, input, textarea")) return;
  const act = shortcuts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function describe() {
  const first = layers[0];
  const heads = layers.reduce((sum, each) => sum + each.heads, 0);
  const rows = first.rows.length, columns = first.columns.length;
  const facts = [
    walk && walk.form !== about.title ? walk.form : "",
    rows === columns ? plural(rows, "token") : `${plural(rows, "query", "queries")}, ${plural(columns, "key")}`,
    layers.length > 1 ? plural(layers.length, "layer") : "",
    plural(heads, "head"),
  ];
  byId("title").append(el("bdi", {}, shorten(about.title, 90)));
  byId("subtitle").textContent = facts.filter(Boolean).join(" \u00b7 ");
  byId("notes").append(...about.notes.map((note) => el("p", {}, note)));
}

async function start() {
  describe();
  if (typeof DecompressionStream === "undefined") {
    byId("message").textContent =
      "This browser is too old to read the numbers in this file. Use a browser from 2023 or later.";
    return;
  }
  read();
  buildTabs();
  buildTools();
  await layer().load();
  if (walk) await walk.load();
  byId("message").remove();
  update({ view: state.view });
  listeners.push(update);
  byId("skip").addEventListener("click", () => byId("main").focus());
  document.addEventListener("keydown", press);
  darkByDefault.addEventListener("change", () => update({}));
  addEventListener("hashchange", () => { read(); update({ view: state.view, query: 0, key: 0 }); });
  for (const each of layers) {
    if (each.ready) continue;
    await each.load();
    if (state.view === "heads" || each === layer()) update({});
  }
  document.documentElement.dataset.ready = "yes";
  performance.mark("ready");
}

start().catch((error) => {
  byId("message")?.remove();
  const text = `The numbers in this file could not be read: ${error.message}`;
  byId("main").prepend(el("p", { class: "message" }, text));
  throw error;
});
