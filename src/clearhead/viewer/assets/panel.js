// The panel beside the map: the cell under the cursor, the strongest keys, the search, the heads.

// The words of the head table, which `clearhead heads` prints.
const SCORES = {
  previous: "previous", sink: "first", same_token: "same", induction: "induction", entropy: "entropy", distance: "away",
};
const count = (value) => value.toLocaleString("en");

/** A small version of a tile. Each cell is the largest that it covers, so that thin lines stay. */
function shrunk({ cells, rows, cols }, most) {
  const high = Math.min(rows, most), wide = Math.min(cols, most);
  const found = new Float32Array(high * wide).fill(NaN);
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      const at = Math.floor(row * high / rows) * wide + Math.floor(col * wide / cols);
      const cell = cells[row * cols + col];
      if (!(found[at] >= cell) && !Number.isNaN(cell)) found[at] = cell;
    }
  }
  return makeTile(found, high, wide);
}

class Panel {
  constructor(app) {
    this.app = app;
    this.pictures = new Map(); // small pictures of heads, by name
    this.pending = null;       // a query whose row is not available yet
  }

  /** Describe the cell under the cursor. */
  readout() {
    const { layer, cursor, level, tiles, tile: size, selected } = this.app;
    const readout = byId("readout");
    if (!cursor || !layer) return;
    const [rows, cols, rowScale, colScale] = layer.grids[level];
    const row = Math.min(rows - 1, Math.floor(cursor.query * rowScale / layer.queries + 1e-9));
    const col = Math.min(cols - 1, Math.floor(cursor.key * colScale / layer.keys + 1e-9));
    const tile = tiles.get(Tiles.name(selected, level, Math.floor(row / size), Math.floor(col / size)));
    const value = tile ? tile.cells[(row % size) * tile.cols + col % size] : undefined;
    const single = isExact(layer, level);
    const queries = span(row, rowScale, layer.queries), keys = span(col, colScale, layer.keys);
    const range = ([a, b]) => (a === b ? count(a) : `${count(a)} to ${count(b)}`);
    const lines = single
      ? [`query ${this.token(queries[0], layer.keys - layer.queries)}`, `key ${this.token(keys[0], 0)}`]
      : [`queries ${range(queries)}`, `keys ${range(keys)}: share of attention`];
    const shown = value === undefined
      ? el("span", { class: "quiet" }, "...")
      : el("strong", {}, Number.isNaN(value) ? "hidden" : exact(value));
    readout.replaceChildren(shown, ...lines.flatMap((line) => [el("br"), el("span", {}, line)]));
    readout.dataset.value = value === undefined ? "" : String(value);
    readout.dataset.query = queries[0];
    readout.dataset.key = keys[0];
    readout.dataset.exact = single;
  }

  token(index, shift) {
    const known = this.app.layer.labelled[this.app.selected.batch];
    const label = known ? this.app.labels.get(this.app.selected.batch, index + shift) : undefined;
    return label === undefined ? count(index) : `${count(index)}  ${label}`;
  }

  async row(query) {
    const { app } = this, text = byId("row-text"), list = byId("row-list");
    text.textContent = `Query ${this.token(query, app.layer.keys - app.layer.queries)}`;
    list.replaceChildren();
    const answer = await request("row", { ...app.selected, query, count: 12 });
    this.pending = answer.status === 200 ? null : query;
    if (this.pending !== null) {
      text.textContent += ": waiting for the map";
      return;
    }
    const found = await answer.json();
    list.replaceChildren(...found.keys.map((key, i) => el("li", {}, button(
      { onclick: () => app.go(query, key) },
      el("span", { class: "number" }, count(key)),
      el("span", { class: "token" }, found.labels[i] || ""),
      el("span", { class: "weight" }, exact(found.weights[i]))))));
    if (!found.keys.length) text.textContent += ": everything is hidden.";
  }

  again() {
    if (this.pending !== null) this.row(this.pending).catch(showError);
  }

  async search(text) {
    const { app } = this, status = byId("found");
    app.found = { matches: [], at: -1 };
    if (text) {
      const answer = await requestJson("search", { batch: app.selected.batch, text });
      const matches = answer.matches.filter((index) => index < app.layer.keys);
      app.found = { matches, at: -1 };
      status.textContent = plural(answer.count, "match", "matches")
        + (answer.count > matches.length ? `; the first ${count(matches.length)} are marked` : "");
      if (matches.length) this.step(1);
    } else status.textContent = "";
    app.draw();
  }

  step(by) {
    const { app } = this, { matches } = app.found;
    if (!matches.length) return;
    app.found.at = (app.found.at + by + matches.length) % matches.length;
    const key = matches[app.found.at], shift = app.layer.keys - app.layer.queries;
    app.go(Math.max(0, key - shift), key);
    byId("found").textContent = `${count(app.found.at + 1)} of ${plural(matches.length, "match", "matches")}`;
  }

  heads(state) {
    const list = byId("heads"), by = byId("order").value;
    const order = state.heads.map((_, head) => head);
    if (by !== "head") {
      const score = (head) => state.heads[head].scores?.[by] ?? -1;
      order.sort((a, b) => score(b) - score(a) || a - b);
    }
    const items = order.map((head) => this.head(head, state.heads[head], list));
    if (items.some((item, i) => list.children[i] !== item) || list.children.length !== items.length) {
      list.replaceChildren(...items);
    }
  }

  head(head, about, list) {
    const { app } = this, { scores } = about;
    const item = list.querySelector(`li[data-head="${head}"]`) || el("li", { "data-head": head },
      button({ onclick: () => app.choose({ head }) },
        el("canvas", { width: 88, height: 88 }),
        el("span", {}, el("span", { class: "pattern" }), el("span", { class: "scores" }))));
    item.firstChild.setAttribute("aria-pressed", head === app.selected.head);
    item.querySelector(".pattern").textContent = `Head ${about.number}` + (scores ? `: ${scores.looks_at}` : "");
    const pending = about.ready ? "" : "not computed yet";
    item.querySelector(".scores").textContent = about.error || (scores ? this.scores(scores) : pending);
    if (about.ready) this.picture(head, item.querySelector("canvas"));
    return item;
  }

  scores(scores) {
    return Object.entries(SCORES)
      .filter(([key]) => scores[key] !== null && scores[key] !== undefined)
      .map(([key, name]) => `${name} ${fixed(scores[key], key === "distance" ? 0 : 2)}`)
      .join(" \u00b7 ");
  }

  /** Draw the coarsest tile of a head, which is requested only once. */
  async picture(head, canvas) {
    const { app } = this, selected = { ...app.selected, head };
    const name = `${selected.layer}/${selected.batch}/${head}`;
    const look = `${name}/${app.scale.log}/${app.scale.contrast}`;
    if (canvas.dataset.look === look) return;
    if (!this.pictures.has(name)) {
      this.pictures.set(name, null);
      try {
        const tile = await requestTile(selected, 0, 0, 0);
        if (!tile) { this.pictures.delete(name); return; }
        if (this.pictures.size > 256) this.pictures.clear();
        this.pictures.set(name, shrunk(tile, 44));
      } catch (error) {
        this.pictures.delete(name);
        if (error.status !== 503) showError(error);
        return;
      }
    }
    const tile = this.pictures.get(name);
    if (!tile) return;
    canvas.dataset.look = look;
    const c = canvas.getContext("2d"), scale = { log: app.scale.log, top: roundUp(tile.top) / app.scale.contrast };
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.imageSmoothingEnabled = false;
    c.drawImage(tilePicture(tile, scale), 0, 0, canvas.width, canvas.height);
  }
}
