// From numbers to colours, shared by the page and the viewer. PALETTE comes from palette.py.

const FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** The colour scale from dark to bright, as 256 times [red, green, blue]. */
const SHADES = Array.from({ length: 256 }, (_, i) => {
  const points = PALETTE.scale, position = (i / 255) * (points.length - 1);
  const low = Math.min(Math.floor(position), points.length - 2), next = points[low + 1];
  return points[low].map((channel, c) => Math.round(channel + (next[c] - channel) * (position - low)));
});

/** The same colours as pixels of an ImageData. */
const PIXELS = new Uint32Array(Uint8Array.from(SHADES.flatMap((shade) => [...shade, 255])).buffer);

/** A function from a weight to a share between 0 and 1; `top` gets the brightest colour. */
function scaleTo(top, kind) {
  if (!(top > 0)) return () => 0;
  if (kind === "log") return (weight) => (weight > 0 ? clamp(1 + Math.log10(weight / top) / PALETTE.decades, 0, 1) : 0);
  return (weight) => clamp(weight / top, 0, 1);
}

/** The weight at the dark end of the scale. */
const lowest = (top, kind) => (kind === "log" ? top / 10 ** PALETTE.decades : 0);

const shadeOf = (share) => SHADES[Math.round(clamp(share || 0, 0, 1) * 255)];
const css = ([red, green, blue]) => `rgb(${red}, ${green}, ${blue})`;

/** Black or white, whichever is easier to read on a shade. */
function textOn(shade) {
  const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = shade.map((channel) => linear(channel / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

function largest(weights) {
  let top = 0;
  for (const weight of weights) if (weight > top) top = weight;
  return top;
}

/** Draw one pixel per cell on a canvas. Hidden cells (NaN) stay transparent. */
function pixels(weights, width, height, scale, canvas = el("canvas")) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  const dots = new Uint32Array(image.data.buffer);
  for (let i = 0; i < weights.length; i++) {
    if (!Number.isNaN(weights[i])) dots[i] = PIXELS[Math.round(255 * scale(weights[i]))];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The colour scale as a canvas. */
function scaleBar(canvas = el("canvas")) {
  return pixels(Float32Array.from({ length: 128 }, (_, i) => i / 127), 128, 1, (share) => share, canvas);
}

/** A colour of the current theme. */
function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The pattern that marks hidden cells. */
function hatching(context) {
  const tile = el("canvas", { width: 8, height: 8 }), c = tile.getContext("2d");
  c.fillStyle = ink("hatch-back");
  c.fillRect(0, 0, 8, 8);
  c.strokeStyle = ink("hatch");
  c.lineWidth = 1.5;
  for (const shift of [-8, 0, 8]) {
    c.beginPath();
    c.moveTo(shift, 8);
    c.lineTo(shift + 8, 0);
    c.stroke();
  }
  return context.createPattern(tile, "repeat");
}

/** A label, shortened to fit into `room` pixels. */
const fitted = (() => {
  const context = el("canvas").getContext("2d");
  return (text, room, size, weight = 400) => {
    context.font = `${weight} ${size}px ${FONT}`;
    let most = 16, label = shorten(text, most);
    while (most > 1 && context.measureText(label).width > room) label = shorten(text, (most -= 1));
    return label;
  };
})();
