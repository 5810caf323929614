// The flow of a model as a row of parts, each of which leads to the view that shows it.

/**
 * `parts` are {name, detail, go, here}: `go` is the selection that shows the part, and `here` says
 * whether it is shown now. A part with `parts` is a frame around others.
 */
function flowDiagram(parts) {
  const steps = [];
  const list = (all) => el("ol", { class: "flow-parts" }, all.map((part) => {
    if (part.parts) {
      part.title = el("span", { class: "flow-title" });
      return el("li", { class: "flow-frame" }, part.title, list(part.parts));
    }
    part.detailText = el("span", { class: "flow-detail" });
    part.element = button({ class: "flow-part", onclick: () => change(part.go()) },
      el("span", { class: "flow-name" }, part.name), part.detailText);
    steps.push(part);
    return el("li", {}, part.element);
  }));
  const diagram = el("nav", { class: "flow", "aria-label": "The flow of the model" }, list(parts));
  diagram.update = () => {
    for (const part of parts) if (part.title) part.title.textContent = part.name();
    for (const { element, detailText, detail, here } of steps) {
      detailText.textContent = detail();
      if (here()) element.setAttribute("aria-current", "true");
      else element.removeAttribute("aria-current");
    }
  };
  return diagram;
}

/** The parts of attention, from the input to the output of a layer. */
function attentionParts() {
  const numbers = walk.steps.map(({ number }) => number);
  const at = (number) => numbers.indexOf(number);
  const first = walk.steps[0].before, width = first[first.length - 1][1];
  const has = (number) => at(number) >= 0;
  /** Whether a step is shown that comes not before `from`, and before the first of `ends`. */
  const shown = (from, ...ends) => {
    const stop = ends.find(has);
    return state.view === "steps" && state.step >= at(from) && state.step < (stop ? at(stop) : Infinity);
  };
  return [
    has("1") && {
      name: "Q, K, V",
      detail: () => `${layer().rows.length} \u00d7 ${Object.values(walk.steps[at("1")].dims)[0].at(-1)[1]} each`,
      go: () => ({ view: "steps", step: at("1") }),
      here: () => shown("1", "4a"),
    },
    {
      name: layer().heads > 1 ? "Heads" : "Attention",
      detail: () => (layer().heads > 1 ? `${layer().heads} \u00d7 who attends to whom` : "who attends to whom"),
      go: () => ({ view: state.view === "steps" ? "sentence" : "steps", step: at("4c") }),
      here: () => shown("4a", "5", "6") || ["sentence", "heads", "matrix"].includes(state.view),
    },
    has("5") && {
      name: "Concat",
      detail: () => "heads side by side",
      go: () => ({ view: "steps", step: at("5") }),
      here: () => shown("5", "6"),
    },
    has("6") && {
      name: "Project",
      detail: () => `to ${width} numbers`,
      go: () => ({ view: "steps", step: at("6") }),
      here: () => shown("6"),
    },
  ].filter(Boolean);
}

/** Which layer is shown; layers are counted from 0. */
const layerTitle = () => `layer ${state.layer} of 0 to ${layers.length - 1}`;
