// Where the time goes: a treemap of parts, the nodes of every layer, the roofline and the table, all of one step.

const RATES = { float32: "32-bit floats", int8: "8-bit integers", int4: "4-bit weights" };
const REASONS = {
  memory: "bound by memory", caches: "bound by the caches", arithmetic: "bound by arithmetic", neither: "bound by neither memory nor arithmetic",
};

const partName = (part) => part.path || part.op_type;
const stepName = (step) => (step.context === null
  ? [step.graph, step.size > 1 ? `${count(step.size)} rows` : ""]
  : [step.size === 1 ? "1 token" : `${count(step.size)} tokens`, `context ${count(step.context)}`]);

function partTip(part, step) {
  const rows = [["operator", part.op_type], ["time", time(part.us / 1000)], ["share", percent(part.us / step.us)], ["nodes", count(part.nodes)]];
  if (part.bytes) rows.push(["moved", `${number(part.bytes / part.us / 1000)} GB/s`]);
  if (part.flops) rows.push(["operations", `${number(part.flops / part.us / 1000)} GFLOP/s`]);
  if (part.limit) rows.push(["bound by", `${part.limit.name}, ${percent(part.limit.reached)}`]);
  return [partName(part), rows];
}

function operators() {
  if (!steps.length) return;
  $("#ops").hidden = false;
  let step = steps.find((each) => each.graph === "decoder" && each.size === 1) ?? steps[0];
  const redraws = [
    figure("treemap", "Time by part of the model", null, (svg, width) => treemap(svg, width, step)),
    figure("layers", "Time by layer", null, (svg, width) => layerRows(svg, width, step)),
    profile.peaks && figure("roofline", "Operations per second over operations per byte", roofText(profile.peaks), (svg, width) => roofline(svg, width, step)),
  ].filter(Boolean);
  if (!profile.peaks) $("#roofline").hidden = true;
  const show = (chosen) => {
    step = chosen;
    [...$("#steps").children].forEach((button, i) => button.setAttribute("aria-pressed", steps[i] === step));
    redraws.forEach((redraw) => redraw());
    const of = (kind) => step.parts.reduce((sum, part) => sum + (part.kind === kind ? part.us : 0), 0) / step.us;
    $("#kinds").replaceChildren(...Object.keys(KINDS).filter(of).map((kind) =>
      tag("li", {}, tag("i", { style: `background:${colour(kind)}` }), kind, tag("b", {}, percent(of(kind))))));
    partRows(step);
  };
  $("#steps").replaceChildren(...steps.map((each) => {
    const [name, more] = stepName(each);
    const button = tag("button", { type: "button" }, name, tag("small", {}, [more, time(each.us / 1000)].filter(Boolean).join(" · ")));
    button.addEventListener("click", () => show(each));
    return button;
  }));
  show(step);
}

// Two levels: what a part's name begins with, and the parts.
function treemap(svg, width, step) {
  const height = width < 560 ? 420 : 340;
  const groups = new Map();
  for (const part of step.parts) {
    const name = part.path.split("/")[0] || "other";
    groups.set(name, [...(groups.get(name) ?? []), part]);
  }
  const sum = (parts) => parts.reduce((total, part) => total + part.us, 0);
  const order = [...groups].sort((a, b) => sum(b[1]) - sum(a[1]));
  const boxes = squarify(order.map(([, parts]) => sum(parts)), 0, 0, width, height);
  order.forEach(([name, parts], i) => {
    const box = boxes[i];
    const titled = parts.length > 1 && box.height > 46 && box.width > 70;
    const top = titled ? 19 : 0;
    if (titled) svg.append(shape("text", { class: "strong", x: box.x + 3, y: box.y + 14 }, fitted(`${name} ${percent(sum(parts) / step.us)}`, box.width - 6)));
    const inner = squarify(parts.map((part) => part.us), box.x, box.y + top, box.width - 3, Math.max(1, box.height - top - 3));
    parts.forEach((part, j) => leaf(svg, inner[j], part, step, name));
  });
  return height;
}

function leaf(svg, box, part, step, group) {
  const rect = shape("rect", { class: "block", x: box.x, y: box.y, width: box.width, height: box.height, rx: 3, fill: colour(part.kind) });
  svg.append(tipped(rect, ...partTip(part, step)));
  if (box.width < 44 || box.height < 19) return;
  const within = part.path.split("/").slice(1).join("/");
  const label = part.path === group ? (step.parts.some((other) => other !== part && other.path.split("/")[0] === group) ? part.op_type : group) : within || part.op_type;
  const room = box.width - 12;
  const [took, of] = [time(part.us / 1000), percent(part.us / step.us)];
  const lines = [["inside", fitted(label, room)]];
  if (box.height > 36) lines.push(["inside light", [`${took} · ${of}`, took, of].find((text) => fits(text, room))]);
  if (box.height > 54 && label !== part.op_type && fits(part.op_type, room)) lines.push(["inside light", part.op_type]);
  lines.forEach(([kind, text], i) => svg.append(shape("text", { class: kind, x: box.x + 7, y: box.y + 16 + 16 * i }, text ?? "")));
}

const fits = (text, width) => text.length * 6.7 <= width;
function fitted(text, width) {
  const room = Math.floor(width / 6.7);
  if (text.length <= room) return text;
  return room < 4 ? "" : `${text.slice(0, room - 1)}…`;
}

function layerRows(svg, width, step) {
  const layers = Object.entries(step.layers).sort((a, b) => rank(a[0], step) - rank(b[0], step));
  const totals = layers.map(([, nodes]) => nodes.reduce((sum, [, us]) => sum + us, 0));
  const height = Math.max(13, Math.min(36, Math.round(430 / layers.length)));
  const longest = Math.max(...layers.map(([name]) => name.length));
  const left = Math.min(110, longest * 7 + 10);
  const x = linear(0, Math.max(...totals), left, width - 62);
  layers.forEach(([name, nodes], i) => {
    const y = i * height;
    svg.append(shape("text", { class: "small", x: left - 8, y: y + height / 2 + 4, "text-anchor": "end" }, fitted(name, left - 4)));
    let before = 0;
    for (const [place, us] of nodes) {
      const part = step.parts[place];
      const block = shape("rect", {
        class: "block", x: x(before), y: y + 1, width: Math.max(0.4, x(us) - left), height: height - 2, fill: colour(part.kind),
        style: x(us) - left < 3 ? "stroke:none" : "",
      });
      const where = /^\d+$/.test(name) ? `layer ${name}, ${partName(part)}` : `${name}, ${partName(part)}`;
      svg.append(tipped(block, where, [["operator", part.op_type], ["time", time(us / 1000)], ["of the layer", percent(us / totals[i])]]));
      before += us;
    }
    svg.append(shape("text", { class: "small", x: x(before) + 6, y: y + height / 2 + 4 }, time(totals[i] / 1000)));
  });
  return layers.length * height + 4;
}

// What is named as something that runs before the layers stands above them, the layers in their order, the rest below.
function rank(name, step) {
  const names = Object.keys(step.layers);
  if (/^\d+$/.test(name)) return 1000 + Number(name);
  const first = names.findIndex((each) => /^\d+$/.test(each));
  const place = step.order.indexOf(name);
  return first < 0 || place < step.order.findIndex((each) => /^\d+$/.test(each)) ? place : 1e6 + place;
}

function roofText(peaks) {
  const rates = Object.entries(peaks.gemm_gflop_per_s).map(([name, rate]) => `${number(rate)} GFLOP/s with ${RATES[name] ?? name}`);
  return `Memory gives ${number(peaks.memory_gb_per_s)} GB/s and matrix products reach ${rates.join(", ")}. ` +
    "The size of a circle is its time; moving data has no operations and is left out.";
}

function roofline(svg, width, step) {
  const { peaks } = profile;
  const shown = step.parts.filter((part) => part.flops && part.bytes);
  const intensity = (part) => part.flops / part.bytes;
  const rate = (part) => part.flops / part.us / 1000;
  const roofs = Object.entries(peaks.gemm_gflop_per_s);
  const radius = (part) => 3 + 24 * Math.sqrt(part.us / step.us);
  const height = width < 480 ? 350 : 420;
  const radii = shown.map(radius);
  const [least, most] = roomy(shown.map(intensity), radii, 0.04, 600, width - 80);
  const [low, top] = roomy(shown.map(rate), radii, 0.35, 1.9 * Math.max(...roofs.map(([, value]) => value)), height - 66);
  const at = frame(
    svg, width, height, { scale: logarithmic, low: least, high: most, format: number, unit: "operations per byte moved" },
    { scale: logarithmic, low, high: top, format: number, unit: "GFLOP/s" },
  );
  const highest = Math.max(...roofs.map(([, value]) => value));
  const slope = (gb, kind, name, below) => {
    const from = Math.max(least, low / gb);
    svg.append(shape("path", { class: kind, d: path([[at.x(from), at.y(from * gb)], [at.x(highest / gb), at.y(highest)]]) }));
    const middle = Math.exp(Math.log(from) + 0.34 * (Math.log(highest / gb) - Math.log(from)));
    const angle = (Math.atan2(at.y(highest) - at.y(from * gb), at.x(highest / gb) - at.x(from)) * 180) / Math.PI;
    const [px, py] = [at.x(middle), at.y(middle * gb)];
    const text = `${name} ${number(gb)} GB/s`;
    svg.append(shape("text", { class: "unit halo", x: px, y: py + (below ? 15 : -6), "text-anchor": "middle", transform: `rotate(${angle.toFixed(1)} ${px} ${py})` }, text));
    const [dx, dy] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
    for (let along = -text.length * 3.2; along <= text.length * 3.2; along += 8) {
      const [x, y] = [px + along * dx - (below ? 11 : -10) * dy, py + along * dy + (below ? 11 : -10) * dx];
      full.push([x - 7, y - 7, x + 7, y + 7]);
    }
  };
  for (const [, value] of roofs) {
    svg.append(shape("path", { class: value === highest ? "roof" : "roof thin", d: path([[at.x(value / peaks.memory_gb_per_s), at.y(value)], [at.right, at.y(value)]]) }));
  }
  const places = apart(roofs.map(([, value]) => at.y(value) - 5), 13, 8, at.bottom);
  const names = roofs.map(([name, value]) => `${RATES[name] ?? name} ${number(value)}`);
  names.forEach((name, i) => svg.append(shape("text", { class: "unit halo small", x: at.right, y: places[i], "text-anchor": "end" }, name)));
  const full = names.map((name, i) => [at.right - name.length * 6.2, places[i] - 10, at.right, places[i] + 3]);
  if (peaks.cache_gb_per_s) slope(peaks.cache_gb_per_s, "roof thin", "caches", false);
  slope(peaks.memory_gb_per_s, "roof", "memory", true);
  const taken = [];
  for (const part of [...shown].sort((a, b) => b.us - a.us)) {
    const [cx, cy, r] = [at.x(intensity(part)), at.y(rate(part)), radius(part)];
    svg.append(tipped(shape("circle", { class: "bubble", cx, cy, r, fill: colour(part.kind) }), ...partTip(part, step)));
    if (part.us / step.us > 0.04) taken.push([partName(part), cx, cy, r]);
    full.push([cx - r, cy - r, cx + r, cy + r]);
  }
  label(svg, taken, at, full);
  return at.height;
}

// Names next to circles, where they find room; `full` are boxes in which there is none.
function label(svg, circles, at, full) {
  const boxes = [...full];
  for (const [name, x, y, r] of circles) {
    const text = name.split("/").pop();
    const width = text.length * 6.6;
    const places = [[x + r + 5, y + 4, "start"], [x - r - 5, y + 4, "end"], [x, y + r + 14, "middle"], [x, y - r - 5, "middle"]];
    for (const [px, py, anchor] of places) {
      const left = anchor === "start" ? px : anchor === "end" ? px - width : px - width / 2;
      const box = [left, py - 11, left + width, py + 3];
      const covered = boxes.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
      if (covered || left < at.left || left + width > at.right + 10 || py > at.bottom || py < 22) continue;
      svg.append(shape("text", { class: "halo strong", x: px, y: py, "text-anchor": anchor, "pointer-events": "none" }, text));
      boxes.push(box);
      break;
    }
  }
}

function partRows(step) {
  const parts = step.parts.slice(0, 14);
  const rest = step.parts.slice(parts.length);
  const widest = parts[0]?.us ?? 1;
  const columns = [["part", "text name"], ["nodes", "prefill"], ["time"], ["share", ""], ["GB/s", "prefill"], ["GFLOP/s", "prefill"], ["bound by", "text"]];
  const rows = parts.map((part) => [
    [tag("i", { style: `background:${colour(part.kind)}` }), partName(part), tag("small", {}, part.path ? part.op_type : "")],
    count(part.nodes), time(part.us / 1000),
    [percent(part.us / step.us), tag("span", { class: "track wide" }, tag("span", { class: "bar", style: `width:${Math.max(1, (84 * part.us) / widest)}px;background:${colour(part.kind)}` }))],
    part.bytes === null ? "" : number(part.bytes / part.us / 1000), part.flops ? number(part.flops / part.us / 1000) : "",
    part.limit ? [part.limit.name, tag("small", {}, ` ${percent(part.limit.reached)}`)] : "",
  ]);
  if (rest.length) {
    const us = rest.reduce((sum, part) => sum + part.us, 0);
    const nodes = rest.reduce((sum, part) => sum + part.nodes, 0);
    rows.push([`${plural(rest.length, "smaller part")}`, count(nodes), time(us / 1000), [percent(us / step.us), tag("span", { class: "track wide" })], "", "", ""]);
  }
  $("#parts > .table").replaceChildren(table(columns, rows));
  const by = new Map();
  for (const part of step.parts) if (part.limit) by.set(part.limit.name, (by.get(part.limit.name) ?? 0) + part.us);
  const sorted = [...by].sort((a, b) => b[1] - a[1]).map(([name, us]) => `${percent(us / step.us)} ${REASONS[name] ?? name}`);
  const say = sorted.length ? `Of the time, ${sorted.join(", ")}. The figure after “bound by” is how much of that this machine’s peak allows it reaches.` : "";
  $("#parts .say").textContent = say;
  $("#parts details .table").replaceChildren(operatorTable(step));
}

function operatorTable(step) {
  const types = new Map();
  for (const part of step.parts) {
    const sum = types.get(part.op_type) ?? { nodes: 0, us: 0, kind: part.kind };
    types.set(part.op_type, { ...sum, nodes: sum.nodes + part.nodes, us: sum.us + part.us });
  }
  return table(
    [["operator", "text name"], ["nodes"], ["time"], ["share"]],
    [...types].sort((a, b) => b[1].us - a[1].us).map(([name, { nodes, us, kind }]) => [
      [tag("i", { style: `background:${colour(kind)}` }), name], count(nodes), time(us / 1000), percent(us / step.us),
    ]),
  );
}
