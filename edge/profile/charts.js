"use strict";
// Drawing: scales, ticks, frames with axes, and the tip under the pointer. report.js says what is drawn.

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function tag(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Numbers as people read them.
function number(value, digits = 3) {
  const size = Math.abs(value);
  if (size >= 1000 || (Number.isInteger(value) && size >= 100)) return Math.round(value).toLocaleString("en-US");
  const decimals = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return Number(value.toFixed(Math.min(decimals, 6))).toString();
}
const ms = (value) => (value >= 1000 ? [number(value / 1000), "s"] : value < 0.1 ? [number(value * 1000), "µs"] : [number(value), "ms"]);
const time = (value) => ms(value).join(" ");
const bytes = (value) => (value >= 1e9 ? [number(value / 1e9), "GB"] : [number(value / 1e6), "MB"]);
const percent = (value, digits = 2) => `${number(value * 100, digits)} %`;

// Scales from a domain to pixels; `ticks` are the values that a person expects on them.
function linear(low, high, from, to) {
  const place = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  place.ticks = (count) => {
    const raw = (high - low) / Math.max(1, count) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  };
  return place;
}

function logarithmic(low, high, from, to) {
  const [a, b] = [Math.log(low), Math.log(high)];
  const place = (value) => from + ((Math.log(value) - a) / (b - a || 1)) * (to - from);
  place.ticks = (count) => {
    const decades = (b - a) / Math.LN10;
    const steps = decades > count ? [1] : decades * 3 > count * 1.4 ? [1, 10] : [1, 2, 5];
    const every = decades > count ? Math.ceil(decades / count) : 1;
    const found = [];
    for (let power = Math.floor(a / Math.LN10) - 1; power <= Math.ceil(b / Math.LN10); power++) {
      if (power % every) continue;
      for (const step of steps) {
        const value = step * 10 ** power;
        if (step < 10 && value >= low * 0.999 && value <= high * 1.001) found.push(Number(value.toPrecision(6)));
      }
    }
    return found.length > 1 ? found : linear(low, high, 0, 1).ticks(Math.min(count, 4));
  };
  return place;
}

// Draws again whenever the width changes. `draw(svg, width)` returns the height.
function drawn(host, label, draw) {
  let last = 0;
  const again = () => {
    const width = Math.floor(host.clientWidth);
    if (!width || width === last) return;
    last = width;
    const svg = shape("svg", { role: "img", "aria-label": label });
    const height = draw(svg, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    host.replaceChildren(svg);
  };
  const redraw = () => { last = 0; again(); };
  new ResizeObserver(again).observe(host);
  again();
  return redraw;
}

// What stands at an axis: its unit, and whether equal distances are equal ratios.
const named = ({ unit, scale }) => [unit, ...(scale === logarithmic ? ["logarithmic"] : [])].filter(Boolean).join(", ");

// A logarithmic domain in which circles with these radii have room around their values, on an axis of so many pixels.
function roomy(values, radii, low, high, pixels) {
  let [from, to] = [low, high];
  for (let i = 0; i < 8; i++) {
    const pixel = Math.log(to / from) / pixels;
    from = Math.min(low, ...values.map((value, j) => value * Math.exp(-pixel * (radii[j] + 2))));
    to = Math.max(high, ...values.map((value, j) => value * Math.exp(pixel * (radii[j] + 2))));
  }
  return [from, to];
}

// A frame with both axes. `x` and `y`: {scale: linear|logarithmic, low, high, ticks?, format, unit}.
function frame(svg, width, height, x, y, right = 14) {
  const yScale = y.scale(y.low, y.high, height - 40, 26);
  const yTicks = y.ticks ?? yScale.ticks(5);
  const left = Math.max(...yTicks.map((value) => y.format(value).length)) * 7.2 + 12;
  const xScale = x.scale(x.low, x.high, left + 4, width - right);
  for (const value of yTicks) {
    const at = yScale(value);
    svg.append(
      shape("line", { class: "grid", x1: left, x2: width - right + 6, y1: at, y2: at }),
      shape("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, y.format(value)),
    );
  }
  svg.append(
    shape("line", { class: "axis", x1: left, x2: width - right + 6, y1: height - 40, y2: height - 40 }),
    shape("text", { class: "unit", x: 0, y: 10 }, named(y)),
    shape("text", { class: "unit", x: width - right + 6, y: height - 2, "text-anchor": "end" }, named(x)),
  );
  let free = -Infinity;
  const xTicks = x.ticks ?? xScale.ticks(Math.max(2, Math.floor((width - left) / 90)));
  for (const value of xTicks) {
    const at = xScale(value);
    const text = x.format(value);
    const half = text.length * 3.6 + 2;
    if (at - half < free) continue;
    free = at + half + 6;
    svg.append(
      shape("line", { class: "axis", x1: at, x2: at, y1: height - 40, y2: height - 36 }),
      shape("text", { x: at, y: height - 22, "text-anchor": "middle" }, text),
    );
  }
  return { x: xScale, y: yScale, left, right: width - right, top: 26, bottom: height - 40, height };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const area = (upper, lower) => `${path(upper)}${path([...lower].reverse()).replace("M", "L")}Z`;

// The tip: rows are [name, value, colour?].
const tip = document.getElementById("tip");
function showTip(event, title, rows) {
  tip.replaceChildren(tag("b", {}, title));
  for (const [name, value, colour] of rows) {
    const label = tag("span", {}, name);
    if (colour) label.prepend(tag("i", { style: `background:${colour}` }));
    tip.append(tag("div", {}, label, value));
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 14 + box.width > innerWidth - 8 ? event.clientX - 14 - box.width : event.clientX + 14;
  const y = Math.min(event.clientY + 14, innerHeight - box.height - 8);
  tip.style.transform = `translate(${Math.round(Math.min(Math.max(8, x), innerWidth - box.width - 8))}px,${Math.round(Math.max(8, y))}px)`;
}
function hideTip() { tip.hidden = true; }
addEventListener("scroll", hideTip, { passive: true });

function tipped(node, title, rows) {
  for (const kind of ["pointerenter", "pointermove", "pointerdown"]) node.addEventListener(kind, (event) => showTip(event, title, rows));
  node.addEventListener("pointerleave", hideTip);
  return node;
}

// Under the pointer, the nearest of the values `xs`: `tell(i)` gives [title, rows] of it.
function nearest(svg, at, xs, tell) {
  const cursor = shape("line", { class: "cursor", y1: at.top, y2: at.bottom, visibility: "hidden" });
  const sheet = shape("rect", {
    x: at.left - 6, y: at.top - 6, width: Math.max(0, at.right - at.left + 18), height: at.bottom - at.top + 12, fill: "transparent",
  });
  const places = xs.map((value) => at.x(value));
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const i = places.reduce((best, place, j) => (Math.abs(place - x) < Math.abs(places[best] - x) ? j : best), 0);
    cursor.setAttribute("x1", places[i]);
    cursor.setAttribute("x2", places[i]);
    cursor.setAttribute("visibility", "visible");
    showTip(event, ...tell(i));
  };
  for (const kind of ["pointerenter", "pointermove", "pointerdown"]) sheet.addEventListener(kind, move);
  sheet.addEventListener("pointerleave", () => { hideTip(); cursor.setAttribute("visibility", "hidden"); });
  svg.append(cursor, sheet);
}

// Labels at the ends of lines, pushed apart where they would cover each other.
function apart(places, gap, low, high) {
  const order = places.map((y, i) => [y, i]).sort((a, b) => a[0] - b[0]);
  for (let i = 1; i < order.length; i++) order[i][0] = Math.max(order[i][0], order[i - 1][0] + gap);
  let limit = high;
  for (let i = order.length - 1; i >= 0; i--) { order[i][0] = Math.min(order[i][0], limit); limit = order[i][0] - gap; }
  const found = [];
  for (const [y, i] of order) found[i] = Math.max(low, y);
  return found;
}

// Rectangles whose areas are in proportion to `values`, as square as can be: Bruls, Huizing, van Wijk, Squarified
// Treemaps (2000). The values stand in falling order and are positive.
function squarify(values, x, y, width, height) {
  const found = [];
  let total = values.reduce((sum, value) => sum + value, 0);
  let i = 0;
  while (i < values.length) {
    const short = Math.min(width, height);
    const scale = (width * height) / total;
    let row = [];
    let sum = 0;
    let worst = Infinity;
    while (i + row.length < values.length) {
      const next = values[i + row.length] * scale;
      const thick = (sum + next) / short;
      const ratio = Math.max(...[...row, next].map((each) => Math.max(thick ** 2 / each, each / thick ** 2)));
      if (ratio > worst) break;
      row.push(next);
      sum += next;
      worst = ratio;
    }
    const thick = sum / short;
    let along = 0;
    for (const each of row) {
      const length = each / thick;
      found.push(width >= height ? { x, y: y + along, width: thick, height: length } : { x: x + along, y, width: length, height: thick });
      along += length;
    }
    if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
    total -= sum / scale;
    i += row.length;
  }
  return found;
}

function table(columns, rows) {
  const head = tag("tr", {}, ...columns.map(([name, kind = ""]) => tag("th", { class: kind, scope: "col" }, name)));
  const body = rows.map((cells) =>
    tag("tr", {}, ...cells.map((cell, i) => tag("td", { class: columns[i][1] ?? "" }, ...[cell].flat()))));
  return tag("table", {}, tag("thead", {}, head), tag("tbody", {}, ...body));
}
