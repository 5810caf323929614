// The selection. It is kept in the fragment of the URL, so that a link leads to the same view.

const VIEWS = { sentence: "Sentence", heads: "Heads", matrix: "Matrix", steps: "Steps" };
const state = {
  view: "sentence", layer: 0, head: 0, query: Infinity, key: 0, // the last query, if the URL has none
  scale: "linear", sort: "model", show: "one", several: [], way: "from", pin: false, step: 0,
  theme: "",
};
const CHOICES = {
  view: Object.keys(VIEWS), scale: ["linear", "log"], show: ["one", "several", "all"], way: ["from", "to"],
  theme: ["", "light", "dark"],
};
const listeners = [];
// A page with more to select adds to these: functions of the URL's parameters.
const writers = [], readers = [];
const layer = () => layers[state.layer];

/** Change the selection and notify the views. */
function change(patch) {
  const before = JSON.stringify(state);
  Object.assign(state, patch);
  settle();
  if (JSON.stringify(state) === before) return;
  write();
  listeners.forEach((listener) => listener(patch));
}

/** Bring every value of the selection into the range of the data. */
function settle() {
  const whole = (value, size) => clamp(Number.isNaN(value) ? 0 : value, 0, Math.max(size - 1, 0));
  state.layer = whole(state.layer, layers.length);
  state.head = whole(state.head, layer().heads);
  state.query = whole(state.query, layer().rows.length);
  state.key = whole(state.key, layer().columns.length);
  state.step = whole(state.step, walk ? walk.steps.length : 1);
  const known = (head) => Number.isInteger(head) && head >= 0 && head < layer().heads;
  state.several = [...new Set(state.several)].filter(known).slice(0, PALETTE.heads);
  for (const [name, options] of Object.entries(CHOICES)) {
    if (!options.includes(state[name])) state[name] = options[0];
  }
  if (state.view === "steps" && !walk) state.view = CHOICES.view[0];
}

function write() {
  const params = new URLSearchParams();
  params.set("view", state.view);
  if (layers.length > 1) params.set("layer", state.layer);
  for (const name of ["head", "query", "key"]) params.set(name, state[name]);
  if (state.scale !== "linear") params.set("scale", state.scale);
  if (state.view === "heads" && state.sort !== "model") params.set("sort", state.sort);
  if (state.view === "sentence") {
    params.set("show", state.show);
    params.set("way", state.way);
    if (state.pin) params.set("pin", 1);
    if (state.several.length) params.set("several", state.several.join("."));
  }
  if (state.view === "steps") params.set("step", walk.steps[state.step].number);
  if (state.theme) params.set("theme", state.theme);
  for (const writer of writers) writer(params);
  try {
    history.replaceState(null, "", `#${params}`);
  } catch {
    // The frame in a notebook has no separate URL. Everything else works there.
  }
}

function read() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const params = new URLSearchParams({ ...about.start, ...given });
  for (const name of ["layer", "head", "query", "key"]) {
    if (/^\d{1,7}$/.test(params.get(name) || "")) state[name] = Number(params.get(name));
  }
  for (const name of ["view", "scale", "sort", "show", "way", "theme"]) {
    if (params.has(name)) state[name] = params.get(name);
  }
  state.pin = params.get("pin") === "1";
  if (params.has("several")) state.several = params.get("several").split(".", PALETTE.heads).map(Number);
  if (walk && params.has("step")) {
    state.step = Math.max(0, walk.steps.findIndex((step) => step.number === params.get("step")));
  }
  for (const reader of readers) reader(params);
  settle();
}

/** Unless the URL selects a key, select the one that the query attends to most. */
function selectStrongestKey() {
  if (new URLSearchParams(location.hash.slice(1)).has("key")) return;
  const row = layer().row(state.head, state.query);
  state.key = row.reduce((best, weight, key) => (weight > (row[best] || 0) ? key : best), 0);
}
