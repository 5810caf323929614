// Heads: a small picture of every head, and the name of its pattern.

const SORTS = {
  model: ["as in the model", null],
  pattern: ["by pattern", null],
  sink: ["by weight on the first token", -1],
  previous: ["by weight on the previous token", -1],
  same_token: ["by weight on copies of the token", -1],
  induction: ["by weight on the token after a copy", -1],
  entropy: ["most focused first", 1],
  distance: ["longest distance first", -1],
};
const SMALL = 64; // maximum pixels per side of a picture

/** A small version of a map: each cell is the mean of the visible weights that it covers. */
function thumbnail(from, head) {
  const rows = from.rows.length, columns = from.columns.length;
  const high = Math.min(rows, SMALL), wide = Math.min(columns, SMALL);
  const sums = new Float32Array(high * wide), counts = new Uint32Array(high * wide);
  const down = Uint32Array.from({ length: rows }, (_, i) => Math.floor((i * high) / rows) * wide);
  const across = Uint32Array.from({ length: columns }, (_, j) => Math.floor((j * wide) / columns));
  from.each(head, (position, weight) => {
    const row = Math.floor(position / columns), at = down[row] + across[position - row * columns];
    sums[at] += weight;
    counts[at] += 1;
  });
  for (let i = 0; i < sums.length; i++) sums[i] = counts[i] ? sums[i] / counts[i] : NaN;
  // The first query of a causal map attends only to itself. Its weight of 1 must not make the rest dark.
  const seen = sums.filter((mean) => mean > 0).sort();
  const top = seen[Math.floor(seen.length * (seen.length > 200 ? 0.98 : 1)) - (seen.length > 200 ? 0 : 1)] || 0;
  return { weights: sums, width: wide, height: high, top };
}

const headsView = {
  picture: ".heads",

  opens: "matrix", // the view that a card opens; null to stay

  build(root) {
    this.pictures = new Map();
    this.sorted = null;
    const scores = layers[0].info.scores;
    const measured = (name) => (scores[name] || []).some((score) => score !== null);
    const options = Object.entries(SORTS)
      .filter(([name]) => name === "model" || name === "pattern" || measured(name))
      .map(([name, [text]]) => [name, text]);
    this.sort = select("Order", options, state.sort, (sort) => change({ sort }));
    this.scale = scaleChoice();
    this.grid = el("div", { class: "heads", onkeydown: (event) => this.move(event) });
    root.append(
      el("div", { class: "controls" }, this.sort, this.scale),
      el("p", { class: "lead" },
        "Each picture is one head, with a row for each query and a column for each key. ",
        "Bright cells have large weights. Select a head to see its numbers."),
      this.grid);
  },

  update() {
    this.sort.mark(state.sort);
    this.scale.mark(state.scale);
    if (this.sorted !== state.sort) this.arrange();
    for (const card of this.cards) {
      this.paint(card);
      const here = Number(card.dataset.layer) === state.layer && Number(card.dataset.head) === state.head;
      card.tabIndex = here ? 0 : -1;
      if (here) card.setAttribute("aria-current", "true");
      else card.removeAttribute("aria-current");
    }
  },

  /** Put a card for every head into the selected order. */
  arrange() {
    this.sorted = state.sort;
    const all = layers.flatMap((from) => from.info.patterns.map((pattern, head) => ({ from, head, pattern })));
    const size = all.length <= 6 ? "cards few" : all.length <= 36 ? "cards some" : "cards";
    const [, sign] = SORTS[state.sort] || SORTS.model;
    const score = ({ from, head }) => from.info.scores[state.sort]?.[head] ?? Infinity * (sign || 1);
    if (state.sort === "pattern") all.sort((a, b) => comparePatterns(a.pattern, b.pattern));
    else if (sign) all.sort((a, b) => sign * (score(a) - score(b)) || 0);
    this.cards = [];
    const groups = [];
    const byLayer = !sign && state.sort !== "pattern" && layers.length > 1;
    for (const { from, head, pattern } of all) {
      const card = this.card(from, head, pattern, byLayer);
      this.cards.push(card);
      if (byLayer && head === 0) groups.push(el("h3", { class: "layer" }, shorten(from.name, 48)));
      if (!groups.length || (byLayer && head === 0)) groups.push(el("div", { class: size }));
      groups[groups.length - 1].append(card);
    }
    this.grid.replaceChildren(...groups);
  },

  /** Draw the picture of a card as soon as its layer is unpacked. */
  paint(card) {
    const from = layers[card.dataset.layer], head = Number(card.dataset.head);
    if (!from.ready || card.dataset.scale === state.scale) return;
    card.dataset.scale = state.scale;
    const key = `${from.index}.${head}`;
    if (!this.pictures.has(key)) this.pictures.set(key, thumbnail(from, head));
    const { weights, width, height, top } = this.pictures.get(key);
    const picture = pixels(weights, width, height, scaleTo(top, state.scale));
    picture.setAttribute("aria-hidden", "true");
    card.firstChild.replaceChildren(picture);
  },

  card(from, head, pattern, byLayer) {
    const number = from.number(head);
    const name = byLayer || layers.length === 1 ? `Head ${number}` : `${shorten(from.name, 18)}, head ${number}`;
    return button(
      {
        class: "card",
        "data-layer": from.index,
        "data-head": head,
        onclick: () => change({ layer: from.index, head, ...(this.opens ? { view: this.opens } : {}) }),
        onfocus: () => change({ layer: from.index, head }),
      },
      el("span", { class: "picture hatched" }),
      el("span", { class: "name" }, name),
      el("span", { class: "does" }, pattern),
      from.info.against ? el("span", { class: "against" }, from.info.against[head]) : null);
  },

  move(event) {
    const first = this.cards[0]?.offsetTop;
    const columns = this.cards.filter((card) => card.offsetTop === first).length;
    roving(this.cards, event, { columns });
  },
};

/** Sort by pattern, then by strength. */
function comparePatterns(a, b) {
  const [x, y] = [a, b].map((pattern) => /^(\D+) ([\d.]+)$/.exec(pattern));
  if (!x || !y) return x ? -1 : y ? 1 : a.localeCompare(b, "en", { numeric: true });
  return x[1].localeCompare(y[1], "en") || Number(y[2]) - Number(x[2]);
}
