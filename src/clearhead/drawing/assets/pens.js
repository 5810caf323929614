// Two pens with the same methods: one draws on a canvas, the other makes an SVG.

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
    this.pattern ??= hatching(this.context);
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
