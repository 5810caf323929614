// Asking the server, and keeping the tiles that came.

const TOKEN = new URLSearchParams(location.search).get("token") || "";
const MOST_TILES = 240;
const MOST_ASKED = 3;

async function ask(path, parameters = {}, signal = undefined) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, {
    headers: { "x-clearhead-token": TOKEN }, signal, cache: "no-store", redirect: "error",
  });
  if (answer.status >= 400) {
    const words = await answer.text();
    const error = new Error(words);
    error.status = answer.status;
    throw error;
  }
  return answer;
}

async function askJson(path, parameters, signal) {
  return (await ask(path, parameters, signal)).json();
}

// A tile: its numbers, the largest of them, and its picture in the colours of now.
class Tiles {
  constructor(onTile) {
    this.onTile = onTile;
    this.known = new Map();   // by name, the least recently used first
    this.asked = new Map();   // by name, with what can end the request
    this.wanted = [];
  }

  static name(place, level, row, col) {
    return `${place.layer}/${place.batch}/${place.head}/${level}/${row}/${col}`;
  }

  get(name) {
    const tile = this.known.get(name);
    if (tile) {
      this.known.delete(name);
      this.known.set(name, tile);
    }
    return tile;
  }

  // What is needed now, most urgent first. Requests that nobody needs any more are ended.
  want(list) {
    const names = new Set(list.map((each) => each.name));
    for (const [name, controller] of this.asked) {
      if (!names.has(name)) controller.abort();
    }
    this.wanted = list.filter((each) => !this.known.has(each.name));
    this.next();
  }

  next() {
    while (this.asked.size < MOST_ASKED) {
      const each = this.wanted.find((one) => !this.asked.has(one.name));
      if (!each) return;
      this.fetch(each);
    }
  }

  async fetch({ name, place, level, row, col }) {
    const controller = new AbortController();
    this.asked.set(name, controller);
    this.wanted = this.wanted.filter((one) => one.name !== name);
    try {
      const answer = await ask("tile", { ...place, level, row, col }, controller.signal);
      if (answer.status === 200) {
        const rows = Number(answer.headers.get("x-rows"));
        const cols = Number(answer.headers.get("x-cols"));
        const cells = new Float32Array(await answer.arrayBuffer());
        this.keep(name, { rows, cols, cells, most: largest(cells), picture: null, drawn: "" });
        this.onTile();
      }
    } catch (error) {
      if (error.name !== "AbortError" && error.status !== 503) problem(error);
    } finally {
      this.asked.delete(name);
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

function largest(cells) {
  let most = 0;
  for (const cell of cells) if (cell > most) most = cell;
  return most;
}

function problem(error) {
  const banner = document.getElementById("banner");
  banner.textContent = error instanceof TypeError
    ? "The server does not answer. Was it stopped? Start clearhead view again."
    : `The server said: ${error.message}`;
  banner.hidden = false;
}

// Labels of tokens, a block at a time.
class Labels {
  constructor(onLabels) {
    this.onLabels = onLabels;
    this.blocks = new Map();
  }

  get(batch, place) {
    const size = 512, block = Math.floor(place / size), name = `${batch}/${block}`;
    if (!this.blocks.has(name)) {
      this.blocks.set(name, null);
      if (this.blocks.size > 128) this.blocks.delete(this.blocks.keys().next().value);
      askJson("tokens", { batch, start: block * size, count: size })
        .then((found) => { this.blocks.set(name, found.tokens); this.onLabels(); })
        .catch(problem);
    }
    const labels = this.blocks.get(name);
    return labels ? labels[place - block * size] : undefined;
  }
}
