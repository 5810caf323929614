// The switches of "What if", which are part of the selection and of the URL.

const EVERY = -1; // every layer, or every head
const TEMPERATURES = [0.1, 0.2, 0.5, 1, 2, 5, 10];
const SCALES = { head: "\u221ahead_dim", none: "nothing", model: "\u221ad_model" };
const UNSWITCHED = { causal: true, scaling: "head", temperature: 1, ablate: [], knockout: [], shuffle: 0 };
Object.assign(state, { text: "", experiment: 0, ...UNSWITCHED });

/** The switches as the worker takes them. */
const switches = () => ({
  causal: state.causal, scale: state.scaling, temperature: state.temperature,
  ablate: state.ablate, knockout: state.knockout, shuffle: state.shuffle,
});
const isSwitched = () => changesInWords().length > 0;

const joinedList = (list) => list.map((numbers) => numbers.map((n) => (n === EVERY ? "*" : n)).join(".")).join("_");

/** Lists such as 2.3_4.*, of tuples with `size` whole numbers. */
function splitList(text, size) {
  const numbers = (part) => part.split(".").map((n) => (n === "*" ? EVERY : /^\d{1,4}$/.test(n) ? Number(n) : NaN));
  return text.split("_", 64).map(numbers).filter((list) => list.length === size && !list.some(Number.isNaN));
}

writers.push((params) => {
  params.set("text", state.text);
  if (!state.causal) params.set("causal", 0);
  if (state.scaling !== "head") params.set("scaling", state.scaling);
  if (state.temperature !== 1) params.set("temperature", state.temperature);
  if (state.ablate.length) params.set("ablate", joinedList(state.ablate));
  if (state.knockout.length) params.set("knockout", joinedList(state.knockout));
  if (state.shuffle) params.set("shuffle", state.shuffle);
  if (state.view === "experiments") params.set("experiment", state.experiment + 1);
});

readers.push((params) => {
  state.text = (params.get("text") ?? "").slice(0, 4000);
  state.causal = params.get("causal") !== "0";
  state.scaling = Object.hasOwn(SCALES, params.get("scaling") ?? "") ? params.get("scaling") : "head";
  const temperature = Number(params.get("temperature") ?? 1);
  state.temperature = temperature >= 0.01 && temperature <= 100 ? temperature : 1;
  const { num_layers: count, num_heads: heads } = about.sizes;
  const exists = ([number, head]) => number < count && head < heads;
  state.ablate = splitList(params.get("ablate") ?? "", 2).filter(exists);
  state.knockout = splitList(params.get("knockout") ?? "", 4).filter(exists).filter(([, , query, key]) => query >= 0 && key >= 0);
  state.shuffle = /^\d{1,6}$/.test(params.get("shuffle") ?? "") ? Number(params.get("shuffle")) : 0;
  state.experiment = clamp((Number(params.get("experiment")) || 1) - 1, 0, EXPERIMENTS.length - 1);
});

const headName = ([number, head]) =>
  (head === EVERY ? `all heads of layer ${number}` : `head ${head} of layer ${number}`);

/** Each switch that is not as trained, in words, with the selection that undoes it. */
function changesInWords() {
  const label = (i) => about.labels[0][i] ?? `token ${i}`;
  const without = (list, item) => list.filter((each) => each !== item);
  return [
    !state.causal && ["causal mask off", { causal: true }],
    state.scaling === "none" && ["scores not divided", { scaling: "head" }],
    state.scaling === "model" && [`scores divided by ${SCALES.model}`, { scaling: "head" }],
    state.temperature !== 1 && [`temperature ${state.temperature}`, { temperature: 1 }],
    ...state.ablate.map((one) => [`without ${headName(one)}`, { ablate: without(state.ablate, one) }]),
    ...state.knockout.map((one) => [
      `${label(one[2])} may not attend to ${label(one[3])} ${one[0] === EVERY ? "anywhere" : `in ${headName(one)}`}`,
      { knockout: without(state.knockout, one) },
    ]),
    state.shuffle && ["positions shuffled", { shuffle: 0 }],
  ].filter(Boolean);
}
