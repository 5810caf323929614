// What a head does with a text, measured and in words, as in maps/head_patterns.py.

const PATTERNS = { previous: "previous token", sink: "first token", same_token: "same token", induction: "after a copy" };
const NAMED = 0.4, ABOVE_CHANCE = 0.15; // see head_patterns.py

/**
 * The mean scores of a head. `weights` are (queries, keys), NaN where hidden. Uniform attention over
 * the visible keys gives the chance level of each score.
 */
function headScores(weights, ids) {
  const count = ids.length;
  const sums = {}, counts = {};
  const add = (name, value) => {
    sums[name] = (sums[name] ?? 0) + value;
    counts[name] = (counts[name] ?? 0) + 1;
  };
  for (let query = 0; query < count; query++) {
    const row = weights.subarray(query * count, (query + 1) * count);
    if (row.every(Number.isNaN)) continue;
    let entropy = 0, distance = 0, same = 0, after = 0, copies = 0;
    for (let key = 0; key < count; key++) {
      const copy = key < query && ids[key] === ids[query];
      const follows = key > 0 && key <= query && ids[key - 1] === ids[query];
      copies += copy;
      const weight = row[key];
      if (!(weight > 0)) continue;
      entropy -= weight * Math.log(weight);
      distance += weight * Math.abs(query - key);
      if (copy) same += weight;
      if (follows) after += weight;
    }
    add("entropy", entropy);
    add("distance", distance);
    add("sink", row[0] || 0);
    if (query > 0) add("previous", row[query - 1] || 0);
    if (copies) {
      add("same_token", same);
      add("induction", after);
    }
  }
  return Object.fromEntries(["entropy", "distance", "sink", "previous", "same_token", "induction"]
    .map((name) => [name, counts[name] ? sums[name] / counts[name] : null]));
}

/** Uniform attention over the keys that are visible in `weights`. */
function uniform(weights, count) {
  const even = new Float32Array(weights.length).fill(NaN);
  for (let from = 0; from < weights.length; from += count) {
    const seen = weights.subarray(from, from + count).reduce((sum, weight) => sum + !Number.isNaN(weight), 0);
    for (let i = from; i < from + count; i++) if (!Number.isNaN(weights[i])) even[i] = 1 / seen;
  }
  return even;
}

/** The name of a head's pattern, and the same number under uniform attention. */
function patternOf(scores, chance) {
  const above = Object.keys(PATTERNS).filter((name) => (scores[name] ?? 0) >= (chance[name] ?? 0) + ABOVE_CHANCE);
  const best = above.sort((a, b) => scores[b] - scores[a])[0];
  if (best && scores[best] >= NAMED) {
    return {
      name: `${PATTERNS[best]} ${scores[best].toFixed(2)}`,
      against: `chance ${(chance[best] ?? 0).toFixed(2)}`,
      clear: best === "sink" ? 0 : scores[best] - (chance[best] ?? 0),
    };
  }
  if (scores.entropy === null) return { name: "attends to nothing", against: "", clear: 0 };
  return {
    name: `spreads over about ${plural(Math.round(Math.exp(scores.entropy)), "token")}`,
    against: `chance ${plural(Math.round(Math.exp(chance.entropy)), "token")}`,
    clear: 0,
  };
}
