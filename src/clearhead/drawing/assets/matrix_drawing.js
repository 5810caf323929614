// The drawing of a matrix with its labels and sums, for any pen.

/**
 * The weight that gets the brightest colour. With many rows, a quarter of them exceed it: see
 * MANY_ROWS in palette.py, and _top in figures.py.
 */
function brightest(weights, width) {
  const bests = [];
  for (let start = 0; start < weights.length; start += width) {
    let seen = 0, best = 0;
    for (let i = start; i < start + width; i++) {
      if (Number.isNaN(weights[i])) continue;
      seen += 1;
      best = Math.max(best, weights[i]);
    }
    if (seen > 1) bests.push(best);
  }
  bests.sort((a, b) => a - b);
  const index = bests.length > PALETTE.manyRows ? Math.floor(0.75 * bests.length) : bests.length - 1;
  return bests[index] || largest(weights);
}

/** How many tokens each row attends to (the exponential of its entropy), and what each column receives. */
function sums(weights, rows, columns) {
  const spread = new Float32Array(rows), received = new Float32Array(columns);
  for (let query = 0, i = 0; query < rows; query++) {
    let entropy = 0, seen = false;
    for (let key = 0; key < columns; key++, i++) {
      if (!(weights[i] > 0)) continue;
      seen = true;
      entropy -= weights[i] * Math.log(weights[i]);
      received[key] += weights[i];
    }
    spread[query] = seen ? Math.exp(entropy) : 0;
  }
  return { spread, received };
}

/**
 * Draw a matrix. `shown` has the weights and their sums, their picture with one pixel per cell, the
 * colour scale and the sizes; `view` is the visible part of the whole.
 */
function paintMatrix(pen, shown, view) {
  const { left, top, right, bottom, cell, rows, columns } = shown.box;
  const wide = view.width - left - right, high = view.height - top - bottom;
  const area = {
    wide,
    high,
    full: { wide: Math.min(wide, columns * cell), high: Math.min(high, rows * cell) },
    x: (key) => left + key * cell - view.x,
    y: (query) => top + query * cell - view.y,
    row: Math.floor(view.y / cell),
    column: Math.floor(view.x / cell),
    lastRow: Math.min(rows, Math.ceil((view.y + high) / cell)),
    lastColumn: Math.min(columns, Math.ceil((view.x + wide) / cell)),
  };
  pen.within(left, top, wide, high, () => paintCells(pen, shown, area));
  paintLabels(pen, shown.box, area);
  paintSums(pen, shown, area, view);
}

function paintCells(pen, { weights, picture, map, box }, area) {
  const { left, top, cell, rows, columns, fontSize } = box;
  const numbers = cell >= 40, gaps = cell >= 10;
  const vector = pen instanceof SvgPen && rows * columns <= 4096;
  pen.hatch(left, top, area.full.wide, area.full.high);
  if (!vector) pen.image(picture, area.x(0), area.y(0), columns * cell, rows * cell, cell < 1);
  if (vector || numbers) {
    for (let query = area.row; query < area.lastRow; query++) {
      for (let key = area.column; key < area.lastColumn; key++) {
        const weight = weights[query * columns + key];
        if (Number.isNaN(weight)) continue;
        const shade = shadeOf(map(weight)), x = area.x(key), y = area.y(query);
        if (vector) pen.rect(x, y, cell, cell, css(shade));
        const size = Math.min(1.15 * fontSize, cell / 3.2);
        const style = { size, align: "center", colour: textOn(shade) };
        if (numbers) pen.text(fixed(weight), x + cell / 2, y + cell / 2, style);
      }
    }
  }
  if (!gaps) return;
  const back = ink("back");
  for (let query = area.row; query <= area.lastRow; query++) {
    pen.rect(left, area.y(query) - 0.5, area.full.wide, 1, back);
  }
  for (let key = area.column; key <= area.lastColumn; key++) {
    pen.rect(area.x(key) - 0.5, top, 1, area.full.high, back);
  }
}

/** The tokens if there is room for them, else the numbers of some tokens. */
function paintLabels(pen, { left, top, cell, upright, fontSize }, area) {
  const from = layer();
  const steps = [2, 4, 8, 16, 32, 64, 128, 256, 512];
  const every = cell >= 12 ? 1 : steps.find((step) => step * cell >= 28) || 1024;
  const name = (labels, i, room) => (every === 1 ? fitted(labels[i], room, fontSize) : String(i));
  const style = { size: every === 1 ? Math.min(fontSize, cell) : 0.85 * fontSize, colour: ink("quiet") };
  pen.within(0, top - 6, left, area.high + 12, () => {
    for (let query = area.row; query < area.lastRow; query++) {
      if (query % every) continue;
      pen.text(name(from.rows, query, left - 14), left - 10, area.y(query) + cell / 2, { ...style, align: "right" });
    }
  });
  pen.within(left - 6, 0, area.wide + 12, top, () => {
    for (let key = area.column; key < area.lastColumn; key++) {
      if (key % every) continue;
      const x = area.x(key) + cell / 2;
      if (upright) pen.text(name(from.columns, key, 12 * fontSize), x, top / 2, { ...style, align: "center" });
      else pen.text(name(from.columns, key, top - 14), x, top - 10, { ...style, turn: -90 });
    }
  });
}

function paintSums(pen, { spread, received, box }, area, view) {
  const { left, top, right, bottom, cell, rows, columns, fontSize } = box;
  const widest = largest(spread) || 1, most = largest(received) || 1;
  const thick = Math.max(cell - (cell >= 10 ? 3 : 0), 1), gap = (cell - thick) / 2;
  const style = { size: 0.85 * fontSize, colour: ink("quiet") };
  const x = Math.min(view.width - right, area.x(columns)), y = Math.min(view.height - bottom, area.y(rows));
  pen.within(x, top, right, area.high, () => {
    for (let query = area.row; query < area.lastRow; query++) {
      const long = (spread[query] / widest) * 1.7 * fontSize;
      pen.rect(x + 6, area.y(query) + gap, long, thick, ink("bar"));
      if (cell >= 14) pen.text(fixed(spread[query], 1), x + 10 + long, area.y(query) + cell / 2, style);
    }
  });
  pen.within(left, y, area.wide, bottom, () => {
    for (let key = area.column; key < area.lastColumn; key++) {
      const long = (received[key] / most) * 2 * fontSize, middle = area.x(key) + cell / 2;
      pen.rect(area.x(key) + gap, y + 6, thick, long, ink("bar"));
      if (cell < 28) continue;
      pen.text(fixed(received[key]), middle, y + 6 + 0.6 * fontSize + long, { ...style, align: "center" });
    }
  });
}
