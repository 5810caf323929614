// The explanation of each step, by its number, as a list of elements.

const bold = (text) => el("b", {}, text);

const lessons = {
  1(step, at) {
    return [
      explain(
        "Every token arrives as a list of numbers, called ", el("code", {}, "x"),
        ". Three tables of learned numbers turn it into three new lists. The ", bold("query"),
        " describes what this token is looking for, the ", bold("key"), " describes how other tokens can find it, ",
        "and the ", bold("value"), " is what it passes on to them."),
      vectorStrip("x", at),
      arrow("times the learned tables"),
      ...Object.keys(step.dims).map((made) => vectorStrip(made, at)),
    ];
  },

  2(step, at) {
    const [heads, width] = step.dims.queries_split.slice(-2).map(([, size]) => size);
    return [
      explain(
        `The ${heads * width} numbers are cut into ${plural(heads, "piece")} of ${width}, one for each head. `,
        "Nothing is computed, and no number changes. Each head will attend to the text in its own way."),
      strip("queries", vectorOf("queries", 0, at.i), at.label, { piece: width }),
      arrow("cut"),
      ...pieces("queries_split", heads, at),
      quiet("Keys and values are cut in the same way."),
    ];
  },

  3(step, at) {
    const near = at.from.rows.map((label, i) => ({ label, i })).filter(({ i }) => i < 2 || Math.abs(i - at.i) < 8);
    const rest = at.from.rows.length - near.length;
    return [
      explain(
        "Only the order changes. Before, each token held the pieces of all heads; now each head holds the ",
        "pieces of all tokens, as one table. From here on every head works alone."),
      el("h3", {}, at.many ? `The queries of head ${at.head}` : "The queries"),
      ...near.map(({ label, i }) =>
        strip(null, vectorOf("queries_heads", at.head, i), label, { strong: i === at.i })),
      rest > 0 ? quiet(`and ${plural(rest, "more token")}`) : null,
    ];
  },

  "3a": (step, at) => beforeAfter(step, at,
    "Every query and every key is scaled to the same length, ",
    "so that a match cannot become large only because a list contains large numbers."),

  "3b"(step, at) {
    const plain = "queries_normed" in walk.tensors ? "queries_normed" : "queries_heads";
    const [before, after] = [plain, "queries_rotated"].map((name) => vectorOf(name, at.head, at.i));
    const pair = (values) => `(${fixed(values[0])}, ${fixed(values[values.length / 2])})`;
    const [lines, ...strips] = beforeAfter(step, at, step.note);
    return [
      lines,
      explain("The first pair of this query, ", `${pair(before)}, becomes ${pair(after)}: `,
        "it is rotated by one radian per position. Later pairs are rotated more slowly."),
      ...strips,
    ];
  },

  "3c": (step, at) => beforeAfter(step, at,
    "There are fewer heads for keys and values than for queries, so each is shared by several query heads."),

  "4a"(step, at) {
    const most = Math.max(...at.shown.map((j) => Math.abs(at.scores[j])), 1e-9);
    const rows = at.shown.map((j) => [keyName(at, j), bar(at.scores[j] / most, true), fixed(at.scores[j], 4)]);
    return [
      explain(
        "How well does the query of ", token(at.label, 24, true),
        ` match each ${walk.keys === "x" ? "token" : "key"}? Multiply the two lists number by number, and add up the products. `,
        "The larger the sum, the better the match."),
      product(at, vectorOf(walk.keys, at.head, state.key)),
      table(["key", "", "score"], rows, at),
      more(at),
    ];
  },

  "4b"(step, at) {
    const count = at.hidden.filter(Boolean).length;
    const rows = at.shown.map((j) => {
      const score = fixed(at.scores[j], 4);
      return [keyName(at, j), score, at.hidden[j] ? hatchedCell(fixed(-Infinity)) : score];
    });
    const some = [
      `This token may not attend to ${plural(count, "token")}. `,
      "A hidden score becomes minus infinity, so that its weight will be exactly 0.",
    ];
    const none = [
      "Nothing is hidden from this token, so its scores do not change. ",
      "Select an earlier token to see the mask at work.",
    ];
    return [
      explain(...(count ? some : none)),
      table(["key", "score", "after the mask"], rows, at),
      more(at),
    ];
  },

  "4c"(step, at) {
    const scaled = at.scale !== 1;
    const divisors = [walk.width ? `\u221a${walk.width}` : "", walk.temperature ?? 1];
    const root = divisors.filter((part) => part && part !== 1).join(" \u00d7 ");
    const power = at.shift ? `e^(.. ${at.shift < 0 ? "+" : "\u2212"} ${fixed(Math.abs(at.shift))})` : scaled ? "e^that" : "e^score";
    const columns = (key, score, part, raised, drawn, weight) =>
      [key, score, ...(scaled ? [part] : []), raised, drawn, weight];
    const rows = at.shown.map((j) => {
      if (at.hidden[j]) {
        const nothing = el("span", { class: "gauge hatched", "aria-hidden": "true" });
        return columns(keyName(at, j), fixed(-Infinity), fixed(-Infinity), fixed(0, 4), nothing, fixed(0, 4));
      }
      const [score, part, raised, weight] =
        [at.scores, at.scaled, at.powers, at.weights].map((list) => fixed(list[j], 4));
      return columns(keyName(at, j), score, part, raised, bar(at.weights[j]), weight);
    });
    const sum = at.weights.reduce((a, b) => a + b, 0);
    return [
      explain(
        "The scores become shares that add up to 1. ",
        scaled ? `Each is divided by ${root} = ${fixed(at.scale)}` : "",
        scaled ? (walk.width ? ", so that longer vectors do not give larger scores. " : ". ") : "",
        "Then ", el("i", {}, "e"), " is raised to that power, which makes every score positive and large ",
        "differences larger. Finally, each result is divided by the sum of all results."),
      table(columns("key", "score", `\u00f7 ${root}`, power, "", "weight"), rows, at,
        columns("sum", "", "", fixed(at.sum, 4), "", fixed(sum, 4))),
      more(at),
    ];
  },

  "4d"(step, at) {
    const rows = at.shown.map((j) => [
      keyName(at, j),
      at.hidden[j] ? hatchedCell("hidden") : fixed(at.weights[j], 4),
      "",
      numbers(vectorOf(walk.values, at.head, j), { faint: at.hidden[j], most: 6 }),
    ]);
    const made = vectorOf(Object.keys(step.dims)[0], at.head, at.i);
    return [
      explain(
        "Each value is multiplied by its weight, and the products are added up. The larger the weight of a ",
        "token, the more of its value goes in. The sum is the new list of numbers for ", token(at.label, 24, true),
        at.many ? ` in head ${at.head}.` : "."),
      table(["key", "weight", "\u00d7", walk.values === "x" ? "x" : "value"], rows, at, ["sum", "", "=", numbers(made, { most: 6 })]),
      more(at),
    ];
  },

  5(step, at) {
    const width = walk.tensors.context_heads.shape[2], heads = at.from.heads, all = heads * width;
    return [
      explain(
        "The results of all heads are put side by side: ",
        `${heads} \u00d7 ${width} = ${all} numbers for this token.`),
      ...pieces("context_heads", heads, at),
      arrow("side by side"),
      strip("context_vec", vectorOf("context_vec", 0, at.i), at.label, { piece: width }),
    ];
  },

  6(step, at) {
    const gap = walk.gap === null ? "" : `; the largest difference is ${exact(walk.gap)}`;
    return [
      explain(
        "One more table of learned numbers mixes what the heads found. This is the output for ",
        token(at.label, 24, true), ": the same token, now with information from the tokens that it attended to."),
      vectorStrip("context_vec", at),
      arrow("times the learned table"),
      vectorStrip("output", at),
      quiet(`All tokens are computed at the same time. ${walk.form} itself gives the same numbers${gap}.`),
    ];
  },

  other: (step, at) => beforeAfter(step, at, step.formula),
};

/** Vectors before and after a step. */
function beforeAfter(step, at, ...words) {
  const earlier = walk.steps.slice(0, walk.steps.indexOf(step)).flatMap(({ dims }) => Object.keys(dims));
  const stem = (name) => name.split("_")[0];
  return [
    explain(...words),
    ...Object.keys(step.dims).flatMap((made) => {
      const before = earlier.filter((name) => stem(name) === stem(made)).pop();
      return before ? [vectorStrip(before, at), arrow("becomes"), vectorStrip(made, at)] : [vectorStrip(made, at)];
    }),
  ];
}
