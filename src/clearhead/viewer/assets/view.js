// The application: the selection, and what pointers and keys do.

const CONTRASTS = [1, 2, 5, 10, 100];

class App {
  constructor(about) {
    this.about = about;
    this.tile = about.tile;
    this.selected = { layer: 0, batch: 0, head: 0 };
    this.layer = about.layers[0];
    this.scale = { log: true, top: 1, contrast: 1 };
    this.cursor = null;
    this.found = { matches: [], at: -1 };
    this.level = 0;
    this.camera = new Camera();
    this.tiles = new Tiles(() => this.draw());
    this.labels = new Labels(() => this.draw());
    this.panel = new Panel(this);
    this.canvas = byId("map");
    this.painter = new Painter(this.canvas, this);
    this.fields();
    this.pointers();
    this.keys();
    this.painter.resize();
    this.camera.fit(this.layer);
    this.read();
    new ResizeObserver(() => {
      const whole = this.camera.zoom <= this.camera.least(this.layer) * 1.001;
      this.painter.resize();
      if (whole) this.camera.fit(this.layer);
      else this.camera.clamp(this.layer);
      this.draw();
    }).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.painter.resize(); this.draw(); });
    addEventListener("hashchange", () => this.read());
    this.poll();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.painter.paint();
      this.panel.readout();
    });
  }

  onScale() {
    byId("low").textContent = exact(lowest(this.scale.top, this.scale.log ? "log" : "linear"));
    byId("high").textContent = exact(this.scale.top) + (this.scale.contrast > 1 ? " and more" : "");
    scaleBar(byId("bar"));
  }

  // The selection.

  choose(change) {
    const before = this.layer;
    this.selected = { ...this.selected, ...change };
    this.layer = this.about.layers[this.selected.layer];
    this.selected.batch = Math.min(this.selected.batch, this.layer.batch - 1);
    this.selected.head = Math.min(this.selected.head, this.layer.heads - 1);
    if (before.queries !== this.layer.queries || before.keys !== this.layer.keys) {
      this.camera.fit(this.layer);
      this.cursor = null;
    }
    byId("layer").value = this.selected.layer;
    byId("batch").value = this.selected.batch;
    byId("batch-label").hidden = this.layer.batch < 2;
    byId("row-list").replaceChildren();
    byId("row-text").textContent = "Click a row, or press Enter on it.";
    const same = before === this.layer && change.batch === undefined;
    if (same && this.state) this.panel.heads(this.state);
    this.poll();
    this.write();
    this.draw();
  }

  go(query, key) {
    this.cursor = { query, key };
    this.camera.zoom = Math.max(this.camera.zoom, 16);
    this.camera.query = query + 0.5;
    this.camera.key = key + 0.5;
    this.camera.clamp(this.layer);
    this.write();
    this.draw();
  }

  zoom(factor) {
    const { camera, cursor } = this;
    let x = camera.x(camera.key), y = camera.y(camera.query);
    if (cursor) { x = camera.x(cursor.key + 0.5); y = camera.y(cursor.query + 0.5); }
    camera.zoomAt(factor, x, y, this.layer);
    this.write();
    this.draw();
  }

  whole() {
    this.camera.fit(this.layer);
    this.write();
    this.draw();
  }

  setLog(log) {
    this.scale.log = log;
    byId("log").checked = log;
    this.onScale();
    if (this.state) this.panel.heads(this.state);
    this.write();
    this.draw();
  }

  /** With contrast 10, a tenth of the largest value gets the brightest colour. */
  setContrast(contrast) {
    this.scale.contrast = CONTRASTS.includes(contrast) ? contrast : 1;
    byId("contrast").value = this.scale.contrast;
    if (this.state) this.panel.heads(this.state);
    this.write();
    this.draw();
  }

  // The state of the server, requested until everything about this layer is known.

  async poll() {
    clearTimeout(this.timer);
    const { layer, batch, head } = this.selected, turn = this.turn = (this.turn || 0) + 1;
    try {
      const state = await requestJson("state", { layer, batch, head });
      if (turn !== this.turn) return;
      const before = this.state && this.state.at === `${layer}/${batch}/${head}` && this.state.heads[head].ready;
      this.state = { ...state, at: `${layer}/${batch}/${head}` };
      this.panel.heads(this.state);
      this.progress(state, head);
      if (state.heads[head].ready && !before) {
        this.draw();
        this.panel.again();
      }
      const known = state.heads.every((each) => each.error || (each.ready && each.scores));
      if (!known) this.timer = setTimeout(() => this.poll(), state.heads[head].ready ? 700 : 250);
    } catch (error) {
      showError(error);
    }
  }

  progress({ progress, heads }, head) {
    const box = byId("progress"), error = heads[head].error;
    box.hidden = !progress && !error && heads[head].ready;
    box.classList.toggle("small", heads[head].ready);
    const text = byId("progress-text"), bar = byId("progress-bar");
    bar.hidden = Boolean(error);
    if (error) text.textContent = error;
    else if (progress) {
      const what = { picture: "Computing the map of", scores: "Computing the scores of" }[progress.what];
      text.textContent = `${what} head ${progress.number}`;
      if (progress.share > 0) bar.value = progress.share;
      else bar.removeAttribute("value"); // started, with no progress to show yet
    } else text.textContent = "Waiting for the map";
    bar.setAttribute("aria-label", text.textContent);
  }

  // The fragment of the URL: a link to the current head and position.

  write() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => {
      const { selected, camera, scale } = this;
      const parts = { ...selected, query: camera.query.toFixed(2), key: camera.key.toFixed(2), zoom: camera.zoom.toPrecision(6), log: Number(scale.log), contrast: scale.contrast };
      this.written = `#${new URLSearchParams(parts)}`;
      history.replaceState(null, "", this.written);
    }, 150);
  }

  read() {
    if (location.hash === this.written) return;
    const given = new URLSearchParams(location.hash.slice(1));
    const whole = (name, below) => {
      const value = Number(given.get(name));
      return Number.isInteger(value) && value >= 0 && value < below ? value : 0;
    };
    const layer = whole("layer", this.about.layers.length), chosen = this.about.layers[layer];
    this.choose({ layer, batch: whole("batch", chosen.batch), head: whole("head", chosen.heads) });
    for (const name of ["query", "key", "zoom"]) {
      const value = Number(given.get(name));
      if (given.has(name) && Number.isFinite(value) && value >= 0) this.camera[name] = value;
    }
    this.camera.clamp(this.layer);
    this.setLog(given.get("log") !== "0");
    this.setContrast(Number(given.get("contrast") ?? 1));
  }

  // Controls.

  fields() {
    const on = (id, event, act) => byId(id).addEventListener(event, act);
    const select = byId("layer");
    select.replaceChildren(...this.about.layers.map((layer, i) => el("option", { value: i }, layer.name)));
    const batches = Math.max(...this.about.layers.map((layer) => layer.batch));
    byId("batch").replaceChildren(...Array.from({ length: batches }, (_, i) => el("option", { value: i }, String(i))));
    on("layer", "change", () => this.choose({ layer: Number(select.value) }));
    on("batch", "change", (event) => this.choose({ batch: Number(event.target.value) }));
    on("in", "click", () => this.zoom(2));
    on("out", "click", () => this.zoom(0.5));
    on("whole", "click", () => this.whole());
    on("log", "change", (event) => this.setLog(event.target.checked));
    on("contrast", "change", (event) => this.setContrast(Number(event.target.value)));
    on("order", "change", () => this.state && this.panel.heads(this.state));
    on("search", "submit", (event) => {
      event.preventDefault();
      this.panel.search(byId("words").value).catch(showError);
    });
    on("before", "click", () => this.panel.step(-1));
    on("after", "click", () => this.panel.step(1));
  }

  pointers() {
    const { canvas, camera } = this, down = new Map();
    let moved = 0;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      canvas.focus({ preventScroll: true });
      down.set(event.pointerId, at(event));
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const here = at(event), before = down.get(event.pointerId);
      if (before) {
        const others = [...down].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
        camera.key -= (here.x - before.x) / camera.zoom / (others.length + 1);
        camera.query -= (here.y - before.y) / camera.zoom / (others.length + 1);
        if (others.length) {
          const far = (a, b) => Math.hypot(a.x - b.x, a.y - b.y) || 1;
          const x = (here.x + others[0].x) / 2, y = (here.y + others[0].y) / 2;
          camera.zoomAt(far(here, others[0]) / far(before, others[0]), x, y, this.layer);
        }
        moved += Math.hypot(here.x - before.x, here.y - before.y);
        down.set(event.pointerId, here);
        camera.clamp(this.layer);
        this.write();
      }
      if (!before || moved < 4) this.point(here);
      this.draw();
    });
    const up = (event) => {
      const here = at(event);
      const tapped = down.delete(event.pointerId) && moved < 4 && event.type === "pointerup";
      if (tapped && this.point(here)) this.strongest();
      this.draw();
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("dblclick", (event) => {
      const { x, y } = at(event);
      camera.zoomAt(4, x, y, this.layer);
      this.write();
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { x, y } = at(event), lines = event.deltaMode ? 16 : 1;
      camera.zoomAt(Math.exp(-clamp(event.deltaY * lines, -200, 200) / 300), x, y, this.layer);
      this.write();
      this.draw();
    }, { passive: false });
  }

  point({ x, y }) {
    const key = this.camera.keyAt(x), query = this.camera.queryAt(y);
    const inside = x >= LEFT && y >= TOP && key >= 0 && query >= 0 && key < this.layer.keys && query < this.layer.queries;
    if (inside) this.cursor = { query: Math.floor(query), key: Math.floor(key) };
    return inside;
  }

  strongest() {
    const [, , rowScale] = this.layer.grids[this.level];
    const row = Math.floor(this.cursor.query * rowScale / this.layer.queries + 1e-9);
    const query = isExact(this.layer, this.level) ? this.cursor.query : span(row, rowScale, this.layer.queries)[0];
    this.panel.row(query).catch(showError);
  }

  move(down, right) {
    const { layer, camera } = this, [, , rowScale, colScale] = layer.grids[this.level];
    const high = Math.max(1, layer.queries / rowScale), wide = Math.max(1, layer.keys / colScale);
    const start = this.cursor || { query: Math.floor(camera.query), key: Math.floor(camera.key) };
    const to = (value, step, size) => Math.floor(clamp(value + step, 0, size - 1));
    this.cursor = { query: to(start.query, down * high, layer.queries), key: to(start.key, right * wide, layer.keys) };
    const x = camera.x(this.cursor.key + 0.5), y = camera.y(this.cursor.query + 0.5), edge = 24;
    if (x < LEFT + edge) camera.key -= (LEFT + edge - x) / camera.zoom;
    if (x > camera.width - edge) camera.key += (x - camera.width + edge) / camera.zoom;
    if (y < TOP + edge) camera.query -= (TOP + edge - y) / camera.zoom;
    if (y > camera.height - edge) camera.query += (y - camera.height + edge) / camera.zoom;
    camera.clamp(layer);
    this.write();
    this.draw();
  }

  keys() {
    const far = (event) => event.shiftKey ? 16 : 1;
    const step = (name, by, size) => this.choose({ [name]: (this.selected[name] + by + size) % size });
    const onMap = {
      ArrowUp: (event) => this.move(-far(event), 0),
      ArrowDown: (event) => this.move(far(event), 0),
      ArrowLeft: (event) => this.move(0, -far(event)),
      ArrowRight: (event) => this.move(0, far(event)),
      Enter: () => { if (!this.cursor) this.move(0, 0); this.strongest(); },
    };
    const anywhere = {
      "+": () => this.zoom(2),
      "=": () => this.zoom(2),
      "-": () => this.zoom(0.5),
      "0": () => this.whole(),
      "[": () => step("head", -1, this.layer.heads),
      "]": () => step("head", 1, this.layer.heads),
      ",": () => step("layer", -1, this.about.layers.length),
      ".": () => step("layer", 1, this.about.layers.length),
      "/": () => byId("words").focus(),
      n: () => this.panel.step(1),
      p: () => this.panel.step(-1),
      l: () => this.setLog(!this.scale.log),
      c: () => this.setContrast(CONTRASTS[(CONTRASTS.indexOf(this.scale.contrast) + 1) % CONTRASTS.length]),
      d: () => {
        const query = Math.floor(this.cursor ? this.cursor.query : this.camera.query);
        this.go(query, Math.max(0, query + this.layer.keys - this.layer.queries));
      },
    };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const field = event.target.matches("input, select");
      if (field && event.key === "Escape") { this.canvas.focus(); return; }
      if (field) return;
      const act = (event.target === this.canvas ? onMap[event.key] : undefined) || anywhere[event.key];
      if (!act) return;
      event.preventDefault();
      act(event);
    });
  }
}

requestJson("about").then((about) => new App(about)).catch(showError);
