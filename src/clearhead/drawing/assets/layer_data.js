// The numbers of a page: how blocks of a file are unpacked, and the weights of a layer.

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

/** The weights of a layer. A subclass has `each`, and sets `ready` when the weights are there. */
class Layer {
  constructor(info, index, labels) {
    this.info = info;
    this.index = index;
    this.name = info.name;
    this.rows = labels[info.rows];
    this.columns = labels[info.columns];
    this.same = info.rows === info.columns; // queries and keys are the same tokens
    this.heads = info.patterns.length;
    this.kept = new Map();
    this.ready = false;
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
