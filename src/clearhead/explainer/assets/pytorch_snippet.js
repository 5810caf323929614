// Copy as PyTorch: a program that computes the numbers of the page with Clearhead.

function snippet() {
  const { ids, after } = answer, { num_layers: count, num_heads: heads, qkv_bias: bias, rope_base: rope } = about.sizes;
  const size = about.sizes.d_model / heads, name = (number) => `blocks.${number}.attention`;
  const lines = [
    "import torch",
    "import clearhead",
    "",
    "torch.set_grad_enabled(False)",
    `model, tokenizer = clearhead.load("${about.model}")`,
    `ids = torch.tensor([[${ids.join(", ")}]])  # ${visible(shorten(state.text.replace(/\s+/g, " "), 60))}`,
  ];
  if (!state.causal) lines.push("for block in model.blocks:", "    block.attention.causal = False");
  const divisor = { head: "", none: ` * ${size}**0.5`, model: ` * ${size}**0.5 / ${size * heads}**0.5` }[state.scaling];
  const factor = `1${divisor}${state.temperature === 1 ? "" : ` / ${state.temperature}`}`;
  if (factor !== "1") {
    lines.push(`factor = ${factor}  # scores are proportional to the queries`, "for block in model.blocks:",
      "    block.attention.W_query.weight *= factor");
    if (bias) lines.push("    block.attention.W_query.bias *= factor");
  }
  if (state.shuffle) lines.push(...shuffled(after.positions, rope));
  const contexts = [];
  if (state.ablate.length) {
    const chosen = {};
    for (const [number, head] of state.ablate) {
      const own = head === EVERY ? Array.from({ length: heads }, (_, i) => i) : [head];
      if (number < count) chosen[name(number)] = [...new Set([...(chosen[name(number)] ?? []), ...own])];
    }
    contexts.push(`clearhead.ablate(model, ${JSON.stringify(chosen)})`);
  }
  for (const [number, head, query, key] of state.knockout) {
    const where = number === EVERY ? "*" : name(number), some = head === EVERY ? "" : `, heads=${head}`;
    const there = Math.max(query, key) < ids.length;
    if (there) contexts.push(`clearhead.knockout(model, "${where}", queries=${query}, keys=${key}${some})`);
  }
  contexts.push("clearhead.watch(model) as seen");
  return [
    ...lines,
    "",
    `with (\n${contexts.map((each) => `    ${each},\n`).join("")}):`,
    "    logits = model(ids)",
    `print(seen["${name(state.layer)}"][0, ${state.head}, ${state.query}])  # what token ${state.query} attends to`,
    "shares, words = torch.softmax(logits[0, -1], dim=-1).topk(5)",
    "print([(tokenizer.decode([i]), round(p, 4)) for i, p in zip(words.tolist(), shares.tolist())])",
    "",
  ].join("\n");
}

/** Each token gets the position of another. */
function shuffled(positions, rope) {
  const order = `[${positions.join(", ")}]`;
  if (!rope) {
    const table = "model.embedding.position.weight";
    return [`${table}[:${positions.length}] = ${table}[${order}]`];
  }
  return [
    `order = torch.tensor(${order})`,
    "class Shuffled(clearhead.Rope):",
    "    def rotate(self, x, positions):",
    "        return super().rotate(x, order[positions])",
    "for block in model.blocks:",
    `    block.attention.rope = Shuffled(${rope})`,
  ];
}

function openSnippet() {
  const text = snippet(), code = el("code", {}, text);
  const copy = button({ class: "go strong", onclick: () => copyText(text, code, copy) }, "Copy");
  const dialog = el("dialog", { class: "wide-dialog", "aria-labelledby": "snippet-title", onclose: () => dialog.remove() },
    el("h2", { id: "snippet-title" }, "These numbers in PyTorch"),
    el("pre", { tabindex: 0 }, code),
    el("div", { class: "turn" }, copy, button({ class: "go", onclick: () => dialog.close() }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

/** Copy a text. Where the browser does not allow it, the text is selected instead. */
async function copyText(text, shown, pressed) {
  try {
    await navigator.clipboard.writeText(text);
    pressed.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(shown);
    pressed.textContent = "Selected: press Ctrl+C";
  }
}
