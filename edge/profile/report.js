// The page: one function for each figure, which stays hidden where the profile lacks what it shows.

const { profile, steps } = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);
const count = (value) => Math.round(value).toLocaleString("en-US");
const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
const INPUTS = { prompt: "prompt tokens", source: "source tokens", audio: "rows of sound" };
const KINDS = { "matrix product": "--product", attention: "--attend", normalisation: "--norm", "value by value": "--other", "moving data": "--move" };
const colour = (kind) => `var(${KINDS[kind] ?? "--move"})`;
const shade = (share) => `color-mix(in oklab, var(--from), var(--to) ${Math.round(share * 100)}%)`;

function figure(id, label, say, draw, rows) {
  const node = document.getElementById(id);
  node.hidden = false;
  if (say) node.querySelector(".say").replaceChildren(...[say].flat());
  if (rows) node.querySelector(".table").replaceChildren(table(...rows));
  return drawn(node.querySelector(".chart"), label, draw);
}

function header() {
  const { bundle, device } = profile;
  $("#name").textContent = bundle.name;
  $("#created").textContent = profile.created.slice(0, 16).replace("T", " ");
  const facts = [
    `${bundle.family} ${bundle.kind}`, bundle.weights, `${number(bundle.parameters / 1e6)} M parameters`, bytes(bundle.bytes).join(" "),
    `context ${count(bundle.context)}`,
  ];
  $("#bundle").textContent = facts.join(" · ");
  const machine = [
    device.name, device.cpu, `${device.threads} of ${plural(device.cores, "core")}`,
    ...(device.memory_bytes ? [bytes(device.memory_bytes).join(" ")] : []), device.os, `${device.runtime}, ${device.provider}`,
  ];
  $("#device").textContent = machine.join(" · ");
  $("#footer").textContent = `Measured in ${number(profile.seconds)} s by ${profile.producer}; bundle ${bundle.sha256.slice(0, 16)}. ` +
    "Times are medians unless they say otherwise. This page needs no network.";
}

function fact(name, [value, unit], more) {
  const big = tag("dd", { class: "big" }, value, tag("small", {}, unit));
  $("#facts").append(tag("div", {}, tag("dt", {}, name), big, tag("dd", { class: "more" }, more)));
}

function facts() {
  const closest = (rows, of, wanted) => rows.reduce((a, b) => (Math.abs(of(b) - wanted) < Math.abs(of(a) - wanted) ? b : a));
  const { ttft, decode, sustained, memory, load, noise } = profile;
  if (ttft.length) {
    const row = closest(ttft, (each) => each.input_tokens, 512);
    const what = row.audio_s ? `${number(row.audio_s)} s of sound` : `${count(row.input_tokens)} ${INPUTS[profile.bundle.input] ?? "tokens"}`;
    fact("First token", ms(row.time.p50_ms), `after ${what}`);
  }
  if (decode.length) {
    const row = closest(decode, (each) => each.context, 128);
    fact("Next tokens", [number(row.tokens_per_s), "tokens/s"], `${time(row.time.p50_ms)} each at context ${count(row.context)}`);
  }
  if (sustained) fact("Long answers", [number(sustained.tokens_per_s), "tokens/s"], drift(sustained));
  if (memory?.peak_private_bytes) {
    const rss = memory.peak_bytes ? `private; RSS ${bytes(memory.peak_bytes).join(" ")}` : "private, of a fresh process";
    fact("Peak memory", bytes(memory.peak_private_bytes), rss);
  }
  if (load) fact("Load", ms(load.warm.p50_ms), load.cold ? `${time(load.cold.p50_ms)} from a cold disk` : "files in the page cache");
  if (noise) {
    const others = noise.foreign_cpu === null ? `drift ${signed(noise.drift)}` : `others took ${percent(noise.foreign_cpu)} of the machine`;
    fact("Noise", [`±${number(noise.spread * 100, 2)}`, "%"], others);
  }
}

const signed = (share) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;
function drift(run) {
  const certain = run.slope_low * run.slope_high > 0;
  return certain ? `${signed(run.slope_per_minute)} a minute` : "no drift to be seen";
}

// Rows in the order of what they are measured over, which stands on a logarithmic axis.
const ordered = (rows, of) => rows.map((row) => ({ ...row, x: Math.max(1, of(row)) })).sort((a, b) => a.x - b.x);

// p50 with bands to p90 and p99 over a logarithmic axis.
function spread(svg, width, rows, unit, extra) {
  const p50s = rows.map((row) => row.time.p50_ms);
  const [least, most] = [Math.min(...p50s), Math.max(...p50s)];
  const log = most / least > 12;
  const high = Math.min(Math.max(...rows.map((row) => row.time.p99_ms)), most * (log ? 4 : 2)) * 1.06;
  const xs = rows.map((row) => row.x);
  const low = log ? least * 0.8 : 0;
  const at = frame(
    svg, width, width < 480 ? 270 : 300,
    { scale: logarithmic, low: xs[0], high: xs[xs.length - 1], ticks: xs, format: count, unit },
    { scale: log ? logarithmic : linear, low, high, format: (value) => (value ? time(value) : "0"), unit: "" },
  );
  const line = (of) => rows.map((row) => [at.x(row.x), at.y(Math.max(low, Math.min(of(row), high)))]);
  svg.append(
    shape("path", { class: "band far", d: area(line((row) => row.time.p99_ms), line((row) => row.time.p90_ms)) }),
    shape("path", { class: "band", d: area(line((row) => row.time.p90_ms), line((row) => row.time.min_ms)) }),
  );
  extra?.(at, line);
  const p50 = line((row) => row.time.p50_ms);
  svg.append(shape("path", { class: "line", d: path(p50) }), ...p50.map(([cx, cy]) => shape("circle", { class: "dot", cx, cy, r: 4 })));
  return at;
}

const stats = (row) => [time(row.p50_ms), time(row.p90_ms), time(row.p99_ms)];
const tips = (row) => [["p50", time(row.p50_ms)], ["p90", time(row.p90_ms)], ["p99", time(row.p99_ms)], ["measured", `${count(row.count)} times`]];

function ttft() {
  const rows = ordered(profile.ttft, (row) => row.input_tokens);
  if (!rows.length) return;
  const unit = INPUTS[profile.bundle.input] ?? "input tokens";
  const encoded = rows.every((row) => row.encode);
  const figures = [
    [[unit], ["p50"], ["p90"], ["p99", "prefill"], ...(encoded ? [["encoder"]] : []), ["tokens/s", encoded ? "prefill" : ""]],
    rows.map((row) => [count(row.x), ...stats(row.time), ...(encoded ? [time(row.encode.p50_ms)] : []), count((1000 * row.x) / row.time.p50_ms)]),
  ];
  if (rows.length === 1) return share(rows[0], encoded, figures);
  const last = rows[rows.length - 1];
  const say = [`${count(last.x)} ${unit} take `, tag("b", {}, time(last.time.p50_ms)), `, ${count((1000 * last.x) / last.time.p50_ms)} a second. `,
    encoded ? "Dashed: the encoder’s share." : "Band: the fastest to p90, and p99 above."];
  figure("ttft", "Time to first token over the length of the input", say, (svg, width) => {
    const at = spread(svg, width, rows, unit, (_, line) => {
      if (encoded) svg.append(shape("path", { class: "mark", d: path(line((row) => row.encode.p50_ms)) }));
    });
    nearest(svg, at, rows.map((row) => row.x), (i) => [
      `${count(rows[i].x)} ${unit}`,
      [...tips(rows[i].time), ...(encoded ? [["encoder", time(rows[i].encode.p50_ms)]] : []), ["a second", count((1000 * rows[i].x) / rows[i].time.p50_ms)]],
    ]);
    return at.height;
  }, figures);
}

// One input only, as a window of sound is: a bar of what takes how long.
function share(row, encoded, figures) {
  const what = row.audio_s ? `${number(row.audio_s)} s of sound` : plural(row.x, "token");
  const pieces = encoded
    ? [["encoder", row.encode.p50_ms, "var(--accent)"], ["decoder’s start", Math.max(0, row.time.p50_ms - row.encode.p50_ms), "var(--warm)"]]
    : [["all", row.time.p50_ms, "var(--accent)"]];
  $("#ttft details").open = true;
  const faster = row.audio_s ? `, ${number((1000 * row.audio_s) / row.time.p50_ms)} times as fast as it is spoken` : "";
  figure("ttft", "Time to first token", [`${what} take `, tag("b", {}, time(row.time.p50_ms)), `${faster}.`], (svg, width) => {
    const x = linear(0, row.time.p50_ms, 0, width);
    let before = 0;
    for (const [i, [name, value, fill]] of pieces.entries()) {
      const block = shape("rect", { class: "block", x: x(before), y: 8, width: Math.max(1, x(value) - x(0)), height: 54, rx: 4, fill });
      svg.append(tipped(block, name, [["p50", time(value)], ["share", percent(value / row.time.p50_ms)]]));
      svg.append(shape("text", { x: i ? width : 0, y: 84, "text-anchor": i ? "end" : "start" }, `${name} ${time(value)}`));
      before += value;
    }
    return 96;
  }, figures);
}

function decode() {
  const rows = ordered(profile.decode, (row) => row.context);
  if (!rows.length) return;
  const unit = "tokens in the KV cache";
  const say = [tag("b", {}, `${number(rows[0].tokens_per_s)} tokens/s`), ` at context ${count(rows[0].x)}`];
  if (rows.length > 1) {
    const last = rows[rows.length - 1];
    say.push(", ", tag("b", {}, number(last.tokens_per_s)), ` at ${count(last.x)}`);
  }
  say.push(". Band: the fastest to p90, and p99 above.");
  figure("decode", "Time per token over the context", say, (svg, width) => {
    const at = spread(svg, width, rows, unit);
    nearest(svg, at, rows.map((row) => row.x), (i) => [
      `At context ${count(rows[i].x)}`,
      [...tips(rows[i].time), ["jitter", time(rows[i].time.jitter_ms)], ["tokens/s", number(rows[i].tokens_per_s)]],
    ]);
    return at.height;
  }, [
    [["context"], ["p50"], ["p90"], ["p99"], ["jitter", "prefill"], ["tokens/s"]],
    rows.map((row) => [count(row.x), ...stats(row.time), time(row.time.jitter_ms), number(row.tokens_per_s)]),
  ]);
}

function curve() {
  const points = profile.curve;
  if (!points.length) return;
  const numbers = (of) => [...new Set(points.map(of))].sort((a, b) => a - b);
  const [sizes, contexts] = [numbers((point) => point.size), numbers((point) => point.context)];
  const cost = new Map(points.map((point) => [`${point.size} ${point.context}`, point]));
  const at = (size, context) => cost.get(`${size} ${context}`);
  const tint = (context) => shade(contexts.length > 1 ? contexts.indexOf(context) / (contexts.length - 1) : 1);
  const all = points.map((point) => point.ms);
  const say = "A step of several tokens at once, as a prompt’s chunk or a draft takes it, with logits of all of them. A line for each context.";
  figure("curve", "Milliseconds of a step over its tokens", say, (svg, width) => {
    const labels = contexts.map(count);
    const room = Math.max(...labels.map((text) => text.length)) * 7.2 + 22;
    const box = frame(
      svg, width, width < 480 ? 290 : 330,
      { scale: logarithmic, low: sizes[0], high: sizes[sizes.length - 1], ticks: sizes, format: count, unit: "tokens in the step" },
      { scale: logarithmic, low: Math.min(...all) * 0.85, high: Math.max(...all) * 1.1, format: time, unit: "" },
      room,
    );
    svg.append(shape("text", { class: "unit", x: width, y: 10, "text-anchor": "end" }, "context"));
    const ends = [];
    for (const context of contexts) {
      const line = sizes.filter((size) => at(size, context)).map((size) => [box.x(size), box.y(at(size, context).ms)]);
      svg.append(shape("path", { class: "line", d: path(line), style: `stroke:${tint(context)}` }));
      svg.append(...line.map(([cx, cy]) => shape("circle", { class: "dot", cx, cy, r: 3, style: `fill:${tint(context)}` })));
      ends.push(line[line.length - 1]);
    }
    const places = apart(ends.map(([, y]) => y), 15, box.top, box.bottom);
    ends.forEach(([x], i) => svg.append(shape("text", { x: Math.max(x + 9, box.right + 9), y: places[i] + 4, style: `fill:${tint(contexts[i])};font-weight:600` }, labels[i])));
    nearest(svg, box, sizes, (i) => [
      `A step of ${plural(sizes[i], "token")}`,
      [...contexts].reverse().filter((context) => at(sizes[i], context)).map((context) => {
        const { ms: value, low_ms: low, high_ms: high } = at(sizes[i], context);
        return [`context ${count(context)}`, `${time(value)} ±${percent((high - low) / 2 / value, 1)}`, tint(context)];
      }),
    ]);
    return box.height;
  }, [
    [["tokens"], ...contexts.map((context) => [count(context)])],
    sizes.map((size) => [count(size), ...contexts.map((context) => (at(size, context) ? time(at(size, context).ms) : ""))]),
  ]);
  relative(sizes, contexts, at);
}

// A grid of what a step costs in steps of one token; the shade is what each token of it costs.
function relative(sizes, contexts, at) {
  const rows = sizes.filter((size) => size > 1 && contexts.some((context) => at(size, context) && at(1, context)));
  if (!rows.length) return;
  const say = "What a step costs, in steps of one token at the same context. The stronger the colour, the cheaper is each of its tokens: there a draft pays soonest.";
  figure("relative", "The cost of a step in steps of one token", say, (svg, width) => {
    const [left, top, height] = [64, 34, Math.max(24, Math.min(34, Math.round(270 / rows.length)))];
    const cell = (width - left) / contexts.length;
    svg.append(shape("text", { class: "unit", x: 0, y: 26 }, "tokens"), shape("text", { class: "unit", x: width, y: 10, "text-anchor": "end" }, "tokens in the KV cache"));
    contexts.forEach((context, j) => svg.append(shape("text", { x: left + (j + 0.5) * cell, y: 26, "text-anchor": "middle" }, count(context))));
    rows.forEach((size, i) => {
      svg.append(shape("text", { x: 0, y: top + (i + 0.5) * height + 4 }, count(size)));
      contexts.forEach((context, j) => {
        const [step, one] = [at(size, context), at(1, context)];
        if (!step || !one) return;
        const times = step.ms / one.ms;
        const saved = Math.min(1, Math.max(0, 1 - times / size));
        const block = shape("rect", {
          class: "block", x: left + j * cell + 1, y: top + i * height + 1, width: cell - 2, height: height - 2, rx: 4,
          fill: "var(--accent)", "fill-opacity": (0.06 + 0.86 * saved).toFixed(3),
        });
        svg.append(tipped(block, `${count(size)} tokens at context ${count(context)}`, [
          ["step", time(step.ms)], ["one token", time(one.ms)], ["each of the step", time(step.ms / size)],
        ]));
        const text = shape("text", { x: left + (j + 0.5) * cell, y: top + (i + 0.5) * height + 4, "text-anchor": "middle", "pointer-events": "none" }, `${number(times)}×`);
        text.setAttribute("class", saved > 0.66 ? "inside" : "strong");
        svg.append(text);
      });
    });
    return top + rows.length * height + 4;
  });
}

function memory() {
  const found = profile.memory;
  if (!found?.samples.length) return;
  const { samples } = found;
  const kinds = [...new Set(samples.flatMap((sample) => Object.keys(sample.kinds)))];
  const fills = ["--a", "--b", "--c", "--d", "--e", "--f"];
  const fill = (i) => `var(${fills[i % fills.length]})`;
  const names = { floor: "interpreter and libraries", files: "pages of files, which the system can take back", weights: "weights, mapped", session: "packed weights and activations", kv: "KV cache", cross: "encoder’s output" };
  const name = (kind) => names[kind] ?? kind;
  const total = (sample) => Object.values(sample.kinds).reduce((sum, value) => sum + value, 0);
  const say = [`A fresh process that loads the bundle and answers once, to ${count(found.prompt_tokens)} ${INPUTS[profile.bundle.input] ?? "tokens"}.`];
  const peak = found.peak_private_bytes;
  if (peak) say.push(" Private memory peaks at ", tag("b", {}, bytes(peak).join(" ")));
  if (peak && found.predicted_bytes) say.push(`, predicted ${bytes(found.predicted_bytes).join(" ")} (${signed(found.predicted_bytes / peak - 1)})`);
  if (peak) say.push(".");
  const high = Math.max(peak ?? 0, found.predicted_bytes ?? 0, ...samples.map(total)) * 1.08;
  const predicted = Object.entries(found.predicted ?? {});
  figure("memory", "Resident memory by kind over time", say, (svg, width) => {
    const end = samples[samples.length - 1].second;
    const at = frame(
      svg, width, 310, { scale: linear, low: 0, high: end, format: number, unit: "seconds" },
      { scale: linear, low: 0, high: high / 1e6, format: count, unit: "MB" },
    );
    const y = (value) => at.y(value / 1e6);
    let below = samples.map(() => 0);
    kinds.forEach((kind, i) => {
      const above = samples.map((sample, j) => below[j] + (sample.kinds[kind] ?? 0));
      const line = (values) => values.map((value, j) => [at.x(samples[j].second), y(value)]);
      svg.append(shape("path", { d: area(line(above), line(below)), fill: fill(i), "fill-opacity": 0.88, stroke: "var(--panel)", "stroke-width": 0.7 }));
      below = above;
    });
    let free = -Infinity;
    samples.forEach((sample, j) => {
      if (j && samples[j - 1].phase === sample.phase) return;
      const x = at.x(j ? samples[j - 1].second : 0);
      svg.append(shape("line", { class: "cursor", x1: x, x2: x, y1: at.top - 8, y2: at.bottom }));
      if (x < free) return;
      svg.append(shape("text", { class: "unit halo", x: x + 4, y: at.top - 2 }, sample.phase));
      free = x + sample.phase.length * 7 + 12;
    });
    const marks = [["predicted", found.predicted_bytes], ["private peak", peak]].filter(([, value]) => value).sort((a, b) => b[1] - a[1]);
    for (const [, value] of marks) svg.append(shape("line", { class: "mark", x1: at.left, x2: at.right, y1: y(value), y2: y(value) }));
    const said = marks.map(([text, value]) => `${text} ${bytes(value).join(" ")}`);
    const close = marks.length > 1 && y(marks[1][1]) - y(marks[0][1]) < 20;  // one label then says both
    (close ? [said.join(", ")] : said).forEach((text, i) =>
      svg.append(shape("text", { class: "marked halo", x: at.right, y: y(marks[i][1]) - 5, "text-anchor": "end" }, text)));
    nearest(svg, at, samples.map((sample) => sample.second), (i) => [
      `${samples[i].phase}, ${number(samples[i].second)} s`,
      [...kinds.map((kind, j) => [name(kind), bytes(samples[i].kinds[kind] ?? 0).join(" "), fill(j)]).reverse(), ["all", bytes(total(samples[i])).join(" ")]],
    ]);
    return at.height;
  }, [
    [["at the peak", "text"], ["predicted"]],
    [...predicted.map(([kind, value]) => [name(kind), bytes(value).join(" ")]), ["all", found.predicted_bytes ? bytes(found.predicted_bytes).join(" ") : "not predicted"]],
  ]);
  $("#memory .legend").replaceChildren(...kinds.map((kind, i) => tag("li", {}, tag("i", { style: `background:${fill(i)}` }), name(kind))));
  if (!predicted.length) $("#memory details").remove();
}

function sustained() {
  const run = profile.sustained;
  if (!run?.rates.length) return;
  const { rates } = run;
  const end = rates[rates.length - 1].second;
  const say = ["One answer after another, each as long as the last: ", tag("b", {}, `${number(run.tokens_per_s)} tokens/s`), `, ${drift(run)}. What changes is the machine, such as its heat.`];
  figure("sustained", "Tokens per second over time", say, (svg, width) => {
    const high = Math.max(...rates.map((rate) => rate.tokens_per_s)) * 1.12;
    const at = frame(
      svg, width, 310, { scale: linear, low: 0, high: end, format: number, unit: "seconds" },
      { scale: linear, low: 0, high, format: number, unit: "tokens/s" },
    );
    const line = rates.map((rate) => [at.x(rate.second), at.y(rate.tokens_per_s)]);
    const [middle, change] = [end / 2, (run.slope_per_minute / 60) * run.tokens_per_s];
    const fit = [0, end].map((second) => [at.x(second), at.y(run.tokens_per_s + change * (second - middle))]);
    svg.append(
      shape("path", { class: "band far", d: area(line, [[line[0][0], at.bottom], [line[line.length - 1][0], at.bottom]]) }),
      shape("path", { class: "mark", d: path(fit) }), shape("path", { class: "line", d: path(line) }),
    );
    nearest(svg, at, rates.map((rate) => rate.second), (i) => [
      `${number(rates[i].second)} s`, [["tokens/s", number(rates[i].tokens_per_s)], ["context", count(rates[i].context)]],
    ]);
    return at.height;
  });
}

function usage() {
  const rows = profile.usage.filter((use) => use.tokens);
  if (!rows.length) return;
  $("#usage").hidden = false;
  const energy = rows.some((use) => use.energy_j !== null);
  $("#usage .table").replaceChildren(table(
    [["phase", "text"], ["tokens"], ["CPU a token"], ["cores busy"], ...(energy ? [["energy a token"]] : [])],
    rows.map((use) => [
      use.phase, count(use.tokens), time((1000 * use.cpu_s) / use.tokens), number(use.wall_s ? use.cpu_s / use.wall_s : 0, 2),
      ...(energy ? [use.energy_j === null ? "" : `${number((1000 * use.energy_j) / use.tokens)} mJ`] : []),
    ]),
  ));
  const sources = [...new Set(rows.map((use) => use.energy_of).filter(Boolean))];
  if (sources.length) $("#usage").append(tag("p", { class: "say" }, `Energy of: ${sources.join(", ")}.`));
}

function skipped() {
  const rows = profile.skipped;
  if (!rows.length) return;
  $("#skipped").hidden = false;
  $("#skipped .say").textContent = `By policies of edge run --skip, in turns with the whole decoder (off). Same: tokens of the bundle’s own ` +
    "answers that stay the likeliest. Perplexity: of such text, times the whole decoder’s.";
  $("#skipped .table").replaceChildren(table(
    [["policy", "text"], ["layers"], ["ms a token"], ["tokens/s"], ["speed"], ["same"], ["perplexity"], ["edge run", "text"]],
    rows.map((row) => [
      row.skip, row.layers.toFixed(1), number(row.ms), number(row.tokens_per_s), row.speed.toFixed(2),
      ...(row.skip === "off" ? ["", "", ""] : [percent(row.same / row.tokens), number(row.times_perplexity), row.ruins ? "refuses" : "answers"]),
    ]),
  ));
}

function notes() {
  if (!profile.notes.length) return;
  $("#notes").hidden = false;
  $("#notes ul").replaceChildren(...profile.notes.map((note) => tag("li", {}, note)));
}

for (const draw of [header, facts, ttft, decode, curve, memory, sustained, usage, skipped, notes, operators]) draw();
for (const pair of document.querySelectorAll(".pair")) {
  const shown = [...pair.children].filter((child) => !child.hidden);
  if (shown.length === 1) shown[0].classList.add("alone");
  if (!shown.length) pair.hidden = true;
}
