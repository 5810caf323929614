// Sentence: the tokens in a line. Point to one to see what it attends to, or what attends to it.

const CURVES = 64; // maximum tokens with curves; with more, there is no room between the lines
const FAINT = 32; // maximum tokens for which the curves of all queries are drawn in the background
const ARCH = 150; // the height of the highest arch; between lines there is less room
const SPACE = "\u00a0";

const sentenceView = {
  picture: ".beside",

  build(root) {
    this.hover = this.drawn = null;
    this.controls = headControls();
    const shows = [["one", "One head"], ["several", "Several"], ["all", "All"]];
    this.show = choice("Heads", shows, state.show, (show) => {
      const first = show === "several" && !state.several.length;
      change({ show, several: first ? [state.head, (state.head + 1) % layer().heads] : state.several });
    });
    const ways = [["from", "What it attends to"], ["to", "What attends to it"]];
    this.way = choice("Direction", ways, state.way, (way) => change({ way }));
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Heads to compare" });
    this.lead = el("p", { class: "lead" });
    this.curves = svgEl("svg", { class: "curves", "aria-hidden": "true" });
    this.lines = el("div", { class: "lines" });
    this.aside = el("aside", { "aria-label": "Largest weights" });
    this.stage = el("div", { class: "stage" }, this.curves, this.lines);
    root.append(
      el("div", { class: "controls" }, this.controls, this.show, this.way),
      this.chips,
      this.lead,
      el("div", { class: "beside" }, this.stage, this.aside));
    new ResizeObserver(() => { if (state.view === "sentence") this.drawCurves(); }).observe(this.stage);
  },

  update() {
    this.controls.update();
    this.show.mark(state.show);
    this.show.hidden = layer().heads < 2;
    this.way.mark(state.way);
    if (!layer().ready) return;
    if (this.drawn !== state.layer) {
      this.drawn = state.layer;
      this.hover = null;
      this.drawTokens();
      this.drawChips();
    }
    for (const chip of this.chips.children) {
      const index = state.several.indexOf(Number(chip.dataset.head));
      chip.setAttribute("aria-pressed", String(index >= 0));
      chip.firstChild.style.setProperty("background-color", index < 0 ? "transparent" : `var(--head-${index})`);
    }
    this.chips.hidden = state.show !== "several" || layer().heads < 2;
    this.drawWeights();
  },

  heads() {
    if (layer().heads < 2) return [0];
    if (state.show === "all") return ["all"];
    return state.show === "several" && state.several.length ? state.several : [state.head];
  },

  drawChips() {
    this.chips.replaceChildren(...layer().info.patterns.map((pattern, head) => button(
      { "data-head": head, title: pattern, onclick: () => this.compare(head) },
      el("span", { class: "dot" }), `Head ${layer().number(head)}`)));
  },

  compare(head) {
    const others = state.several.filter((each) => each !== head);
    if (others.length < state.several.length) change({ several: others });
    else if (others.length < PALETTE.heads) change({ several: [...others, head] });
    else say(`At most ${PALETTE.heads} heads at a time.`);
  },

  drawTokens() {
    const from = layer();
    if (from.same) {
      this.rowLine = this.columnLine = this.line(from.rows, from.info.rows, "both", "Tokens");
      this.lines.replaceChildren(this.rowLine);
      return;
    }
    const titles = ["Queries: the tokens that attend", "Keys: the tokens that they attend to"];
    this.rowLine = this.line(from.rows, from.info.rows, "row", titles[0]);
    this.columnLine = this.line(from.columns, from.info.columns, "column", titles[1]);
    this.lines.replaceChildren(el("h3", {}, titles[0]), this.rowLine, el("h3", {}, titles[1]), this.columnLine);
  },

  /** The tokens of the queries, of the keys, or of both. */
  line(labels, which, side, name) {
    const items = labels.map((label, i) => button(
      {
        class: "token",
        tabindex: -1,
        onpointerenter: (event) => { if (event.pointerType !== "touch") this.point(side, i); },
        onfocus: () => this.choose(side, i),
        onclick: () => this.pin(side, i),
      },
      token(label), el("span", { class: "meter", "aria-hidden": "true" }), el("span", { class: "amount" })));
    const size = labels.length > 60 ? "many" : labels.length <= 14 ? "large" : "";
    const list = el("div", {
      class: `tokens ${size}`,
      role: "group",
      "aria-label": name,
      dir: about.rtl[which] ? "rtl" : "ltr",
      onkeydown: (event) => { if (!["ArrowUp", "ArrowDown"].includes(event.key)) roving(items, event); },
      onpointerleave: () => this.point(null),
    }, items);
    list.items = items;
    return list;
  },

  /** The token under the pointer, or else the selected one. */
  at() {
    const index = state.way === "from" ? state.query : state.key;
    return this.hover && !state.pin ? this.hover : { way: state.way, index };
  },

  wayOf(side) {
    return side === "both" ? state.way : side === "row" ? "from" : "to";
  },

  point(side, i) {
    this.hover = side === null ? null : { way: this.wayOf(side), index: i };
    if (!state.pin) this.drawWeights();
  },

  choose(side, i) {
    if (state.pin) return;
    const way = this.wayOf(side);
    this.hover = null;
    change(way === "from" ? { way, query: i } : { way, key: i });
    say(this.inWords());
  },

  pin(side, i) {
    const way = this.wayOf(side), here = way === "from" ? state.query : state.key;
    const off = state.pin && state.way === way && here === i;
    change({ pin: !off, way, ...(way === "from" ? { query: i } : { key: i }) });
    say(state.pin ? `Pinned. ${this.inWords()}` : "Unpinned.");
  },

  weightsOf(head, { way, index }) {
    return way === "from" ? layer().row(head, index) : layer().column(head, index);
  },

  inWords() {
    const at = this.at(), from = layer();
    const weights = this.weightsOf(this.heads()[0], at);
    let best = -1;
    for (let i = 0; i < weights.length; i++) if (weights[i] > (weights[best] ?? 0)) best = i;
    const [mine, theirs] = at.way === "from" ? [from.rows, from.columns] : [from.columns, from.rows];
    if (best < 0) return `${mine[at.index]}: everything is hidden.`;
    const [query, key] = at.way === "from" ? [mine[at.index], theirs[best]] : [theirs[best], mine[at.index]];
    return `${query} attends most to ${key}: ${fixed(weights[best])}`;
  },

  drawLead(at, heads) {
    const from = layer();
    const label = token((at.way === "from" ? from.rows : from.columns)[at.index], 40, true);
    let what = from.heads > 1 || from.number(0) > 0 ? `head ${from.number(heads[0])}` : "one head";
    if (heads[0] === "all") what = "the mean of all heads";
    if (heads.length > 1) what = `${heads.length} heads, each in its own colour`;
    this.lead.replaceChildren(
      ...(at.way === "from" ? ["What ", label, " attends to: "] : ["What attends to ", label, ": "]),
      `${what}. `,
      state.pin ? "Pinned. Select it again to unpin it." : "Point to a token, or select one to pin it.");
  },

  drawWeights() {
    const from = layer(), at = this.at(), heads = this.heads();
    const all = heads.map((head) => this.weightsOf(head, at));
    const lines = [this.rowLine, this.columnLine];
    const [own, other] = at.way === "from" ? lines : lines.reverse();
    this.drawLead(at, heads);
    const look = { coloured: heads.length > 1, many: other.classList.contains("many") };
    for (const line of new Set(lines)) {
      line.items.forEach((item, i) => {
        const source = line === own && i === at.index;
        item.classList.toggle("source", source);
        item.tabIndex = source || (line !== own && i === 0) ? 0 : -1;
        item.setAttribute("aria-pressed", String(source && state.pin));
        this.drawToken(item, line === other ? all.map((weights) => weights[i]) : null, look);
      });
    }
    this.stage.classList.toggle("coloured", look.coloured);
    this.drawCurves();
    this.drawAside(heads, all, at, from);
  },

  /** Draw the weights of a token in each selected head; null for a token without weights. */
  drawToken(item, weights, { coloured, many }) {
    const [, meter, amount] = item.children;
    const hidden = weights !== null && weights.every(Number.isNaN);
    const best = weights === null || hidden ? 0 : Math.max(...weights.map((weight) => weight || 0));
    item.classList.toggle("hidden", hidden);
    item.style.setProperty("--tint", coloured ? "0%" : `${Math.round(48 * Math.sqrt(best))}%`);
    const bars = weights === null || hidden || (many && !coloured) ? [] : weights;
    meter.replaceChildren(...bars.map((weight, k) => el("span", { class: "tube" }, el("span", {
      class: "fill",
      style: {
        height: `${100 * (weight || 0)}%`,
        "background-color": coloured ? `var(--head-${k})` : "var(--accent)",
      },
    }))));
    const silent = weights === null || coloured || (many && (hidden || best < 0.005));
    amount.textContent = hidden && !many ? "hidden" : silent ? SPACE : fixed(best);
  },

  /** Curves from the selected token to those that it attends to, or that attend to it. */
  drawCurves() {
    this.curves.replaceChildren();
    if (!this.rowLine || !layer().same) return;
    const at = this.at(), items = this.rowLine.items, arched = items.length <= CURVES;
    this.stage.classList.toggle("arched", arched);
    if (!arched) return;
    const bounds = this.stage.getBoundingClientRect();
    const boxes = items.map((item) => item.getBoundingClientRect());
    const top = (i) => boxes[i].top - bounds.top - 3, bottom = (i) => boxes[i].bottom - bounds.top + 3;
    const middle = (i) => boxes[i].left - bounds.left + boxes[i].width / 2;
    const heads = this.heads();
    const ends = (i, shift = 0) => ({ x: middle(i) + shift, top: top(i), bottom: bottom(i) });
    if (heads.length === 1 && items.length <= FAINT) this.drawFaint(heads[0], at, ends);
    heads.forEach((head, k) => {
      const shift = (k - (heads.length - 1) / 2) * 5;
      this.weightsOf(head, at).forEach((weight, i) => {
        if (!(weight >= 0.01)) return;
        const path = curve(ends(at.index, shift), ends(i, shift));
        const style = {
          stroke: heads.length > 1 ? `var(--head-${k})` : "var(--accent)",
          "stroke-width": `${1 + (i === at.index ? 4 : 8) * weight}px`,
          opacity: String(0.25 + 0.7 * weight),
        };
        this.curves.append(svgEl("path", { d: path, fill: "none", "stroke-linecap": "round", style }));
      });
    });
  },

  /** The large weights of all other tokens, in the background. */
  drawFaint(head, at, ends) {
    layer().each(head, (position, weight) => {
      const count = layer().columns.length, query = Math.floor(position / count), key = position % count;
      if (weight < 0.25 || query === key || (at.way === "from" ? query : key) === at.index) return;
      const style = { stroke: "var(--quiet)", "stroke-width": `${0.5 + 2 * weight}px`, opacity: "0.2" };
      this.curves.append(svgEl("path", { d: curve(ends(query), ends(key)), fill: "none", style }));
    });
  },

  drawAside(heads, all, at, from) {
    const labels = at.way === "from" ? from.columns : from.rows;
    const most = heads.length > 2 ? 3 : heads.length > 1 ? 5 : 8;
    const pick = (i) => {
      this.hover = null;
      change({ view: "matrix", ...(at.way === "from" ? { query: at.index, key: i } : { query: i, key: at.index }) });
    };
    this.aside.replaceChildren(...heads.map((head, k) => {
      const colour = { style: { "background-color": `var(--head-${k})` } };
      const dot = heads.length > 1 ? el("span", { class: "dot", ...colour }) : null;
      const heading = el("h3", {}, dot, from.title(head));
      const list = ranking(heading, all[k], labels, -1, pick, most);
      if (head !== "all") heading.after(quiet(from.info.patterns[head]));
      if (heads.length > 1) list.style.setProperty("--accent", `var(--head-${k})`);
      return list;
    }));
  },
};

/** An arch between two tokens of one line, a ring for a token itself, a curve between two lines. */
function curve(a, b) {
  if (a.x === b.x && a.top === b.top) return `M${a.x - 3} ${a.top}A8 8 0 1 1 ${a.x + 3} ${a.top}`;
  if (Math.abs(a.top - b.top) < 2) {
    const rise = Math.min(20 + Math.abs(a.x - b.x) * 0.22, a.top - 4, ARCH);
    return `M${a.x} ${a.top}C${a.x} ${a.top - rise} ${b.x} ${b.top - rise} ${b.x} ${b.top}`;
  }
  const [high, low] = a.top < b.top ? [a, b] : [b, a], bend = Math.max(24, (low.top - high.bottom) / 2);
  return `M${low.x} ${low.top}C${low.x} ${low.top - bend} ${high.x} ${high.bottom + bend} ${high.x} ${high.bottom}`;
}
