// The frame around the views: tabs, tools, theme, keyboard.

const views = { sentence: sentenceView, heads: headsView, matrix: matrixView };
if (walk) views.steps = stepsView;
const stale = new Set(); // views that must be built again before they are shown
let diagram = null; // of the flow, if the page has one
const KEYS = [
  ["1 2 3 ...", "The views, from left to right"],
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
  Object.keys(views).forEach((view, i) => {
    shortcuts[i + 1] = () => change({ view });
    const named = { id: `panel-${view}`, "aria-labelledby": `tab-${view}` };
    byId("main").append(el("section", { class: "panel", role: "tabpanel", hidden: true, ...named }));
    buildPanel(view);
  });
}

/** Build the content of a view, or build it again because the data is different. */
function buildPanel(view) {
  const panel = byId(`panel-${view}`);
  panel.replaceChildren();
  if (view !== "steps") panel.append(el("h2", { class: "unseen" }, VIEWS[view]));
  views[view].build(panel);
}

const tool = (text, label, onclick) => button({ class: "tool", "aria-label": label, title: label, onclick }, text);

function buildTools() {
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
  if (stale.delete(state.view)) buildPanel(state.view);
  views[state.view].update(patch);
  diagram?.update();
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

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof Element && event.target.closest("select, input, textarea")) return;
  const act = shortcuts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
