// A GPT-2 in plain JavaScript: token ids -> every number of the forward pass.
//
//     x = token vector + position vector
//     x = x + attention(norm1(x))          one layer, repeated
//     x = x + feed_forward(norm2(x))
//     logits = norm(x) @ token vectors
//
// int8_weights.py describes the file of weights. All arrays are (tokens, width) in float32, one after
// the other; the tests compare each of them with PyTorch.

/** Nothing is changed: the model as it was trained. */
const UNCHANGED = {
  causal: true, // later tokens are hidden
  scale: "head", // scores are divided by the root of head_dim ("head") or d_model ("model"), or not ("none")
  temperature: 1, // scores are also divided by this
  ablate: [], // [layer, head]: the output of this head is replaced by zeros; head -1 stands for every head
  knockout: [], // [layer, head, query, key]: this query may not attend to this key; -1 as above
  shuffle: 0, // the seed of a random order of the positions; 0 for the usual order
};

/** A model and the numbers of its last forward pass. */
class Model {
  /** `weights` comes from `readWeights`; `sizes` is the configuration of the model. */
  constructor(weights, sizes) {
    this.sizes = sizes;
    this.weights = weights;
    const { d_model: width, num_layers: count, num_heads: heads, context_length: most } = sizes;
    const room = (columns) => new Float32Array(most * columns);
    this.embedded = room(width);
    this.layers = Array.from({ length: count }, () => ({
      x: room(width), queries: room(width), keys: room(width), values: room(width),
      rotated_queries: room(sizes.rope_base ? width : 0), rotated_keys: room(sizes.rope_base ? width : 0),
      weights: room(heads * most), // (heads, queries, keys), each row with room for all keys
      context: room(width), output: room(width), attended: room(width),
      normed: room(width), wide: room(4 * width), fed: room(width), after: room(width),
    }));
    this.last = room(width);
    this.tokens = [];
    this.positions = [];
    this.switches = "";
  }

  /**
   * Read the tokens. What depends only on an unchanged beginning is not computed again. Returns the
   * number of tokens that were computed.
   */
  run(ids, switches = UNCHANGED) {
    const positions = positionsOf(ids.length, switches.shuffle), same = JSON.stringify(switches);
    let start = 0;
    if (switches.causal && same === this.switches) {
      while (start < ids.length && ids[start] === this.tokens[start] && positions[start] === this.positions[start]) start++;
    }
    Object.assign(this, { tokens: [...ids], positions, switches: same });
    this.embed(ids, positions, start);
    let x = this.embedded;
    this.layers.forEach((layer, number) => {
      this.attend(number, x, positions, start, ids.length, switches);
      this.feed(number, start, ids.length);
      x = layer.after;
    });
    this.norm("norm", x, this.last, start, ids.length);
    return ids.length - start;
  }

  embed(ids, positions, start) {
    const width = this.sizes.d_model, token = this.weights["embedding.token.weight"].numbers;
    const position = this.weights["embedding.position.weight"]?.numbers;
    for (let t = start; t < ids.length; t++) {
      for (let i = 0; i < width; i++) {
        const place = position ? position[positions[t] * width + i] : 0;
        this.embedded[t * width + i] = token[ids[t] * width + i] + place;
      }
    }
  }

  /** attended = x + attention(norm1(x)), for the tokens from start to stop. */
  attend(number, x, positions, start, stop, switches) {
    const layer = this.layers[number], name = `blocks.${number}.attention`;
    const { d_model: width, num_heads: heads, context_length: most, rope_base: base } = this.sizes;
    const size = width / heads;
    this.norm(`blocks.${number}.norm1`, x, layer.x, start, stop);
    this.linear(`${name}.W_query`, layer.x, layer.queries, start, stop);
    this.linear(`${name}.W_key`, layer.x, layer.keys, start, stop);
    this.linear(`${name}.W_value`, layer.x, layer.values, start, stop);
    let { queries, keys } = layer;
    if (base) {
      rotate(queries, layer.rotated_queries, positions, size, width, base, start, stop);
      rotate(keys, layer.rotated_keys, positions, size, width, base, start, stop);
      [queries, keys] = [layer.rotated_queries, layer.rotated_keys];
    }
    const divisor = { head: Math.sqrt(size), model: Math.sqrt(width), none: 1 }[switches.scale] * switches.temperature;
    const fits = (which, one) => which === one || which === -1;
    const ablated = (head) => switches.ablate.some(([l, h]) => fits(l, number) && fits(h, head));
    const knocked = (head) => switches.knockout.filter(([l, h]) => fits(l, number) && fits(h, head));
    const row = new Float64Array(stop);
    for (let head = 0; head < heads; head++) {
      const from = head * size, off = ablated(head);
      const hidden = new Set(knocked(head).map(([, , query, key]) => query * most + key));
      for (let query = start; query < stop; query++) {
        const line = (head * most + query) * most, seen = switches.causal ? query + 1 : stop;
        // Scores, mask, softmax.
        let top = -Infinity;
        for (let key = 0; key < seen; key++) {
          let score = 0;
          for (let i = from, q = query * width + from, k = key * width + from; i < from + size; i++, q++, k++) {
            score += queries[q] * keys[k];
          }
          row[key] = hidden.has(query * most + key) ? -Infinity : score / divisor;
          top = Math.max(top, row[key]);
        }
        let sum = 0;
        for (let key = 0; key < seen; key++) {
          row[key] = top === -Infinity ? 0 : Math.exp(row[key] - top);
          sum += row[key];
        }
        layer.weights.fill(0, line, line + most);
        for (let key = 0; key < seen; key++) layer.weights[line + key] = sum > 0 ? row[key] / sum : 0;
        // The weighted sum of the values.
        const out = query * width + from;
        layer.context.fill(0, out, out + size);
        if (off) continue;
        for (let key = 0; key < seen; key++) {
          const weight = layer.weights[line + key];
          for (let i = 0, v = key * width + from; i < size; i++, v++) layer.context[out + i] += weight * layer.values[v];
        }
      }
    }
    this.linear(`${name}.out_proj`, layer.context, layer.output, start, stop);
    add(x, layer.output, layer.attended, start * width, stop * width);
  }

  /** after = attended + feed_forward(norm2(attended)). */
  feed(number, start, stop) {
    const layer = this.layers[number], name = `blocks.${number}`, width = this.sizes.d_model;
    this.norm(`${name}.norm2`, layer.attended, layer.normed, start, stop);
    this.linear(`${name}.feed_forward.expand`, layer.normed, layer.wide, start, stop);
    for (let i = start * 4 * width; i < stop * 4 * width; i++) layer.wide[i] = gelu(layer.wide[i]);
    this.linear(`${name}.feed_forward.project`, layer.wide, layer.fed, start, stop);
    add(layer.attended, layer.fed, layer.after, start * width, stop * width);
  }

  norm(name, x, out, start, stop) {
    const scale = this.weights[`${name}.weight`].numbers, shift = this.weights[`${name}.bias`].numbers;
    const width = scale.length;
    for (let t = start; t < stop; t++) {
      let mean = 0, variance = 0;
      for (let i = t * width; i < (t + 1) * width; i++) mean += x[i] / width;
      for (let i = t * width; i < (t + 1) * width; i++) variance += (x[i] - mean) ** 2 / width;
      const by = 1 / Math.sqrt(variance + 1e-5);
      for (let i = 0, at = t * width; i < width; i++, at++) out[at] = (x[at] - mean) * by * scale[i] + shift[i];
    }
  }

  linear(name, x, out, start, stop) {
    const { numbers, shape: [rows, columns] } = this.weights[`${name}.weight`];
    multiply(x, numbers, this.weights[`${name}.bias`]?.numbers, out, rows, columns, start, stop);
  }

  /** The logits of the next token after a position. */
  logits(position) {
    const { numbers, shape: [rows, columns] } = this.weights["embedding.token.weight"];
    const x = this.last.subarray(position * columns, (position + 1) * columns), out = new Float32Array(rows);
    multiply(x, numbers, undefined, out, rows, columns, 0, 1);
    return out;
  }
}

/** out[t, r] = weight[r] . x[t] + bias[r]. Four tokens at a time, so that each weight is loaded once for all. */
function multiply(x, weight, bias, out, rows, columns, start, stop) {
  let t = start;
  for (; t + 4 <= stop; t += 4) {
    const a = t * columns, b = a + columns, c = b + columns, d = c + columns;
    for (let r = 0; r < rows; r++) {
      const from = r * columns;
      let w = 0, x1 = 0, x2 = 0, x3 = 0, x4 = 0;
      for (let i = 0; i < columns; i++) {
        w = weight[from + i];
        x1 += w * x[a + i];
        x2 += w * x[b + i];
        x3 += w * x[c + i];
        x4 += w * x[d + i];
      }
      const shift = bias ? bias[r] : 0, at = t * rows + r;
      out[at] = x1 + shift;
      out[at + rows] = x2 + shift;
      out[at + 2 * rows] = x3 + shift;
      out[at + 3 * rows] = x4 + shift;
    }
  }
  for (; t < stop; t++) {
    for (let r = 0; r < rows; r++) {
      let sum = bias ? bias[r] : 0;
      for (let i = 0, a = t * columns, b = r * columns; i < columns; i++, a++, b++) sum += weight[b] * x[a];
      out[t * rows + r] = sum;
    }
  }
}

function add(a, b, out, start, stop) {
  for (let i = start; i < stop; i++) out[i] = a[i] + b[i];
}

/** The tanh form, as in GPT-2. */
function gelu(x) {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
}

/** Rotary positions: numbers i and i + size / 2 of each head are rotated by an angle. */
function rotate(x, out, positions, size, width, base, start, stop) {
  const half = size / 2;
  for (let t = start; t < stop; t++) {
    for (let from = t * width; from < (t + 1) * width; from += size) {
      for (let i = 0; i < half; i++) {
        const angle = positions[t] / base ** ((2 * i) / size), cos = Math.cos(angle), sin = Math.sin(angle);
        const a = x[from + i], b = x[from + i + half];
        out[from + i] = a * cos - b * sin;
        out[from + i + half] = b * cos + a * sin;
      }
    }
  }
}

/** The position of each token: 0, 1, 2, ..., or in a random order that depends on the seed. */
function positionsOf(count, seed) {
  const positions = Array.from({ length: count }, (_, i) => i);
  let random = seed;
  for (let i = count - 1; seed && i > 0; i--) {
    random = (Math.imul(random, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((random / 2 ** 32) * (i + 1));
    [positions[i], positions[j]] = [positions[j], positions[i]];
  }
  return positions;
}

/** The tensors of a safetensors file by name. Matrices in eight bits become float32. */
function readWeights(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const bytes = ({ data_offsets: [start, stop] }) => buffer.slice(8 + length + start, 8 + length + stop);
  const tensors = {};
  for (const [name, info] of Object.entries(header)) {
    if (name === "__metadata__" || name.endsWith(".scale")) continue;
    let numbers;
    if (info.dtype === "I8") {
      const steps = new Int8Array(bytes(info)), scale = new Float32Array(bytes(header[`${name}.scale`]));
      const columns = info.shape[1];
      numbers = new Float32Array(steps.length);
      for (let row = 0, i = 0; row < scale.length; row++) {
        for (const stop = i + columns; i < stop; i++) numbers[i] = steps[i] * scale[row];
      }
    } else if (info.dtype === "F32") numbers = new Float32Array(bytes(info));
    else throw new Error(`${name}: expected I8 or F32, got ${info.dtype}`);
    tensors[name] = { numbers, shape: info.shape };
  }
  return tensors;
}
