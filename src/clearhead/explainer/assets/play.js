// Starts the page that runs the model, and keeps it up to date with the text and the switches.

const SEPARATOR = " \u00b7 ";
let afterwards = null; // a selection to make when the next numbers are there

/** The sentence with its arcs, the next words, and all heads. */
const overview = {
  picture: ".stage",

  build(root) {
    const { num_heads: count } = about.sizes;
    const heads = el("div", { class: "all-heads", style: { "--heads": count } }, el("h3", {}, "All heads"));
    sentenceView.build(root);
    this.words = el("div", {});
    const { stage, aside } = sentenceView, column = (...parts) => el("div", { class: "column" }, parts);
    stage.parentElement.replaceChildren(column(stage, heads), column(this.words, aside));
    headsView.opens = null;
    headsView.build(heads);
  },

  update(patch) {
    sentenceView.update(patch);
    headsView.update(patch);
    this.words.replaceChildren(nextWords(answer.after.next, 8));
  },
};

function buildFlow() {
  const count = () => about.labels[0].length;
  const overview = { go: () => ({ view: "sentence" }), here: () => state.view === "sentence" };
  const best = () => `${shorten(visible(answer.after.next[0].label), 12)} ${fixed(answer.after.next[0].share)}`;
  diagram = flowDiagram([
    { name: "Tokens", detail: () => plural(count(), "token"), ...overview },
    {
      name: "Embeddings",
      detail: () => `${count()} \u00d7 ${about.sizes.d_model}`,
      go: () => ({ view: "steps", step: 0 }),
      here: () => false,
    },
    { name: layerTitle, parts: attentionParts() },
    { name: "Next word", detail: best, ...overview },
  ]);
  byId("flow").replaceChildren(diagram);
}

/** The switches that are on, above all views. */
function drawChanges() {
  const changes = changesInWords();
  byId("changes").hidden = !changes.length;
  byId("changes").replaceChildren(el("span", {}, "What if:"),
    ...changes.map(([text, undo]) => button({ class: "chip", title: "Undo", onclick: () => change(undo) },
      text, el("span", { "aria-hidden": "true" }, " \u00d7"))),
    button({ class: "chip strong", onclick: () => change({ ...UNSWITCHED }) }, "Reset all"));
}

/** Ask the worker if the text or a switch is new. */
function follow() {
  const wanted = JSON.stringify([state.text, switches()]);
  if (wanted === follow.wanted) return;
  follow.wanted = wanted;
  if (byId("text").value !== state.text) byId("text").value = state.text;
  grow();
  engine.ask(state.text, isSwitched() ? switches() : null);
}

/** Show an answer of the worker. */
function show(found) {
  for (const id of ["flow", "changes", "main"]) byId(id).classList.toggle("outdated", Boolean(found.empty));
  if (found.error || found.empty) {
    byId("reading").textContent = found.error ? `The model failed: ${found.error}` : "Type a sentence.";
    return;
  }
  const first = answer === null, atEnd = first || state.query >= about.labels[0].length - 1;
  take(found);
  if (first) start.read();
  else if (atEnd) state.query = Infinity;
  Object.assign(state, afterwards?.() ?? {});
  afterwards = null;
  settle();
  write();
  if (first) start.build();
  else for (const view of ["sentence", "matrix", "steps"]) stale.add(view);
  buildFlow();
  drawChanges();
  describe(found);
  update({ ...state });
  const milliseconds = performance.now() - found.asked;
  const detail = { tokens: found.ids.length, computed: found.computed, engine: found.milliseconds };
  performance.measure("answer", { start: found.asked, detail });
  byId("reading").append(`${SEPARATOR}${milliseconds.toFixed(0)} ms`);
}

function describe({ labels, computed, dropped, unknown }) {
  const facts = [plural(labels.length, "token")];
  if (computed < labels.length) facts.push(computed ? `${plural(computed, "new one")} computed` : "nothing new to compute");
  if (dropped) facts.push(`${plural(dropped, "more token")} not read: the model reads ${about.sizes.context_length}`);
  if (unknown.length) facts.push(`not among the words of this model: ${shorten([...new Set(unknown)].join(", "), 60)}`);
  byId("reading").textContent = facts.join(SEPARATOR);
}

/** Append a predicted word to the text. */
function append(label) {
  const space = about.tokenizer.kind === "words" && /^\p{L}/u.test(label) && state.text ? " " : "";
  change({ text: `${state.text}${space}${label}` });
}

/** The text field is as high as its text. */
function grow() {
  const field = byId("text");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
}

async function start() {
  const { d_model: width, num_layers: count, num_heads: heads } = about.sizes;
  const millions = (about.parameters / 1e6).toFixed(1);
  byId("title").textContent = `Inside ${about.name}`;
  byId("subtitle").textContent = [
    `${millions} million parameters`, `${count} layers of ${heads} heads`, `${width} numbers per token`,
    "runs in this page, offline",
  ].join(SEPARATOR);
  if (typeof DecompressionStream === "undefined" || typeof Worker === "undefined") {
    byId("message").textContent = "This browser is too old to run the model. Use a browser from 2023 or later.";
    return;
  }
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const reader of readers) reader(new URLSearchParams({ ...about.start, ...given }));
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  engine.heard = show;
  await engine.start();
  follow();
}

/** Read the rest of the selection when the first numbers are there. */
start.read = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  read();
  if (!given.has("layer") && !given.has("head")) Object.assign(state, clearest());
  settle();
  selectStrongestKey();
};

start.build = () => {
  buildTabs();
  buildTools();
  byId("tools").prepend(tool("PyTorch", "Copy as PyTorch", openSnippet));
  byId("message").remove();
  listeners.push((patch) => {
    drawChanges();
    follow();
    update(patch);
  });
  byId("text").addEventListener("input", (event) => change({ text: event.target.value }));
  byId("skip").addEventListener("click", () => byId("main").focus());
  document.addEventListener("keydown", press);
  darkByDefault.addEventListener("change", () => update({}));
  addEventListener("hashchange", () => { read(); follow(); update({ ...state }); });
  addEventListener("resize", grow);
  document.documentElement.dataset.ready = "yes";
  performance.mark("ready");
};

/** The head whose pattern is most above chance; one that matches words, if there is one. */
function clearest() {
  const matches = (pattern) => Number(/^(same token|after a copy)/.test(pattern));
  const all = layers.flatMap(({ info }, number) => info.clear.map((clear, head) =>
    ({ layer: number, head, clear: clear + matches(info.patterns[head]) })));
  const { layer: number, head } = all.reduce((best, each) => (each.clear > best.clear ? each : best));
  return { layer: number, head };
}

delete views.heads;
Object.assign(views, { sentence: overview, whatif: whatIfView, experiments: experimentsView });
Object.assign(VIEWS, { sentence: "Overview", whatif: "What if", experiments: "Experiments" });
CHOICES.view = Object.keys(views);
start().catch((error) => {
  byId("message")?.remove();
  byId("main").prepend(el("p", { class: "message" }, `The model could not be started: ${error.message}`));
  throw error;
});
