// The worker: it holds the model twice, as trained and with the switches, and answers with numbers.
//
//     {sizes, tokenizer: {kind, pieces}, buffer}     load the model; the answer is {ready: true}
//     {number, text, switches, all}                  read a text; the answer has the same number
//
// With `all`, the answer also has every array of every layer, for the tests.

const SHOWN_WORDS = 10;
const SENT = ["x", "queries", "keys", "values", "rotated_queries", "rotated_keys", "context", "output"];
let tokenizer = null, plain = null, changed = null;

onmessage = ({ data }) => {
  try {
    if (data.buffer) {
      tokenizer = data.tokenizer.kind === "words" ? new Words(data.tokenizer.pieces) : new BytePairs(data.tokenizer.pieces);
      const weights = readWeights(data.buffer);
      plain = new Model(weights, data.sizes);
      changed = new Model(weights, data.sizes);
      postMessage({ ready: true });
    } else answer(data);
  } catch (error) {
    postMessage({ number: data.number, error: error.message });
  }
};

function answer({ number, text, switches, all }) {
  const start = performance.now();
  const read = tokenizer.read(text), most = plain.sizes.context_length;
  const ids = read.ids.slice(0, most), labels = read.labels.slice(0, most);
  if (!ids.length) {
    postMessage({ number, empty: true });
    return;
  }
  const computed = plain.run(ids), before = summary(plain, ids.length, all);
  let after = before;
  if (switches) {
    changed.run(ids, { ...UNCHANGED, ...switches });
    after = summary(changed, ids.length, all);
  }
  const milliseconds = performance.now() - start;
  const dropped = read.ids.length - ids.length;
  postMessage({ number, text, ids, labels, unknown: read.unknown, dropped, before, after, computed, milliseconds });
}

/** What the page shows of a forward pass: weights, the vectors of attention, the most likely next tokens. */
function summary(model, count, all) {
  const { num_heads: heads, context_length: most, d_model: width, vocab_size: size } = model.sizes;
  const layers = model.layers.map((layer) => {
    const weights = new Float32Array(heads * count * count);
    for (let line = 0; line < heads * count; line++) {
      const from = (Math.floor(line / count) * most + (line % count)) * most;
      weights.set(layer.weights.subarray(from, from + count), line * count);
    }
    const sent = { weights };
    for (const name of all ? Object.keys(layer).filter((each) => each !== "weights") : SENT) {
      sent[name] = layer[name].slice(0, (layer[name].length / most) * count);
    }
    return sent;
  });
  const logits = model.logits(count - 1);
  const top = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const shares = Float64Array.from(logits, (logit) => Math.exp(logit - top));
  const sum = shares.reduce((a, b) => a + b, 0);
  for (let id = 0; id < size; id++) shares[id] /= sum;
  const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, SHOWN_WORDS);
  const next = order.map((id) => ({ id, label: tokenizer.label(id), share: shares[id] }));
  const found = { layers, next, shares: Float32Array.from(shares), positions: model.positions };
  const { embedded, last } = model, used = count * width;
  return all ? { ...found, embedded: embedded.slice(0, used), last: last.slice(0, used), logits } : found;
}
