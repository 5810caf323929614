// Colours, and two pens that draw the same picture: on a canvas, and as SVG.

// Nine points of viridis, as in colours.py; even steps of lightness for every kind of eye.
const VIRIDIS = [
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];
const SHADES = Array.from({ length: 256 }, (_, i) => {
  const place = (i / 255) * 8, low = Math.min(Math.floor(place), 7);
  const next = VIRIDIS[low + 1];
  return VIRIDIS[low].map((channel, c) => Math.round(channel + (next[c] - channel) * (place - low)));
});
const DECADES = 4; // of a logarithmic scale

/** From a weight to a place between 0 and 1 in the colours. */
function scaleTo(top, kind) {
  if (!(top > 0)) return () => 0;
  if (kind === "log") return (weight) => (weight > 0 ? clamp(1 + Math.log10(weight / top) / DECADES, 0, 1) : 0);
  return (weight) => clamp(weight / top, 0, 1);
}

const shadeOf = (share) => SHADES[Math.round(clamp(share || 0, 0, 1) * 255)];
const css = ([red, green, blue]) => `rgb(${red}, ${green}, ${blue})`;

/** Black or white, whichever can be read on a shade. */
function textOn(shade) {
  const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = shade.map((channel) => linear(channel / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

const largest = (weights) => {
  let top = 0;
  for (const weight of weights) if (weight > top) top = weight;
  return top;
};

/** A picture with one pixel a cell; hidden cells stay transparent. */
function pixels(weights, width, height, scale) {
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < weights.length; i++) {
    if (Number.isNaN(weights[i])) continue;
    const shade = shadeOf(scale(weights[i]));
    image.data.set(shade, i * 4);
    image.data[i * 4 + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The colours of this page, light or dark. */
function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** As much of a label as there is room for, in pixels. */
const fitted = (() => {
  const context = el("canvas").getContext("2d");
  return (text, room, size, weight = 400) => {
    context.font = `${weight} ${size}px ${FONT}`;
    let most = 16, label = shorten(text, most);
    while (most > 1 && context.measureText(label).width > room) label = shorten(text, (most -= 1));
    return label;
  };
})();

const FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

class CanvasPen {
  constructor(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.context = canvas.getContext("2d");
    this.context.scale(ratio, ratio);
  }

  rect(x, y, width, height, colour) {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  frame(x, y, width, height, colour, line = 1) {
    this.context.strokeStyle = colour;
    this.context.lineWidth = line;
    this.context.strokeRect(x, y, width, height);
  }

  hatch(x, y, width, height) {
    if (!this.pattern) {
      const tile = el("canvas", { width: 8, height: 8 });
      const context = tile.getContext("2d");
      context.fillStyle = ink("hatch-back");
      context.fillRect(0, 0, 8, 8);
      context.strokeStyle = ink("hatch");
      context.lineWidth = 1.5;
      for (const shift of [-8, 0, 8]) {
        context.beginPath();
        context.moveTo(shift, 8);
        context.lineTo(shift + 8, 0);
        context.stroke();
      }
      this.pattern = this.context.createPattern(tile, "repeat");
    }
    this.rect(x, y, width, height, this.pattern);
  }

  image(canvas, x, y, width, height, smooth = false) {
    this.context.imageSmoothingEnabled = smooth;
    this.context.drawImage(canvas, x, y, width, height);
  }

  text(text, x, y, { size = 13, weight = 400, align = "left", colour = ink("text"), turn = 0 } = {}) {
    const c = this.context;
    c.save();
    c.translate(x, y);
    c.rotate((turn * Math.PI) / 180);
    c.font = `${weight} ${size}px ${FONT}`;
    c.textAlign = align;
    c.textBaseline = "middle";
    c.direction = "ltr";
    c.fillStyle = colour;
    c.fillText(text, 0, 0);
    c.restore();
  }

  /** How wide a text is. */
  width(text, size, weight) {
    this.context.font = `${weight} ${size}px ${FONT}`;
    return this.context.measureText(text).width;
  }

  within(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

class SvgPen {
  constructor(width, height) {
    const viewBox = `0 0 ${width} ${height}`;
    this.root = svgEl("svg", { xmlns: SVG, width, height, viewBox, "font-family": FONT });
    const pattern = svgEl("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      svgEl("rect", { width: 8, height: 8, fill: ink("hatch-back") }),
      svgEl("path", { d: "M-2 10L10 -2M-2 2L2 -2M6 10L10 6", stroke: ink("hatch"), "stroke-width": 1.5 }));
    this.root.append(svgEl("defs", {}, pattern), svgEl("rect", { width, height, fill: ink("back") }));
  }

  add(tag, attributes, ...children) {
    this.root.append(svgEl(tag, attributes, ...children));
  }

  rect(x, y, width, height, fill, radius = 0) {
    this.add("rect", { x, y, width, height, fill, rx: radius || null });
  }

  frame(x, y, width, height, stroke, line = 1, radius = 0) {
    this.add("rect", { x, y, width, height, fill: "none", stroke, "stroke-width": line, rx: radius || null });
  }

  hatch(x, y, width, height) {
    this.rect(x, y, width, height, "url(#hatch)");
  }

  image(canvas, x, y, width, height) {
    const href = canvas.toDataURL();
    const style = { "image-rendering": "pixelated" };
    this.add("image", { x, y, width, height, href, preserveAspectRatio: "none", style });
  }

  text(text, x, y, { size = 13, weight = 400, align = "left", colour = ink("text"), turn = 0 } = {}) {
    const anchor = { left: "start", right: "end", center: "middle" }[align];
    this.add("text", {
      x,
      y,
      fill: colour,
      "font-size": size,
      "font-weight": weight === 400 ? null : weight,
      "text-anchor": anchor,
      "dominant-baseline": "central",
      transform: turn ? `rotate(${turn} ${x} ${y})` : null,
    }, text);
  }

  within(x, y, width, height, draw) {
    draw();
  }
}
