// Starts the page in a file.

function describe() {
  const first = layers[0];
  const heads = layers.reduce((sum, each) => sum + each.heads, 0);
  const rows = first.rows.length, columns = first.columns.length;
  const facts = [
    ...about.facts,
    walk && walk.form !== about.title ? walk.form : "",
    rows === columns ? plural(rows, "token") : `${plural(rows, "query", "queries")}, ${plural(columns, "key")}`,
    layers.length > 1 ? plural(layers.length, "layer") : "",
    plural(heads, "head"),
  ];
  byId("title").append(el("bdi", {}, shorten(about.title, 90)));
  byId("subtitle").textContent = facts.filter(Boolean).join(" \u00b7 ");
  byId("notes").append(...about.notes.map((note) => el("p", {}, note)));
}

/** From the tokens to the output of the layer. */
function flowParts() {
  const tokens = {
    name: "Tokens",
    detail: () => plural(layer().rows.length, "token"),
    go: () => ({ view: "sentence" }),
    here: () => false,
  };
  const steps = attentionParts();
  return layers.length > 1
    ? [tokens, { name: layerTitle, parts: steps }]
    : [tokens, ...steps];
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
  if (walk) {
    diagram = flowDiagram(flowParts());
    byId("flow").append(diagram);
  }
  await layer().load();
  selectStrongestKey();
  if (walk) await walk.load();
  byId("message").remove();
  update({ view: state.view });
  listeners.push(update);
  byId("skip").addEventListener("click", () => byId("main").focus());
  document.addEventListener("keydown", press);
  darkByDefault.addEventListener("change", () => update({}));
  addEventListener("hashchange", () => { read(); update({ ...state }); });
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
