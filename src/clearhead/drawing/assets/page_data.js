// The data of a page in a file, unpacked from its blocks. html_page.py describes the format.

const about = JSON.parse(byId("about").textContent);

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

class StoredLayer extends Layer {
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
}

const layers = about.layers.map((info, index) => new StoredLayer(info, index, about.labels));

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
