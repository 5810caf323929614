// Save the current view as SVG or PNG.

/** Any CSS colour as rgb(), which every program can read. */
const plainColour = (() => {
  const context = el("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  return (colour) => {
    if (!known.has(colour)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      const opaque = a === 255 ? `rgb(${r}, ${g}, ${b})` : `rgba(${r}, ${g}, ${b}, ${(a / 255).toFixed(3)})`;
      known.set(colour, a === 0 ? null : opaque);
    }
    return known.get(colour);
  };
})();

/** Elements as SVG: their boxes, pictures and lines of text, in the same positions. */
function drawn(root) {
  const bounds = root.getBoundingClientRect(), margin = 16;
  const pen = new SvgPen(Math.ceil(bounds.width) + 2 * margin, Math.ceil(root.scrollHeight) + 2 * margin);
  const locate = ({ left, top, width, height }) =>
    ({ x: left - bounds.left + margin, y: top - bounds.top + margin, width, height });
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) drawText(pen, node, locate);
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(".unseen, .turn")) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden") return;
    const { x, y, width, height } = locate(node.getBoundingClientRect());
    if (node.localName === "svg") {
      const copy = svgEl("g", { transform: `translate(${x} ${y})` });
      for (const path of node.children) {
        const { stroke, strokeWidth, opacity } = getComputedStyle(path);
        copy.append(svgEl("path", {
          d: path.getAttribute("d"),
          fill: "none",
          stroke: plainColour(stroke),
          "stroke-width": parseFloat(strokeWidth),
          "stroke-linecap": "round",
          opacity,
        }));
      }
      pen.root.append(copy);
      return;
    }
    const radius = parseFloat(style.borderTopLeftRadius) || 0;
    const back = plainColour(style.backgroundColor);
    if (node.matches(".hatched, .token.hidden")) pen.hatch(x, y, width, height);
    else if (back && width && height) pen.rect(x, y, width, height, back, Math.min(radius, height / 2));
    const around = parseFloat(style.borderTopWidth), under = parseFloat(style.borderBottomWidth);
    const line = plainColour(around ? style.borderTopColor : style.borderBottomColor);
    if (line && around) {
      pen.frame(x + around / 2, y + around / 2, width - around, height - around, line, around, radius);
    } else if (line && under) pen.rect(x, y + height - under, width, under, line);
    if (node.localName === "canvas") pen.image(node, x, y, width, height);
    node.childNodes.forEach(visit);
  };
  visit(root);
  return pen.root;
}

function drawText(pen, node, locate) {
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange(), lines = [];
  for (const { index, 0: word } of node.data.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    const last = lines[lines.length - 1];
    if (last && Math.abs(last.top - box.top) < 2) last.stop = index + word.length;
    else lines.push({ top: box.top, start: index, stop: index + word.length });
  }
  for (const { start, stop } of lines) {
    range.setStart(node, start);
    range.setEnd(node, stop);
    const { x, y, height } = locate(range.getBoundingClientRect());
    pen.text(node.data.slice(start, stop).replace(/\s+/g, " "), x, y + height / 2, {
      size: parseFloat(style.fontSize),
      weight: Number(style.fontWeight) || 400,
      colour: plainColour(style.color),
    });
    if (/mono/i.test(style.fontFamily)) pen.root.lastChild.setAttribute("font-family", "monospace");
  }
}

function pictureOf(view) {
  return view === "matrix" ? matrixView.svg() : drawn(byId(`panel-${view}`).querySelector(views[view].picture));
}

function download(blob, suffix) {
  const title = `${shorten(about.title, 40)} ${state.view} head ${layer().number(state.head)}`.toLowerCase();
  const name = title.replace(/[^\p{Letter}\p{Number}]+/gu, "-").replace(/^-|-$/g, "");
  const link = el("a", { href: URL.createObjectURL(blob), download: `${name}.${suffix}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say(`Saved as ${suffix.toUpperCase()}.`);
}

function saveAs(suffix) {
  const root = pictureOf(state.view);
  const text = new XMLSerializer().serializeToString(root);
  const blob = new Blob([text], { type: "image/svg+xml" });
  if (suffix === "svg") {
    download(blob, "svg");
    return;
  }
  const width = Number(root.getAttribute("width")), height = Number(root.getAttribute("height"));
  const times = Math.min(2, 8000 / Math.max(width, height));
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", { width: Math.round(width * times), height: Math.round(height * times) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(image.src);
    canvas.toBlob((png) => download(png, "png"));
  };
  image.src = URL.createObjectURL(blob);
}
