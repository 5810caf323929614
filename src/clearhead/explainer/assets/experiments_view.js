// Experiments: questions that students are asked, answered by trying.

/**
 * Each experiment has a text per model, the head to select (by the name of a score), and the trials:
 * [name, switches], where the switches may depend on the selection.
 */
const EXPERIMENTS = [
  {
    question: "What does the causal mask do?",
    text: { english: "The dog chased the cat because it was hungry.", grammar: "the dog that the cats chase sees the girl" },
    pick: "previous",
    trials: [["Mask on", {}], ["Mask off", { causal: false }]],
    look: "Compare the maps above the diagonal. In layer 0, does the last row change? And in later layers?",
    answer: "It hides later tokens before softmax, so that no output depends on what comes after it. The last token sees the same " +
      "keys either way, so its row in layer 0 stays. In later layers it changes, because without the mask the earlier tokens " +
      "have already looked ahead.",
  },
  {
    question: "Why are scores divided by \u221ahead_dim?",
    text: { english: "The old woman opened the window and looked out at the rain.", grammar: "the boys that see the dog chase the cat" },
    pick: "entropy",
    trials: [["\u221ahead_dim", {}], ["Not at all", { scaling: "none" }], ["\u221ad_model", { scaling: "model" }]],
    look: "Over how many tokens does the head spread? Which weight is the largest?",
    answer: "The dot product of two vectors with d numbers of variance 1 has variance d. Not divided, scores are large, and softmax " +
      "puts nearly all weight on one key; hardly any gradient is left for the others. Divided by too much, all weights are nearly " +
      "equal. \u221ahead_dim keeps the variance at 1, whatever the size of a head.",
  },
  {
    question: "Why several heads?",
    text: { english: "My sister bought a new car, and she drives it to work.", grammar: "Mary sees the dog that the boys chase" },
    pick: "previous",
    trials: [
      ["All heads", {}],
      ["Without this head", () => ({ ablate: [[state.layer, state.head]] })],
      ["Without this layer's heads", () => ({ ablate: [[state.layer, EVERY]] })],
    ],
    look: "How much does the next word change without one head, and how much without all heads of the layer?",
    answer: "One head makes one mixture per token; several heads make several, at the same cost. They share the work, so one " +
      "missing head often changes little. Try others in \u201cWhat if\u201d: a few matter much more than the rest.",
  },
  {
    question: "How does the model know the order of the words?",
    text: { english: "She put the cup on the table and the plate on the shelf.", grammar: "the girl that sees the boys chases the dog" },
    pick: "previous",
    trials: [["In order", {}], ["Shuffled", { shuffle: 1 }], ["Shuffled differently", { shuffle: 2 }]],
    look: "What happens to the diagonal of a head that attends to the previous token?",
    answer: "Attention itself has no order: a weight depends on a query and a key only. The order comes in through the positions " +
      "(vectors added to the tokens, or angles by which queries and keys are rotated). With the positions of other tokens, a head " +
      "that looks for the previous position finds another token there.",
  },
  {
    question: "What are queries, keys and values for?",
    text: {
      english: "Anna has a red ball. Tom has a blue ball. Anna has a",
      grammar: "Anna sees the dog. Tom sees the cat. Anna sees the",
    },
    pick: "induction",
    trials: [
      ["As trained", {}],
      ["Block its strongest arrow", () => ({ knockout: [[state.layer, state.head, last(), strongest()]] })],
      ["Block that arrow in every head", () => ({ knockout: [[EVERY, EVERY, last(), strongest()]] })],
    ],
    look: "What does the last token attend to most? What becomes of the next word when this arrow is blocked?",
    answer: "Queries and keys decide how much each token gets from each other token; values decide what it gets. A blocked arrow " +
      "changes the \u201chow much\u201d only: the weight goes to the other keys, and what the blocked value would have brought is missing.",
  },
  {
    question: "What does softmax do?",
    text: { english: "He said that the best thing about the summer was the long evenings.", grammar: "the cats that Tom sees chase the dog" },
    pick: "entropy",
    trials: [["Temperature 1", {}], ["0.1", { temperature: 0.1 }], ["10", { temperature: 10 }]],
    look: "Do the weights of a row still add up to 1? Does their order change?",
    answer: "Softmax turns scores into positive weights that add up to 1, and keeps their order. Divided by a small temperature, " +
      "differences grow until one key takes all; divided by a large one, they vanish and every key gets the same.",
  },
];

const last = () => layer().rows.length - 1;

/** The key that the last token attends to most in the selected head, as trained. */
function strongest() {
  const row = layersBefore[state.layer].row(state.head, last());
  return row.reduce((best, weight, key) => (weight > (row[best] || 0) ? key : best), 0);
}

/** The head that has most of a score; for "entropy", the one that is nearest to the middle. */
function bestHead(score) {
  const all = layersBefore.flatMap(({ info }, number) => info.scores[score].map((value, head) => ({ number, head, value })));
  const known = all.filter(({ value }) => value !== null).sort((a, b) => b.value - a.value);
  const { number, head } = score === "entropy" ? known[Math.floor(known.length / 2)] : known[0] ?? all[0];
  return { layer: number, head };
}

const experimentsView = {
  picture: ".comparison",

  build(root) {
    this.items = EXPERIMENTS.map(({ question }, i) => button({ class: "experiment", onclick: () => begin(i) },
      el("span", { class: "stop" }, String(i + 1)), el("span", {}, question)));
    this.body = el("div", { class: "trial" });
    this.comparison = comparison();
    root.append(
      el("ol", { class: "experiments", "aria-label": "Experiments", onkeydown: (event) => roving(this.items, event) },
        this.items.map((item) => el("li", {}, item))),
      el("div", { class: "what-if" }, this.body, this.comparison));
  },

  update() {
    const { question, trials, look, answer: solution, text } = EXPERIMENTS[state.experiment];
    this.items.forEach((item, i) => {
      if (i === state.experiment) item.setAttribute("aria-current", "true");
      else item.removeAttribute("aria-current");
    });
    const started = state.text === text[about.model];
    if (this.shown !== `${state.experiment}.${started}`) {
      this.shown = `${state.experiment}.${started}`;
      this.choice = choice("Try", trials.map(([name], i) => [String(i), name]), "", (i) => tryIt(trials[i][1]));
      this.body.replaceChildren(
        el("h3", {}, question),
        started ? "" : el("p", {}, button({ class: "go strong", onclick: () => begin(state.experiment) }, "Load its sentence")),
        el("h4", {}, "Try"), this.choice,
        el("h4", {}, "Look"), el("p", {}, look),
        el("details", {}, el("summary", {}, "Answer"), el("p", {}, solution)));
    }
    this.choice.mark(String(trials.findIndex(([, switched]) => isSet(switched))));
    this.comparison.update();
  },
};

const resolved = (switched) => ({ ...UNSWITCHED, ...(typeof switched === "function" ? switched() : switched) });
const tryIt = (switched) => change(resolved(switched));

/** Whether exactly these switches are set. */
function isSet(switched) {
  return Object.entries(resolved(switched)).every(([name, value]) => String(state[name]) === String(value));
}

/** Load the sentence of an experiment, and select its head when the numbers are there. */
function begin(experiment) {
  const { text, pick } = EXPERIMENTS[experiment];
  afterwards = () => {
    Object.assign(state, bestHead(pick));
    return { query: last(), key: strongest() };
  };
  change({ ...UNSWITCHED, view: "experiments", experiment, text: text[about.model] });
}
