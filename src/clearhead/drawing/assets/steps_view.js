// Steps: follow one query through attention, with its real numbers.

const MOST_TOKENS = 400; // that can be selected here

const stepsView = {
  picture: ".whole-step",

  build(root) {
    const from = layer();
    this.controls = headControls();
    this.items = from.rows.slice(0, MOST_TOKENS).map((label, i) => {
      const follow = () => change({ query: i });
      return button({ class: "token", onclick: follow, onfocus: follow }, token(label));
    });
    const tokens = el("div", {
      class: "tokens plain",
      role: "group",
      "aria-label": "The token to follow",
      dir: about.rtl[from.info.rows] ? "rtl" : "ltr",
      onkeydown: (event) => roving(this.items, event),
    }, this.items);
    this.stops = walk.steps.map(({ number, title }, i) => button({ onclick: () => change({ step: i }) },
      el("span", { class: "stop" }, number),
      el("span", {}, title.replace("ATTENTION: ", "").toUpperCase())));
    const rail = el("ol", { class: "rail", onkeydown: (event) => roving(this.stops, event) },
      this.stops.map((stop) => el("li", {}, stop)));
    this.before = button({ class: "go", onclick: () => change({ step: state.step - 1 }) }, "\u2190 Previous");
    this.next = button({ class: "go strong", onclick: () => change({ step: state.step + 1 }) }, "Next \u2192");
    this.title = el("h2", { id: "step-title", tabindex: -1 });
    this.body = el("div", { class: "step-body" });
    this.aside = el("aside", { "aria-label": "Shapes and code" });
    const rest = from.rows.length - this.items.length;
    root.append(
      el("div", { class: "controls" }, el("span", { class: "ask" }, "Follow"), tokens, this.controls),
      rest > 0 ? quiet(`and ${plural(rest, "more token")}: select one in the matrix`) : "",
      el("nav", { "aria-label": "Steps" }, rail),
      el("div", { class: "whole-step" },
        el("div", { class: "step-head" }, this.title, el("div", { class: "turn" }, this.before, this.next)),
        el("div", { class: "beside" }, this.body, this.aside)));
  },

  update(patch = {}) {
    this.controls.update();
    if (!layer().ready || !walk.numbers) return;
    const step = walk.steps[state.step];
    this.items.forEach((item, i) => {
      const here = i === state.query;
      item.classList.toggle("source", here);
      item.tabIndex = here ? 0 : -1;
      item.setAttribute("aria-pressed", String(here));
    });
    this.stops.forEach((stop, i) => {
      stop.tabIndex = i === state.step ? 0 : -1;
      if (i === state.step) stop.setAttribute("aria-current", "step");
      else stop.removeAttribute("aria-current");
    });
    const focused = document.activeElement;
    this.before.disabled = state.step === 0;
    this.next.disabled = state.step === walk.steps.length - 1;
    if (focused?.disabled) this.title.focus(); // a disabled button loses the focus
    this.title.replaceChildren(el("span", { class: "stop" }, step.number), ` ${step.title}`);
    const lesson = lessons[step.number] || lessons.other;
    const elsewhere = (walk.layer ?? state.layer) !== state.layer;
    const parts = elsewhere ? this.otherLayer() : lesson(step, followed()).filter(Boolean);
    const coloured = parts.some((part) => part.querySelector(".box"));
    this.body.replaceChildren(...parts, ...(coloured ? [numberLegend()] : []));
    this.aside.replaceChildren(...shapes(step));
    if ("step" in patch) say(`Step ${step.number}, ${step.title}`);
  },

  /** A page in a file has the numbers of one layer's steps. */
  otherLayer() {
    const there = () => change({ layer: walk.layer });
    return [
      explain(`The steps in this file are those of layer ${walk.layer}. `,
        "The page that \u201cclearhead play\u201d writes has those of every layer."),
      button({ class: "go", onclick: there }, `Show layer ${walk.layer}`),
    ];
  },
};

/** The followed query, with every number that step 4 needs. */
function followed() {
  const from = layer(), head = state.head, i = state.query;
  const q = vectorOf(walk.queries, head, i);
  const hidden = Array.from(from.row(head, i), Number.isNaN);
  const scores = from.columns.map((_, j) => dot(q, vectorOf(walk.keys, head, j)));
  const scale = (walk.width ? Math.sqrt(walk.width) : 1) * (walk.temperature ?? 1);
  const scaled = scores.map((score) => score / scale);
  const top = Math.max(...scaled.filter((_, j) => !hidden[j]));
  const shift = top > 20 || top < -4 ? top : 0; // keeps e^x readable
  const powers = scaled.map((score, j) => (hidden[j] ? 0 : Math.exp(score - shift)));
  const sum = powers.reduce((a, b) => a + b, 0);
  const weights = powers.map((power) => (sum > 0 ? power / sum : 0));
  let shown = Array.from(from.columns.keys());
  if (shown.length > MOST_KEYS) {
    const strongest = [...shown].sort((a, b) => weights[b] - weights[a]).slice(0, MOST_KEYS - 1);
    shown = [...new Set([...strongest, state.key])].sort((a, b) => a - b);
  }
  return {
    from, head, i, label: from.rows[i], many: from.heads > 1,
    q, hidden, scores, scale, scaled, shift, powers, sum, weights, shown,
  };
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

/** The names of the axes of a tensor, without the batch. */
function axesOf(name) {
  const dims = name === "x" ? walk.steps[0].before : walk.steps.find((step) => name in step.dims).dims[name];
  return dims.map(([axis]) => axis).filter((axis) => axis !== "batch");
}

/** The vector of a token in a tensor; of one head, if the tensor has heads. */
function vectorOf(name, head, i) {
  const index = axesOf(name).slice(0, -1).map((axis, axisIndex) => {
    if (axis === "heads") return head;
    if (axis === "kv_heads") return Math.floor((head * walk.tensors[name].shape[axisIndex]) / layer().heads);
    return i;
  });
  return walk.vector(name, ...index);
}
