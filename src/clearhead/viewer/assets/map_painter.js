// The map on its canvas: the camera, the tiles in view, the cursor and the labels.

const LEFT = 104, TOP = 88; // space for labels, in pixels
const LABEL_PITCH = 12;     // pixels per token from which labels are shown
const LABEL_SIZE = 11;      // font size in pixels
const MOST_ZOOM = 48;       // pixels per token

/** The next of 1, 2, 5, 10, ..., so that the scale does not change with every step. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) if (value <= step * ten * 1.000001) return step * ten;
  return 10 * ten;
}

/** What is in view: the query and key at its centre, and the zoom in pixels per token. */
class Camera {
  constructor() {
    this.query = 0; this.key = 0; this.zoom = 1;
    this.width = 1; this.height = 1;
  }

  fit(layer) {
    this.zoom = this.least(layer);
    this.query = layer.queries / 2;
    this.key = layer.keys / 2;
  }

  least(layer) {
    return Math.min((this.width - LEFT - 8) / layer.keys, (this.height - TOP - 8) / layer.queries, MOST_ZOOM);
  }

  clamp(layer) {
    this.zoom = clamp(this.zoom, this.least(layer), MOST_ZOOM);
    this.query = clamp(this.query, 0, layer.queries);
    this.key = clamp(this.key, 0, layer.keys);
  }

  x(key) { return LEFT + (this.width - LEFT) / 2 + (key - this.key) * this.zoom; }
  y(query) { return TOP + (this.height - TOP) / 2 + (query - this.query) * this.zoom; }
  keyAt(x) { return this.key + (x - LEFT - (this.width - LEFT) / 2) / this.zoom; }
  queryAt(y) { return this.query + (y - TOP - (this.height - TOP) / 2) / this.zoom; }

  /** Zoom so that the point (x, y) stays over the same cell. */
  zoomAt(factor, x, y, layer) {
    const key = this.keyAt(x), query = this.queryAt(y);
    this.zoom = clamp(this.zoom * factor, this.least(layer), MOST_ZOOM);
    this.key += key - this.keyAt(x);
    this.query += query - this.queryAt(y);
    this.clamp(layer);
  }
}

/** The finest grid whose cells are at least one pixel wide. */
function levelFor(layer, zoom) {
  for (let level = layer.grids.length - 1; level > 0; level--) {
    const [, , rowScale, colScale] = layer.grids[level];
    const cell = Math.min(layer.queries / rowScale, layer.keys / colScale) * zoom;
    if (cell >= 0.99) return level;
  }
  return 0;
}

function isExact(layer, level) {
  const [rows, cols] = layer.grids[level];
  return rows === layer.queries && cols === layer.keys;
}

/** The queries or keys that a cell covers: [first, last]. */
function span(cell, scale, size) {
  return [Math.ceil(cell * size / scale - 1e-9), Math.min(size, Math.ceil((cell + 1) * size / scale - 1e-9)) - 1];
}

class Painter {
  constructor(canvas, app) {
    this.canvas = canvas;
    this.app = app;
    this.context = canvas.getContext("2d");
  }

  resize() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    this.app.camera.width = box.width;
    this.app.camera.height = box.height;
    const names = ["back", "text", "quiet", "line", "focus", "cross", "cross-under"];
    this.inks = Object.fromEntries(names.map((name) => [name, ink(name)]));
    this.hatching = hatching(this.context);
  }

  /** The visible tiles of a level, those nearest to the centre first. */
  inView(level) {
    const { layer, camera, selected, tile } = this.app;
    const [rows, cols, rowScale, colScale] = layer.grids[level];
    const cellAt = (position, scale, size) => position * scale / size;
    const first = (p, scale, size) => Math.max(0, Math.floor(cellAt(p, scale, size) / tile));
    const last = (p, scale, size, count) => Math.min(Math.ceil(count / tile) - 1, Math.floor(cellAt(p, scale, size) / tile));
    const found = [];
    const bottom = last(camera.queryAt(camera.height), rowScale, layer.queries, rows);
    const right = last(camera.keyAt(camera.width), colScale, layer.keys, cols);
    const middleRow = cellAt(camera.query, rowScale, layer.queries) / tile - 0.5;
    const middleCol = cellAt(camera.key, colScale, layer.keys) / tile - 0.5;
    for (let row = first(camera.queryAt(TOP), rowScale, layer.queries); row <= bottom; row++) {
      for (let col = first(camera.keyAt(LEFT), colScale, layer.keys); col <= right; col++) {
        const far = Math.hypot(row - middleRow, col - middleCol);
        found.push({ name: Tiles.name(selected, level, row, col), selected, level, row, col, far });
      }
    }
    return found.sort((a, b) => a.far - b.far);
  }

  paint() {
    const { layer, camera, tiles, scale } = this.app;
    if (!layer) return;
    const c = this.context;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = this.inks.back;
    c.fillRect(0, 0, camera.width, camera.height);
    const level = this.app.level = levelFor(layer, camera.zoom);
    const now = this.inView(level), coarsest = this.inView(0);
    tiles.want([...coarsest, ...now]);
    const here = now.map((each) => tiles.get(each.name)).filter(Boolean);
    this.canvas.dataset.complete = here.length === now.length;
    if (here.length) {
      const top = roundUp(Math.max(...here.map((tile) => tile.top))) / scale.contrast;
      if (top !== scale.top) { scale.top = top; this.app.onScale(); }
    }
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP, camera.width - LEFT, camera.height - TOP);
    c.clip();
    c.imageSmoothingEnabled = false;
    // Coarser tiles first: they show until the finer ones arrive.
    for (let each = 0; each <= level; each++) {
      for (const tile of each === level ? now : this.inView(each)) this.paintTile(tile);
    }
    this.paintCursor();
    c.restore();
    this.paintLabels();
  }

  paintTile({ name, level, row, col }) {
    const { layer, camera, tiles, scale, tile: size } = this.app;
    const tile = tiles.get(name);
    if (!tile) return;
    const [, , rowScale, colScale] = layer.grids[level];
    // Round to whole pixels of the screen, or a coarser tile shows through at the edges.
    const dot = (value) => Math.round(value * this.ratio) / this.ratio;
    const left = dot(camera.x(col * size * layer.keys / colScale));
    const top = dot(camera.y(row * size * layer.queries / rowScale));
    const right = dot(camera.x(Math.min(layer.keys, (col * size + tile.cols) * layer.keys / colScale)));
    const bottom = dot(camera.y(Math.min(layer.queries, (row * size + tile.rows) * layer.queries / rowScale)));
    this.context.fillStyle = this.hatching;
    this.context.fillRect(left, top, right - left, bottom - top);
    this.context.drawImage(tilePicture(tile, scale), left, top, right - left, bottom - top);
  }

  paintCursor() {
    const { layer, camera, cursor, level } = this.app;
    if (!cursor) return;
    const c = this.context, [, , rowScale, colScale] = layer.grids[level];
    const wide = layer.keys / colScale, high = layer.queries / rowScale;
    const col = Math.floor(cursor.key / wide + 1e-9), row = Math.floor(cursor.query / high + 1e-9);
    const x = camera.x(col * wide), y = camera.y(row * high);
    const w = wide * camera.zoom, h = high * camera.zoom;
    // Each line twice, dark under light, so that it is visible on any colour.
    for (const [name, thick] of [["cross-under", 3], ["cross", 1.25]]) {
      c.strokeStyle = this.inks[name];
      c.lineWidth = thick;
      c.globalAlpha = 0.7;
      c.beginPath();
      c.moveTo(LEFT, y + h / 2); c.lineTo(x - 2, y + h / 2);
      c.moveTo(x + w / 2, TOP); c.lineTo(x + w / 2, y - 2);
      c.stroke();
      c.globalAlpha = 1;
      c.lineWidth = thick + 1;
      c.strokeRect(x - 1, y - 1, Math.max(w, 3) + 2, Math.max(h, 3) + 2);
    }
  }

  paintLabels() {
    const { layer, camera, cursor, found } = this.app;
    const c = this.context, { text: front, quiet: dim, line, focus } = this.inks;
    const rows = [Math.max(0, Math.floor(camera.queryAt(TOP))), Math.min(layer.queries, Math.ceil(camera.queryAt(camera.height)))];
    const cols = [Math.max(0, Math.floor(camera.keyAt(LEFT))), Math.min(layer.keys, Math.ceil(camera.keyAt(camera.width)))];
    const shift = layer.keys - layer.queries;
    c.font = `${LABEL_SIZE}px ${FONT}`;
    c.textBaseline = "middle";
    const named = camera.zoom >= LABEL_PITCH && layer.labelled[this.app.selected.batch];
    const step = named ? 1 : niceStep(64 / camera.zoom);
    const label = (index) => named ? this.app.labels.get(this.app.selected.batch, index) : undefined;
    const marked = new Set(found.matches);
    c.textAlign = "right";
    for (let row = Math.ceil(rows[0] / step) * step; row < rows[1]; row += step) {
      const y = camera.y(row + (named ? 0.5 : 0));
      if (y < TOP + 5 && !named) continue;
      if (y < TOP) continue;
      const chosen = named && cursor && Math.floor(cursor.query) === row;
      c.fillStyle = named && marked.has(row + shift) ? focus : chosen ? front : dim;
      const text = named ? label(row + shift) : row.toLocaleString("en");
      if (text !== undefined) c.fillText(fitted(text, LEFT - 10, LABEL_SIZE), LEFT - 6, y);
      if (!named) this.tick(LEFT - 4, y, LEFT, y);
    }
    c.textAlign = "left";
    for (let col = Math.ceil(cols[0] / step) * step; col < cols[1]; col += step) {
      const x = camera.x(col + (named ? 0.5 : 0));
      if (x < LEFT + (named ? 0 : -1)) continue;
      const chosen = named && cursor && Math.floor(cursor.key) === col;
      c.fillStyle = named && marked.has(col) ? focus : chosen ? front : dim;
      const text = named ? label(col) : col.toLocaleString("en");
      if (text !== undefined) {
        c.save();
        c.translate(x, TOP - 6);
        c.rotate(-Math.PI / 2);
        c.fillText(fitted(text, TOP - 10, LABEL_SIZE), 0, 0);
        c.restore();
      }
      if (!named) this.tick(x, TOP - 4, x, TOP);
    }
    // Mark the matches of the search on both sides.
    c.strokeStyle = focus;
    c.lineWidth = 2;
    c.beginPath();
    for (const index of found.matches) {
      const x = camera.x(index + 0.5), y = camera.y(index - shift + 0.5);
      if (x >= LEFT) { c.moveTo(x, TOP - 4); c.lineTo(x, TOP); }
      if (y >= TOP) { c.moveTo(LEFT - 4, y); c.lineTo(LEFT, y); }
    }
    c.stroke();
    c.fillStyle = dim;
    c.textAlign = "left";
    c.fillText("query \u2193  key \u2192", 8, 14);
    c.lineWidth = 1;
    c.strokeStyle = line;
    c.strokeRect(LEFT - 0.5, TOP - 0.5, camera.width, camera.height);
  }

  tick(x1, y1, x2, y2) {
    const c = this.context;
    c.strokeStyle = this.inks.line;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x2, y2);
    c.stroke();
  }
}

function niceStep(least) {
  return Math.max(1, roundUp(least));
}
