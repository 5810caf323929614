// Requests to the server, and a cache of the tiles and labels that it sent.

const TOKEN = new URLSearchParams(location.search).get("token") || "";
const MOST_TILES = 240;
const MOST_REQUESTS = 3; // at the same time

async function request(path, parameters = {}, signal = undefined) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, {
    headers: { "x-clearhead-token": TOKEN }, signal, cache: "no-store", redirect: "error",
  });
  if (answer.status >= 400) {
    const error = new Error(await answer.text());
    error.status = answer.status;
    throw error;
  }
  return answer;
}

async function requestJson(path, parameters, signal) {
  return (await request(path, parameters, signal)).json();
}

/** The cells of one tile; null while the server still computes the overview of the head. */
async function requestTile(selected, level, row, col, signal = undefined) {
  const answer = await request("tile", { ...selected, level, row, col }, signal);
  if (answer.status !== 200) return null;
  const rows = Number(answer.headers.get("x-rows")), cols = Number(answer.headers.get("x-cols"));
  return makeTile(new Float32Array(await answer.arrayBuffer()), rows, cols);
}

function makeTile(cells, rows, cols) {
  return { cells, rows, cols, top: largest(cells), picture: null, drawn: "" };
}

/** The tile as a canvas, in the colours of the scale. It is drawn again only if the scale changed. */
function tilePicture(tile, scale) {
  const kind = scale.log ? "log" : "linear", name = `${kind}/${scale.top}`;
  if (tile.drawn !== name) {
    tile.picture = pixels(tile.cells, tile.cols, tile.rows, scaleTo(scale.top, kind), tile.picture ?? undefined);
    tile.drawn = name;
  }
  return tile.picture;
}

function showError(error) {
  const banner = byId("banner");
  banner.textContent = error instanceof TypeError
    ? "The server does not answer. If it was stopped, start clearhead view again."
    : `The server answered: ${error.message}`;
  banner.hidden = false;
}

class Tiles {
  constructor(onTile) {
    this.onTile = onTile;
    this.known = new Map();   // by name, the least recently used first
    this.pending = new Map(); // by name, with the controller that cancels the request
    this.wanted = [];
  }

  static name(selected, level, row, col) {
    return `${selected.layer}/${selected.batch}/${selected.head}/${level}/${row}/${col}`;
  }

  get(name) {
    const tile = this.known.get(name);
    if (tile) {
      this.known.delete(name);
      this.known.set(name, tile);
    }
    return tile;
  }

  /** Request these tiles, the most urgent first, and cancel requests for all others. */
  want(list) {
    const names = new Set(list.map((each) => each.name));
    for (const [name, controller] of this.pending) {
      if (!names.has(name)) controller.abort();
    }
    this.wanted = list.filter((each) => !this.known.has(each.name));
    this.next();
  }

  next() {
    while (this.pending.size < MOST_REQUESTS) {
      const each = this.wanted.find((one) => !this.pending.has(one.name));
      if (!each) return;
      this.fetch(each);
    }
  }

  async fetch({ name, selected, level, row, col }) {
    const controller = new AbortController();
    this.pending.set(name, controller);
    this.wanted = this.wanted.filter((one) => one.name !== name);
    try {
      const tile = await requestTile(selected, level, row, col, controller.signal);
      if (tile) {
        this.keep(name, tile);
        this.onTile();
      }
    } catch (error) {
      if (error.name !== "AbortError" && error.status !== 503) showError(error);
    } finally {
      this.pending.delete(name);
      this.next();
    }
  }

  keep(name, tile) {
    this.known.set(name, tile);
    for (const oldest of this.known.keys()) {
      if (this.known.size <= MOST_TILES) break;
      this.known.delete(oldest);
    }
  }
}

/** The labels of tokens, requested one block at a time. */
class Labels {
  constructor(onLabels) {
    this.onLabels = onLabels;
    this.blocks = new Map();
  }

  get(batch, index) {
    const size = 512, block = Math.floor(index / size), name = `${batch}/${block}`;
    if (!this.blocks.has(name)) {
      this.blocks.set(name, null);
      if (this.blocks.size > 128) this.blocks.delete(this.blocks.keys().next().value);
      requestJson("tokens", { batch, start: block * size, count: size })
        .then((found) => { this.blocks.set(name, found.tokens); this.onLabels(); })
        .catch(showError);
    }
    const labels = this.blocks.get(name);
    return labels ? labels[index - block * size] : undefined;
  }
}
