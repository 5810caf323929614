// Controls that several views share: buttons, lists, and rankings of the largest weights.

/** A group of buttons, one of which is pressed. */
function choice(label, options, chosen, pick) {
  const buttons = options.map(([value, text]) =>
    button({ "data-value": value, "aria-pressed": String(value === chosen), onclick: () => pick(value) }, text));
  const group = el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  group.mark = (value) => {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.value === value));
  };
  return group;
}

/** A drop-down list with a label. */
function select(label, options, chosen, pick) {
  const list = el("select", { onchange: (event) => pick(event.target.value) },
    options.map(([value, text]) => el("option", { value }, text)));
  list.value = String(chosen);
  const whole = el("label", { class: "select" }, el("span", {}, label), list);
  whole.mark = (value) => { list.value = String(value); };
  return whole;
}

function scaleChoice() {
  const scales = [["linear", "Linear"], ["log", "Logarithmic"]];
  return choice("Colours", scales, state.scale, (scale) => change({ scale }));
}

/** The lists of layers and heads. */
function headControls() {
  const parts = [];
  let layerList = null;
  if (layers.length > 1) {
    const names = layers.map((each) => [String(each.index), shorten(each.name, 32)]);
    layerList = select("Layer", names, state.layer, (value) => change({ layer: Number(value) }));
    layerList.append(el("span", {}, `of 0 to ${layers.length - 1}`));
    parts.push(layerList);
  }
  const headList = el("select", { onchange: (event) => change({ head: Number(event.target.value) }) });
  const whole = el("label", { class: "select" }, el("span", {}, "Head"), headList);
  if (layers.some((each) => each.heads > 1)) parts.push(whole);
  const group = el("div", { class: "group" }, parts);
  let shown = null;
  group.update = () => {
    if (shown !== layer()) {
      shown = layer();
      const options = layer().info.patterns.map((pattern, head) => el("option", { value: head }, `${layer().number(head)}: ${pattern}`));
      headList.replaceChildren(...options);
      layerList?.mark(state.layer);
    }
    headList.value = String(state.head);
  };
  return group;
}

/** The largest weights of a row or column, as a list of bars that can be selected. */
function ranking(heading, weights, labels, chosen, pick, most = 8) {
  const seen = Array.from(weights.keys()).filter((i) => !Number.isNaN(weights[i]));
  seen.sort((a, b) => weights[b] - weights[a]);
  const items = seen.slice(0, most).map((i) => {
    const bar = el("span", { class: "fill", style: { width: `${100 * Math.min(weights[i], 1)}%` } });
    return el("li", {}, button(
      { class: "rank", "aria-current": i === chosen ? "true" : null, onclick: () => pick(i) },
      token(labels[i], 18),
      el("span", { class: "track", "aria-hidden": "true" }, bar),
      el("span", { class: "amount" }, fixed(weights[i], 3))));
  });
  const rest = seen.length - items.length;
  return el("section", { class: "ranking" }, heading,
    items.length ? el("ol", {}, items) : quiet("Nothing: everything is hidden."),
    rest > 0 ? quiet(`and ${plural(rest, "more token")}`) : null);
}
