// What if: the switches, and the model before and after, side by side.

/** Attention and next words of the model as trained and as switched now. */
function comparison() {
  const caption = el("p", { class: "lead" });
  const side = (title) => {
    const parts = {
      map: el("span", { class: "picture hatched" }),
      note: el("p", { class: "quiet" }),
      attends: el("div", {}),
      words: el("div", {}),
    };
    return { ...parts, whole: el("section", { class: "side" }, el("h3", {}, title), Object.values(parts)) };
  };
  const before = side("As trained"), after = side("With the switches");
  const result = el("p", { class: "verdict" });
  const whole = el("div", { class: "comparison" }, caption,
    el("div", { class: "sides" }, before.whole, after.whole), result);
  whole.update = () => {
    const { layer: number, head, query } = state;
    const label = token(layer().rows[query], 24, true);
    caption.replaceChildren(`Layer ${number}, head ${head}. What `, label, " attends to, and what comes next.");
    for (const [show, all, { next }] of [[before, layersBefore, answer.before], [after, layers, answer.after]]) {
      const from = all[number];
      const count = from.rows.length;
      const picture = pixels(from.weights(head), count, count, scaleTo(1, state.scale));
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", `Attention of head ${head}: ${from.info.patterns[head]}`);
      show.map.replaceChildren(picture);
      show.note.textContent = `${from.info.patterns[head]} (${from.info.against[head]})`;
      show.attends.replaceChildren(ranking(el("h4", {}, token(from.rows[query], 18), " attends to"),
        from.row(head, query), from.columns, state.key, (key) => change({ key }), 5));
      show.words.replaceChildren(nextWords(next, 5));
    }
    result.replaceChildren(...verdict());
  };
  return whole;
}

/** How much the switches changed, in one sentence. */
function verdict() {
  if (!isSwitched()) return ["Nothing is switched: both sides are the same."];
  const { before, after } = answer;
  let moved = 0;
  for (let id = 0; id < before.shares.length; id++) moved += Math.abs(before.shares[id] - after.shares[id]) / 2;
  const best = before.next[0], now = after.shares[best.id];
  return [
    `${(100 * moved).toFixed(moved < 0.1 ? 1 : 0)} % of the probability of the next word moved to other words. `,
    token(visible(best.label), 24, true), ` had ${best.share.toFixed(3)}, and has ${now.toFixed(3)} now.`,
  ];
}

/** The most likely next words. Selecting one appends it to the text. */
function nextWords(next, most = next.length) {
  const items = next.slice(0, most).map(({ label, share }) => {
    const bar = el("span", { class: "fill", style: { width: `${100 * share}%` } });
    return el("li", {}, button(
      { class: "rank", title: "Append this to the text", onclick: () => append(label) },
      token(visible(label), 18),
      el("span", { class: "track", "aria-hidden": "true" }, bar),
      el("span", { class: "amount" }, fixed(share, 3))));
  });
  return el("section", { class: "ranking next-words" }, el("h4", {}, "Next word"), el("ol", {}, items));
}

const whatIfView = {
  picture: ".comparison",

  build(root) {
    const setting = (title, control, look) => el("div", { class: "setting" },
      el("h3", {}, title), control, quiet(look));
    this.headControls = headControls();
    this.causal = choice("Causal mask", [["on", "On"], ["off", "Off"]], "on", (value) => change({ causal: value === "on" }));
    this.scaling = choice("Scores are divided by", Object.entries(SCALES), "head", (scaling) => change({ scaling }));
    const degrees = TEMPERATURES.map((each) => [String(each), String(each)]);
    this.temperature = choice("Temperature", degrees, "1", (value) => change({ temperature: Number(value) }));
    this.ablateHead = button({ class: "go", onclick: () => toggle("ablate", [state.layer, state.head]) });
    this.ablateLayer = button({ class: "go", onclick: () => toggle("ablate", [state.layer, EVERY]) });
    const block = (number, head) => toggle("knockout", [number, head, state.query, state.key]);
    this.blockHere = button({ class: "go", onclick: () => block(state.layer, state.head) }, "In this head");
    this.blockEverywhere = button({ class: "go", onclick: () => block(EVERY, EVERY) }, "In every head");
    this.query = el("select", { onchange: (event) => change({ query: Number(event.target.value) }) });
    this.key = el("select", { onchange: (event) => change({ key: Number(event.target.value) }) });
    this.shuffle = button({ class: "go", onclick: () => change({ shuffle: state.shuffle + 1 }) });
    this.inOrder = button({ class: "go", onclick: () => change({ shuffle: 0 }) }, "In order");
    this.comparison = comparison();
    const named = (text, list) => el("label", { class: "select" }, el("span", {}, text), list);
    root.append(el("div", { class: "what-if" },
      el("div", { class: "settings" },
        el("div", { class: "setting" }, this.headControls),
        setting("Causal mask", this.causal,
          "Off: does the map fill above the diagonal? In training, the model never saw later tokens."),
        setting("Scores are divided by", this.scaling,
          "Not divided: does one key get nearly all weight? Divided by more: do the weights become equal?"),
        setting("Temperature of softmax", this.temperature,
          "Below 1, the largest weight grows. Above 1, the weights become equal. Their order stays."),
        setting("Ablate", el("div", { class: "group" }, this.ablateHead, this.ablateLayer),
          "The output of the head becomes zero. Compare one head with all heads of a layer: how much does the next word change?"),
        setting("Block one arrow",
          el("div", { class: "group" }, named("query", this.query), named("key", this.key), this.blockHere, this.blockEverywhere),
          "The weight goes to the other keys. If the next word changes, this arrow carried something."),
        setting("Positions", el("div", { class: "group" }, this.shuffle, this.inOrder),
          "Each token gets the position of another. Does a head that attends to the previous token still find it?")),
      this.comparison));
  },

  update() {
    this.headControls.update();
    this.causal.mark(state.causal ? "on" : "off");
    this.scaling.mark(state.scaling);
    this.temperature.mark(String(state.temperature));
    const has = (list, item) => list.some((each) => String(each) === String(item));
    const press = (element, pressed, text) => {
      element.setAttribute("aria-pressed", String(pressed));
      if (text) element.textContent = text;
    };
    press(this.ablateHead, has(state.ablate, [state.layer, state.head]), `Head ${state.head}`);
    press(this.ablateLayer, has(state.ablate, [state.layer, EVERY]), `All heads of layer ${state.layer}`);
    press(this.blockHere, has(state.knockout, [state.layer, state.head, state.query, state.key]));
    press(this.blockEverywhere, has(state.knockout, [EVERY, EVERY, state.query, state.key]));
    this.shuffle.textContent = state.shuffle ? "Shuffle again" : "Shuffle";
    this.inOrder.disabled = !state.shuffle;
    if (this.labels !== about.labels[0]) {
      this.labels = about.labels[0];
      const options = () => this.labels.map((label, i) => el("option", { value: i }, `${i} ${shorten(label, 18)}`));
      this.query.replaceChildren(...options());
      this.key.replaceChildren(...options());
    }
    this.query.value = String(state.query);
    this.key.value = String(state.key);
    this.comparison.update();
  },
};

/** Add an item to a list of the selection, or remove it. */
function toggle(name, item) {
  const others = state[name].filter((each) => String(each) !== String(item));
  change({ [name]: others.length < state[name].length ? others : [...others, item] });
}
