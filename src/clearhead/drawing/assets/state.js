// What is looked at. It stands in the address after the #, so that a link leads to the same place.

const MOST_HEADS = 8; // as many as there are colours for heads side by side
const VIEWS = { heads: "Heads", matrix: "Matrix", sentence: "Sentence", steps: "Steps" };
const state = {
  view: "heads", layer: 0, head: 0, query: 0, key: 0,
  scale: "linear", sort: "place", show: "one", several: [], way: "from", pin: false, step: 0,
  theme: "",
};
const CHOICES = {
  view: Object.keys(VIEWS), scale: ["linear", "log"], show: ["one", "several", "all"], way: ["from", "to"],
  theme: ["", "light", "dark"],
};
const listeners = [];
const layer = () => layers[state.layer];

/** Change what is looked at; views hear of it. */
function change(patch) {
  const before = JSON.stringify(state);
  Object.assign(state, patch);
  settle();
  if (JSON.stringify(state) === before) return;
  write();
  listeners.forEach((listener) => listener(patch));
}

/** Bring every number into the range of the data. */
function settle() {
  const whole = (value, size) => clamp(Number.isInteger(value) ? value : 0, 0, Math.max(size - 1, 0));
  state.layer = whole(state.layer, layers.length);
  state.head = whole(state.head, layer().heads);
  state.query = whole(state.query, layer().rows.length);
  state.key = whole(state.key, layer().columns.length);
  state.step = whole(state.step, walk ? walk.steps.length : 1);
  const known = (head) => Number.isInteger(head) && head >= 0 && head < layer().heads;
  state.several = [...new Set(state.several)].filter(known).slice(0, MOST_HEADS);
  for (const [name, options] of Object.entries(CHOICES)) {
    if (!options.includes(state[name])) state[name] = options[0];
  }
  if (state.view === "steps" && !walk) state.view = "heads";
}

function write() {
  const said = new URLSearchParams();
  said.set("view", state.view);
  if (layers.length > 1) said.set("layer", state.layer);
  for (const name of ["head", "query", "key"]) said.set(name, state[name]);
  if (state.scale !== "linear") said.set("scale", state.scale);
  if (state.view === "heads" && state.sort !== "place") said.set("sort", state.sort);
  if (state.view === "sentence") {
    said.set("show", state.show);
    said.set("way", state.way);
    if (state.pin) said.set("pin", 1);
    if (state.several.length) said.set("several", state.several.join("."));
  }
  if (state.view === "steps") said.set("step", walk.steps[state.step].number);
  if (state.theme) said.set("theme", state.theme);
  try {
    history.replaceState(null, "", `#${said}`);
  } catch {
    // A notebook's frame has no address of its own; everything else works there.
  }
}

function read() {
  const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const said = new URLSearchParams({ ...about.start, ...asked });
  for (const name of ["layer", "head", "query", "key"]) {
    if (/^\d{1,7}$/.test(said.get(name) || "")) state[name] = Number(said.get(name));
  }
  for (const name of ["view", "scale", "sort", "show", "way", "theme"]) {
    if (said.has(name)) state[name] = said.get(name);
  }
  state.pin = said.get("pin") === "1";
  if (said.has("several")) state.several = said.get("several").split(".", MOST_HEADS).map(Number);
  if (walk && said.has("step")) {
    state.step = Math.max(0, walk.steps.findIndex((step) => step.number === said.get("step")));
  }
  settle();
}
