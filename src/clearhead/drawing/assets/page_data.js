// The numbers, unpacked from the blocks of this file. html_page.py describes the format.

const about = JSON.parse(byId("about").textContent);

async function unpack(id) {
  const text = byId(id).textContent;
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(text);
  else {
    const characters = atob(text);
    bytes = new Uint8Array(characters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers that are stored as the lowest byte of each, then the next byte of each, and so on. */
function joined(bytes, size) {
  const count = bytes.length / size;
  const whole = new Uint8Array(bytes.length);
  for (let part = 0; part < size; part++)
    for (let i = 0, at = part * count; i < count; i++, at++) whole[i * size + part] = bytes[at];
  return size === 4 ? new Float32Array(whole.buffer) : new Uint16Array(whole.buffer);
}

/** The value of each of the 65,536 float16 numbers. */
const halves = (() => {
  const all = new Float32Array(65536);
  for (let i = 0; i < 32768; i++) {
    const power = i >> 10, rest = i & 1023;
    let value = (1 + rest / 1024) * 2 ** (power - 15);
    if (power === 0) value = rest * 2 ** -24;
    if (power === 31) value = rest ? NaN : Infinity;
    all[i] = value;
    all[i + 32768] = -value;
  }
  return all;
})();

class Layer {
  constructor(info, index) {
    this.info = info;
    this.index = index;
    this.name = info.name;
    this.rows = about.labels[info.rows];
    this.columns = about.labels[info.columns];
    this.same = info.rows === info.columns; // queries and keys are the same tokens
    this.heads = info.patterns.length;
    this.kept = new Map();
    this.ready = false;
  }

  async load() {
    const bytes = await unpack(`layer-${this.index}`);
    const size = this.rows.length * this.columns.length, packed = Math.ceil(size / 8);
    this.positions = []; // the visible cells of each mask
    for (let mask = 0; mask < this.info.masks; mask++) {
      const positions = new Uint32Array(size);
      let count = 0;
      for (let i = 0; i < size; i++)
        if (bytes[mask * packed + (i >> 3)] & (128 >> (i & 7))) positions[count++] = i;
      this.positions.push(positions.slice(0, count));
    }
    const numbers = joined(bytes.subarray(packed * this.info.masks), about.bytes);
    this.cells = [];
    let start = 0;
    for (const mask of this.info.mask) {
      const stop = start + this.positions[mask].length;
      this.cells.push(numbers.subarray(start, stop));
      start = stop;
    }
    this.ready = true;
  }

  /** Call f(position, weight) for every visible cell of a head. */
  each(head, f) {
    const positions = this.positions[this.info.mask[head]], cells = this.cells[head];
    if (about.bytes === 2) for (let i = 0; i < cells.length; i++) f(positions[i], halves[cells[i]]);
    else for (let i = 0; i < cells.length; i++) f(positions[i], cells[i]);
  }

  /** All cells of a head, row by row, NaN if hidden; for "all", the mean of all heads. */
  weights(head) {
    if (!this.kept.has(head)) {
      if (this.kept.size > 24) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(head, head === "all" ? this.mean() : this.one(head));
    }
    return this.kept.get(head);
  }

  one(head) {
    const all = new Float32Array(this.rows.length * this.columns.length).fill(NaN);
    this.each(head, (position, weight) => { all[position] = weight; });
    return all;
  }

  mean() {
    const all = new Float32Array(this.rows.length * this.columns.length);
    const seen = new Uint8Array(all.length);
    for (let head = 0; head < this.heads; head++)
      this.each(head, (position, weight) => { all[position] += weight / this.heads; seen[position] = 1; });
    for (let i = 0; i < all.length; i++) if (!seen[i]) all[i] = NaN;
    return all;
  }

  weight(head, query, key) {
    return this.weights(head)[query * this.columns.length + key];
  }

  row(head, query) {
    const width = this.columns.length;
    return this.weights(head).subarray(query * width, (query + 1) * width);
  }

  column(head, key) {
    const width = this.columns.length, all = this.weights(head);
    return Float32Array.from(this.rows, (_, query) => all[query * width + key]);
  }

  /** The number of a head in the model. The page may show only some of its heads. */
  number(head) {
    return this.info.numbers[head];
  }

  title(head) {
    const name = this.name ? `${this.name}, ` : "";
    return head === "all" ? `${name}mean of all heads` : `${name}head ${this.number(head)}`;
  }
}

const layers = about.layers.map((info, index) => new Layer(info, index));

/** The numbers of the steps. Each tensor is a view of one long list. */
const walk = about.walk && {
  ...about.walk,
  async load() { this.numbers = joined(await unpack("walk"), 4); },
  /** One vector: vector("queries_heads", head, token). */
  vector(name, ...index) {
    const { offset, shape, strides } = this.tensors[name];
    let start = offset;
    index.forEach((i, axis) => { start += i * strides[axis]; });
    const step = strides[strides.length - 1];
    return Float32Array.from({ length: shape[shape.length - 1] }, (_, i) => this.numbers[start + i * step]);
  },
};
