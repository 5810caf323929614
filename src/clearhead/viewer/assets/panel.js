// What stands beside the map: the cursor's cell, the row's strongest keys, the search, the heads.

const number = (value) => value >= 0.001 || value === 0 ? value.toFixed(4) : value.toExponential(3);
const count = (value) => value.toLocaleString("en");

function element(tag, words, kind) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (kind) made.className = kind;
  return made;
}

// A tile of few cells, each the largest of those it stands for: thin lines stay.
function small(cells, rows, cols, most) {
  const high = Math.min(rows, most), wide = Math.min(cols, most);
  const found = new Float32Array(high * wide).fill(NaN);
  for (let row = 0; row < rows; row++) {
    for (let col = 0; col < cols; col++) {
      const at = Math.floor(row * high / rows) * wide + Math.floor(col * wide / cols);
      const cell = cells[row * cols + col];
      if (!(found[at] >= cell) && cell === cell) found[at] = cell;
    }
  }
  return { rows: high, cols: wide, cells: found, most: largest(found), picture: null, drawn: "" };
}

class Panel {
  constructor(app) {
    this.app = app;
    this.pictures = new Map();  // small pictures of heads, by place
    this.pending = null;        // a query whose row cannot be known yet
  }

  // The cell under the cursor, in words. Its number is what the tile says, nothing rounded away.
  readout() {
    const { layer, cursor, level, tiles, tile: size, place } = this.app;
    const readout = document.getElementById("readout");
    if (!cursor || !layer) return;
    const [rows, cols, rowScale, colScale] = layer.grids[level];
    const row = Math.min(rows - 1, Math.floor(cursor.query * rowScale / layer.queries + 1e-9));
    const col = Math.min(cols - 1, Math.floor(cursor.key * colScale / layer.keys + 1e-9));
    const name = Tiles.name(place, level, Math.floor(row / size), Math.floor(col / size));
    const tile = tiles.get(name);
    const value = tile ? tile.cells[(row % size) * tile.cols + col % size] : undefined;
    const exact = isExact(layer, level);
    const parts = [];
    if (value === undefined) parts.push(element("span", "...", "quiet"));
    else if (value !== value) parts.push(element("strong", "hidden"));
    else parts.push(element("strong", number(value)));
    parts.push(element("br"));
    const queries = span(row, rowScale, layer.queries), keys = span(col, colScale, layer.keys);
    if (exact) {
      parts.push(element("span", `query ${this.token(queries[0], layer.keys - layer.queries)}`));
      parts.push(element("br"));
      parts.push(element("span", `key ${this.token(keys[0], 0)}`));
    } else {
      const range = ([a, b]) => a === b ? count(a) : `${count(a)} to ${count(b)}`;
      parts.push(element("span", `queries ${range(queries)}`));
      parts.push(element("br"));
      parts.push(element("span", `keys ${range(keys)}: share of attention`));
    }
    readout.replaceChildren(...parts);
    readout.dataset.value = value === undefined ? "" : String(value);
    readout.dataset.query = queries[0];
    readout.dataset.key = keys[0];
    readout.dataset.exact = exact;
  }

  token(place, shift) {
    const known = this.app.layer.labelled[this.app.place.batch];
    const label = known ? this.app.labels.get(this.app.place.batch, place + shift) : undefined;
    return label === undefined ? count(place) : `${count(place)}  ${label}`;
  }

  async row(query) {
    const { app } = this;
    const words = document.getElementById("row-words"), list = document.getElementById("row-list");
    words.textContent = `Query ${this.token(query, app.layer.keys - app.layer.queries)}`;
    list.replaceChildren();
    const answer = await ask("row", { ...app.place, query, count: 12 });
    this.pending = answer.status === 200 ? null : query;
    if (this.pending !== null) {
      words.textContent += ": when the map is ready";
      return;
    }
    const found = await answer.json();
    list.replaceChildren(...found.keys.map((key, i) => {
      const item = element("li"), button = element("button");
      button.type = "button";
      button.append(element("span", count(key), "number"));
      button.append(element("span", found.labels[i] || "", "token"));
      button.append(element("span", number(found.weights[i]), "weight"));
      button.addEventListener("click", () => app.go(query, key));
      item.append(button);
      return item;
    }));
    if (!found.keys.length) words.textContent += " sees nothing.";
  }

  again() {
    if (this.pending !== null) this.row(this.pending).catch(problem);
  }

  async search(text) {
    const { app } = this, said = document.getElementById("found");
    app.found = { places: [], at: -1 };
    if (text) {
      const answer = await askJson("search", { batch: app.place.batch, text });
      const fits = answer.places.filter((place) => place < app.layer.keys);
      app.found = { places: fits, at: -1 };
      said.textContent = `${count(answer.count)} place${answer.count === 1 ? "" : "s"}`
        + (answer.count > fits.length ? `, the first ${count(fits.length)} are marked` : "");
      if (fits.length) this.step(1);
    } else said.textContent = "";
    app.draw();
  }

  step(by) {
    const { app } = this, { places } = app.found;
    if (!places.length) return;
    app.found.at = (app.found.at + by + places.length) % places.length;
    const key = places[app.found.at], shift = app.layer.keys - app.layer.queries;
    app.go(Math.max(0, key - shift), key);
    const said = document.getElementById("found");
    said.textContent = `${count(app.found.at + 1)} of ${count(places.length)} places`;
  }

  heads(state) {
    const { app } = this, list = document.getElementById("heads");
    const by = document.getElementById("order").value;
    const order = state.heads.map((_, head) => head);
    if (by !== "head") {
      const score = (head) => state.heads[head].scores ? state.heads[head].scores[by] ?? -1 : -1;
      order.sort((a, b) => score(b) - score(a) || a - b);
    }
    const items = order.map((head) => this.head(head, state.heads[head], list));
    if (items.some((item, i) => list.children[i] !== item) || list.children.length !== items.length) {
      list.replaceChildren(...items);
    }
  }

  head(head, about, list) {
    const { app } = this;
    let item = list.querySelector(`li[data-head="${head}"]`);
    if (!item) {
      item = element("li");
      item.dataset.head = head;
      const button = element("button"), picture = element("canvas"), words = element("span");
      picture.width = picture.height = 88;
      button.type = "button";
      words.append(element("span", "", "words"), element("span", "", "numbers"));
      button.append(picture, words);
      button.addEventListener("click", () => app.choose({ head }));
      item.append(button);
    }
    const scores = about.scores, button = item.firstChild;
    button.setAttribute("aria-pressed", head === app.place.head);
    item.querySelector(".words").textContent = `Head ${about.number}` + (scores ? `: ${scores.looks_at}` : "");
    item.querySelector(".numbers").textContent = about.error || (scores ? this.numbers(scores) : about.ready ? "" : "not looked at yet");
    if (about.ready) this.picture(head, item.querySelector("canvas"));
    return item;
  }

  numbers(scores) {
    const names = { previous: "prev", sink: "first", same_token: "same", induction: "after", entropy: "entropy", distance: "away" };
    return Object.entries(names)
      .filter(([key]) => scores[key] !== null && scores[key] !== undefined)
      .map(([key, name]) => `${name} ${key === "distance" ? scores[key].toFixed(0) : scores[key].toFixed(2)}`)
      .join(" \u00b7 ");
  }

  // The coarsest tile of a head, small. It asks once a head.
  async picture(head, canvas) {
    const { app } = this, place = { ...app.place, head };
    const name = `${place.layer}/${place.batch}/${head}`;
    const look = `${name}/${app.scale.log}`;
    if (canvas.dataset.look === look) return;
    if (!this.pictures.has(name)) {
      this.pictures.set(name, null);
      try {
        const answer = await ask("tile", { ...place, level: 0, row: 0, col: 0 });
        if (answer.status !== 200) { this.pictures.delete(name); return; }
        const cells = new Float32Array(await answer.arrayBuffer());
        const rows = Number(answer.headers.get("x-rows")), cols = Number(answer.headers.get("x-cols"));
        if (this.pictures.size > 256) this.pictures.clear();
        this.pictures.set(name, small(cells, rows, cols, 44));
      } catch (error) {
        this.pictures.delete(name);
        if (error.status !== 503) problem(error);
        return;
      }
    }
    const tile = this.pictures.get(name);
    if (!tile) return;
    canvas.dataset.look = look;
    const c = canvas.getContext("2d"), scale = { log: app.scale.log, top: roundUp(tile.most) };
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.imageSmoothingEnabled = false;
    c.drawImage(colour(tile, scale, app.table), 0, 0, canvas.width, canvas.height);
  }
}
