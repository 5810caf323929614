// Matrix: the weights of one head, each with its exact number.

/** The font size of labels in pixels. It grows with the font size of the page. */
const labelSize = () => 0.8125 * parseFloat(getComputedStyle(document.documentElement).fontSize);

/** A number of the legend: two digits are enough, and 0.99988 is 1.0. */
const rounded = (value) => (value >= 0.995 ? value.toFixed(1) : String(Number(value.toPrecision(2))));

const matrixView = {
  build(root) {
    this.zoom = 1;
    this.hover = this.drawn = this.box = null;
    this.controls = headControls();
    this.scale = scaleChoice();
    this.zooms = el("div", { class: "choice", role: "group", "aria-label": "Zoom" },
      button({ "aria-label": "Zoom out", onclick: () => this.resize(1 / 1.5) }, "\u2212"),
      button({ onclick: () => this.resize(0) }, "Fit"),
      button({ "aria-label": "Zoom in", onclick: () => this.resize(1.5) }, "+"));
    this.base = el("canvas", { "aria-hidden": "true" });
    this.over = el("canvas", {
      class: "over",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "matrix",
      "aria-describedby": "matrix-help",
      onkeydown: (event) => this.press(event),
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.leave(),
      onclick: (event) => this.click(event),
      ondblclick: () => change({ view: "sentence", pin: true }),
      onfocus: () => this.tell(),
    });
    this.sheet = el("div", { class: "sheet" }, this.base, this.over);
    this.spacer = el("div", { class: "spacer" }, this.sheet);
    this.scroller = el("div", { class: "scroller", onscroll: () => this.paint() }, this.spacer);
    this.legend = el("div", { class: "legend" });
    this.readout = el("div", { class: "readout", id: "readout" });
    this.attendsTo = el("div", {});
    this.attendedBy = el("div", {});
    const help = "Arrow keys move from cell to cell. Home and End go to the first and last key of the row.";
    this.beside = el("div", { class: "beside snug" },
      el("figure", { class: "plot" }, this.scroller, el("figcaption", {}, this.legend)),
      el("aside", { "aria-label": "Selected cell" }, this.readout, this.attendsTo, this.attendedBy));
    root.append(
      el("div", { class: "controls" }, this.controls, this.scale, this.zooms),
      el("p", { class: "unseen", id: "matrix-help" }, help),
      this.beside);
    new ResizeObserver(() => { if (state.view === "matrix") this.fit(); }).observe(this.beside);
  },

  resize(by) {
    this.zoom = by ? clamp(this.zoom * by, 1, 40) : 1;
    this.fit();
    this.follow();
  },

  update(patch = {}) {
    this.controls.update();
    this.scale.mark(state.scale);
    if (!layer().ready) return;
    const wanted = [state.layer, state.head, state.scale, document.documentElement.dataset.theme].join();
    if (wanted !== this.drawn) {
      this.drawn = wanted;
      this.take();
    } else if (patch.view) this.fit();
    if ("query" in patch || "key" in patch) this.follow();
    this.paintOver();
    this.drawAside();
  },

  /** Read the weights of the selected head. */
  take() {
    const from = layer(), width = from.columns.length;
    this.hover = null;
    this.weights = from.weights(state.head);
    this.top = brightest(this.weights, width);
    this.more = rounded(largest(this.weights)) !== rounded(this.top);
    this.map = scaleTo(this.top, state.scale);
    Object.assign(this, sums(this.weights, from.rows.length, width));
    this.picture = pixels(this.weights, width, from.rows.length, this.map);
    const pattern = from.info.patterns[state.head];
    this.over.setAttribute("aria-label", `Attention weights, ${from.title(state.head)}: ${pattern}`);
    this.drawLegend();
    this.fit();
  },

  /** Choose the size of a cell, and lay out labels, cells and sums. */
  fit() {
    if (!this.weights || !this.beside.clientWidth) return;
    const from = layer(), rows = from.rows.length, columns = from.columns.length;
    const fontSize = labelSize(), times = fontSize / 13;
    const c = this.base.getContext("2d");
    c.font = `600 ${fontSize}px ${FONT}`;
    const widthOf = (label) => c.measureText(shorten(label, 16)).width;
    const widest = (labels) => Math.max(8, ...labels.slice(0, 2000).map(widthOf));
    const across = widest(from.columns);
    const left = Math.ceil(Math.min(widest(from.rows), 130 * times)) + 14;
    const right = 58 * times, bottom = 50 * times;
    const { display, columnGap } = getComputedStyle(this.beside);
    const aside = display === "grid" ? this.beside.lastChild.offsetWidth + parseFloat(columnGap) : 0;
    const room = this.beside.clientWidth - aside;
    const start = this.scroller.getBoundingClientRect().top + window.scrollY;
    // A large matrix may be as high as the window, because the page can scroll.
    const tall = rows > 8 ? Math.min(room, window.innerHeight - 140) : 0;
    const high = Math.max(window.innerHeight - start - 110, 300, tall);
    const largestCell = (top) => Math.min((room - left - right) / columns, (high - top - bottom) / rows);
    let top = 30 * times, cell = largestCell(top);
    if (across + 8 > Math.min(cell, 72 * times) && cell * this.zoom >= 12) {
      top = Math.ceil(Math.min(across, 120 * times)) + 14; // column labels are rotated
      cell = largestCell(top);
    }
    cell = Math.min(cell, 72 * times);
    cell = clamp(cell * this.zoom, cell, Math.max(48 * times, cell));
    if (cell > 8) cell = Math.floor(cell);
    const upright = across + 8 <= cell || cell < 12;
    this.box = { left, top, right, bottom, cell, rows, columns, upright, fontSize };
    const width = left + columns * cell + right, height = top + rows * cell + bottom;
    this.spacer.style.width = `${width}px`;
    this.spacer.style.height = `${height}px`;
    this.scroller.style.width = `${Math.min(width, room)}px`;
    this.scroller.style.maxHeight = `${high}px`;
    this.over.dataset.box = [left, top, cell].join(" ");
    this.paint();
  },

  /** The visible part, in pixels of the whole picture. */
  window() {
    const { scroller, spacer } = this;
    const width = Math.min(scroller.clientWidth, spacer.offsetWidth);
    const height = Math.min(scroller.clientHeight, spacer.offsetHeight);
    return { x: scroller.scrollLeft, y: scroller.scrollTop, width, height };
  },

  paint() {
    if (!this.box) return;
    const view = this.window();
    this.sheet.style.width = `${view.width}px`;
    this.sheet.style.height = `${view.height}px`;
    paintMatrix(new CanvasPen(this.base, view.width, view.height), this, view);
    this.paintOver();
  },

  /** The crosshair, on its own canvas, so that moving it redraws nothing else. */
  paintOver() {
    if (!this.box) return;
    const view = this.window(), { left, top, right, bottom, cell, upright, fontSize } = this.box;
    const pen = new CanvasPen(this.over, view.width, view.height);
    const at = this.hover || state;
    const x = left + at.key * cell - view.x, y = top + at.query * cell - view.y;
    const wide = view.width - left - right, high = view.height - top - bottom;
    const style = { size: fontSize, weight: 700, colour: ink("mark-text") };
    pen.within(0, top, view.width, high, () => {
      const thick = Math.max(cell, 1.3 * fontSize), middle = y + cell / 2;
      pen.rect(0, middle - thick / 2, left - 4, thick, ink("mark"));
      const label = fitted(layer().rows[at.query], left - 14, fontSize, 700);
      pen.text(label, left - 10, middle, { ...style, align: "right" });
    });
    const middle = x + cell / 2;
    if (middle >= left && middle <= view.width - right) {
      const label = fitted(layer().columns[at.key], upright ? 12 * fontSize : top - 14, fontSize, 700);
      const thick = Math.max(cell, upright ? pen.width(label, fontSize, 700) + 12 : 1.4 * fontSize);
      pen.rect(middle - thick / 2, 0, thick, top - 4, ink("mark"));
      if (upright) pen.text(label, middle, top / 2, { ...style, align: "center" });
      else pen.text(label, middle, top - 10, { ...style, turn: -90 });
    }
    pen.within(left, top, wide, high, () => {
      for (const [colour, thin, thick] of [["cross-under", 3, 5], ["cross", 1.25, 2.5]]) {
        pen.frame(left - 2, y, wide + 4, cell, ink(colour), thin);
        pen.frame(x, top - 2, cell, high + 4, ink(colour), thin);
        pen.frame(x, y, cell, cell, ink(colour), thick);
      }
    });
  },

  drawLegend() {
    const bar = scaleBar();
    bar.setAttribute("class", "bar");
    bar.setAttribute("aria-hidden", "true");
    const key = (...parts) => el("span", { class: "key" }, parts);
    this.legend.replaceChildren(
      key(rounded(lowest(this.top, state.scale)), bar, this.more ? `${rounded(this.top)} and more` : rounded(this.top)),
      this.weights.some(Number.isNaN) ? key(el("span", { class: "swatch hatched" }), "hidden by the mask") : "",
      key("Right: how many tokens each query attends to. Below: how much attention each key receives."));
  },

  drawAside() {
    const from = layer(), { query, key } = this.hover || state;
    const weight = from.weight(state.head, query, key);
    const row = from.rows[query], column = from.columns[key];
    this.readout.replaceChildren(
      el("p", { class: "pair" }, token(row, 40), el("span", { class: "arrow" }, " attends to "), token(column, 40)),
      el("p", { class: "number", id: "number" }, Number.isNaN(weight) ? "hidden" : exact(weight)),
      quiet(`query ${query}, key ${key}`));
    this.attendsTo.replaceChildren(ranking(el("h3", {}, token(row, 20), " attends to"),
      from.row(state.head, query), from.columns, key, (other) => change({ query, key: other })));
    this.attendedBy.replaceChildren(ranking(el("h3", {}, "What attends to ", token(column, 20)),
      from.column(state.head, key), from.rows, query, (other) => change({ query: other, key })));
  },

  cellAt(event) {
    const { left, top, right, bottom, cell, rows, columns } = this.box;
    const bounds = this.over.getBoundingClientRect(), view = this.window();
    const x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    if (x < left || y < top || x >= view.width - right || y >= view.height - bottom) return null;
    const key = Math.floor((x - left + view.x) / cell), query = Math.floor((y - top + view.y) / cell);
    return key < columns && query < rows ? { query, key } : null;
  },

  point(event) {
    if (event.pointerType === "touch") return;
    const cell = this.cellAt(event);
    if (cell?.key === this.hover?.key && cell?.query === this.hover?.query) return;
    this.hover = cell;
    this.paintOver();
    this.drawAside();
  },

  leave() {
    this.hover = null;
    this.paintOver();
    this.drawAside();
  },

  click(event) {
    const cell = this.cellAt(event);
    if (cell) change(cell);
  },

  press(event) {
    const { rows, columns } = this.box, { query, key } = state;
    const ends = event.ctrlKey;
    const moves = {
      ArrowLeft: { key: key - 1 },
      ArrowRight: { key: key + 1 },
      ArrowUp: { query: query - 1 },
      ArrowDown: { query: query + 1 },
      Home: ends ? { key: 0, query: 0 } : { key: 0 },
      End: ends ? { key: columns - 1, query: rows - 1 } : { key: columns - 1 },
      PageUp: { query: query - 10 },
      PageDown: { query: query + 10 },
    };
    if (event.key === "Enter") change({ view: "sentence", pin: true });
    else if (event.key === "+" || event.key === "=") this.resize(1.5);
    else if (event.key === "-") this.resize(1 / 1.5);
    else if (event.key === "0") this.resize(0);
    else if (moves[event.key] && !event.altKey) {
      const to = { query, key, ...moves[event.key] };
      this.hover = null;
      change({ key: clamp(to.key, 0, columns - 1), query: clamp(to.query, 0, rows - 1) });
      this.tell();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  },

  tell() {
    const weight = layer().weight(state.head, state.query, state.key);
    const shown = Number.isNaN(weight) ? "hidden" : exact(weight);
    say(`${layer().rows[state.query]} attends to ${layer().columns[state.key]}: ${shown}`);
  },

  /** Scroll so that the selected cell and its neighbours are visible. */
  follow() {
    if (!this.box) return;
    const { left, top, right, bottom, cell } = this.box, view = this.window();
    const x = state.key * cell, y = state.query * cell;
    const wide = view.width - left - right, high = view.height - top - bottom;
    const margin = Math.min(3 * cell, wide / 4, high / 4);
    this.scroller.scrollLeft = clamp(view.x, x + cell + margin - wide, x - margin);
    this.scroller.scrollTop = clamp(view.y, y + cell + margin - high, y - margin);
  },

  svg() {
    const { left, top, right, bottom, cell, rows, columns } = this.box;
    const view = { x: 0, y: 0, width: left + columns * cell + right, height: top + rows * cell + bottom };
    const pen = new SvgPen(view.width, view.height);
    paintMatrix(pen, this, view);
    return pen.root;
  },
};
