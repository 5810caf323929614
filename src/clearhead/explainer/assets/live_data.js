// The data of the page that runs the model: what the worker computed for the current text.

const about = { ...JSON.parse(byId("about").textContent), labels: [[""]], rtl: [false], notes: [] };
const layers = []; // of the model as it is switched now
const layersBefore = []; // of the model as it was trained
let answer = null; // the last one of the worker
const TRAINED = { causal: true, scale: "head", temperature: 1, knockout: [] };

class LiveLayer extends Layer {
  /** `numbers` are the arrays of this layer; `sees(head, query, key)` says what its mask shows. */
  constructor(index, numbers, ids, sees) {
    super({ name: `layer ${index}`, rows: 0, columns: 0, patterns: [], scores: {} }, index, about.labels);
    this.heads = about.sizes.num_heads;
    this.numbers = numbers;
    this.sees = sees;
    this.ready = true;
    const heads = Array.from({ length: this.heads }, (_, head) => head);
    this.info.numbers = heads;
    const all = heads.map((head) => {
      const weights = this.one(head), chance = headScores(uniform(weights, ids.length), ids);
      const scores = headScores(weights, ids);
      return { scores, chance, ...patternOf(scores, chance) };
    });
    this.info.patterns = all.map(({ name }) => name);
    this.info.against = all.map(({ against }) => against);
    this.info.clear = all.map(({ clear }) => clear);
    for (const name of Object.keys(all[0].scores)) this.info.scores[name] = all.map(({ scores }) => scores[name]);
    this.info.chance = all.map(({ chance }) => chance);
  }

  each(head, f) {
    const count = this.rows.length, from = head * count * count;
    for (let query = 0, at = 0; query < count; query++) {
      for (let key = 0; key < count; key++, at++) {
        if (this.sees(head, query, key)) f(at, this.numbers.weights[from + at]);
      }
    }
  }
}

/** The steps of the selected layer. Every tensor is a view of one of the layer's arrays. */
const walk = {
  ...about.walk,
  steps: JSON.parse(about.walk.steps.replaceAll("{n}", "1")),
  tensors: {},
  numbers: true,
  take(count) {
    this.steps = JSON.parse(about.walk.steps.replaceAll("{n}", String(count)));
    const { num_heads: heads, d_model: width } = about.sizes, size = width / heads;
    const shapes = {
      split: { shape: [count, heads, size], strides: [width, size, 1] },
      heads: { shape: [heads, count, size], strides: [size, width, 1] },
      rotated: { shape: [heads, count, size], strides: [size, width, 1] },
    };
    for (const name of about.walk.tensors) {
      const [stem, kind] = name.split("_"); // queries_heads: the queries, cut into heads
      const from = kind === "rotated" ? `rotated_${stem}` : stem;
      this.tensors[name] = { from, ...(shapes[kind] ?? { shape: [count, width], strides: [width, 1] }) };
    }
  },
  /** Step 4c as it is switched. */
  switch({ scale, temperature }) {
    const { d_model: width, num_heads: heads } = about.sizes;
    this.width = { head: width / heads, model: width, none: null }[scale];
    this.temperature = temperature;
    if (scale === "head" && temperature === 1) return;
    const step = this.steps.find(({ number }) => number === "4c");
    const parts = [this.width && `${this.width}**0.5`, temperature !== 1 && String(temperature)].filter(Boolean);
    const by = parts.length > 1 ? ` / (${parts.join(" * ")})` : parts.map((part) => ` / ${part}`).join("");
    step.operation = `torch.softmax(masked_scores${by}, dim=-1)`;
    step.code = `scaled_scores = masked_scores${by}\nattn_weights = torch.softmax(scaled_scores, dim=-1)`;
    step.formula = `weights = softmax(scores${by.replace("**0.5", "^\u00bd")})`;
  },
  vector(name, ...index) {
    const { from, shape, strides } = this.tensors[name];
    const start = index.reduce((sum, i, axis) => sum + i * strides[axis], 0);
    return layer().numbers[from].subarray(start, start + shape[shape.length - 1]);
  },
};

/** Take an answer of the worker. */
function take(found) {
  answer = found;
  about.title = found.text;
  about.labels[0] = found.labels.map((label) => visible(label) || "(empty)");
  about.rtl[0] = isRightToLeft(found.text);
  walk.take(found.ids.length);
  const switched = found.switches ?? TRAINED, { causal, knockout } = switched;
  walk.switch(switched);
  const blocked = (index) => (head, query, key) =>
    !(causal && key > query) && !knockout.some(([l, h, q, k]) =>
      (l === index || l === EVERY) && (h === head || h === EVERY) && q === query && k === key);
  const make = (side, sees) => side.layers.map((numbers, index) => new LiveLayer(index, numbers, found.ids, sees(index)));
  layersBefore.splice(0, Infinity, ...make(found.before, () => (head, query, key) => key <= query));
  layers.splice(0, Infinity, ...(found.after === found.before ? layersBefore : make(found.after, blocked)));
}

/** The text on one line, with every character visible, as in drawing/text_format.py. */
function visible(text) {
  const [, before, inner, after] = /^( *)(.*?)( *)$/su.exec(text);
  const escape = (character) => {
    const code = character.codePointAt(0), hex = code.toString(16);
    const short = { "\n": "\\n", "\t": "\\t", "\r": "\\r" }[character];
    if (short) return short;
    if (code < 256) return `\\x${hex.padStart(2, "0")}`;
    return code < 65536 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  };
  const shown = inner.replace(/[\p{C}\p{Z}]/gu, (character) => (character === " " ? " " : escape(character)));
  return "\u2423".repeat(before.length) + shown + "\u2423".repeat(after.length);
}

const isRightToLeft = (text) =>
  (text.match(/[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}]/gu) || []).length * 2 >
  (text.match(/\p{L}/gu) || []).length;

/** The worker. Only the newest question is kept while it is busy. */
const engine = {
  async start() {
    const source = new Blob([byId("engine").textContent], { type: "text/javascript" });
    const address = URL.createObjectURL(source);
    this.worker = new Worker(address);
    const bytes = await unpack("model");
    await new Promise((ready, failed) => {
      this.worker.onmessage = ({ data }) => (data.ready ? ready() : failed(new Error(data.error)));
      this.worker.onerror = (event) => failed(new Error(event.message));
      this.worker.postMessage({ sizes: about.sizes, tokenizer: about.tokenizer, buffer: bytes.buffer }, [bytes.buffer]);
    });
    URL.revokeObjectURL(address);
    this.worker.onmessage = ({ data }) => this.hear(data);
  },

  /** Ask for a text; `heard` is called with the answer to the newest question. */
  ask(text, switched) {
    this.question = { number: (this.question?.number ?? 0) + 1, text, switches: switched, asked: performance.now() };
    if (!this.busy) this.send();
  },

  send() {
    this.busy = this.question;
    this.worker.postMessage(this.question);
  },

  hear(data) {
    const { number, asked, switches: switched } = this.busy;
    this.busy = null;
    if (this.question.number !== number) this.send();
    this.heard({ ...data, asked, switches: switched });
  },
};
