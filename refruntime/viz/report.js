"use strict";
// Draws the report's charts from the JSON that the page carries. Nothing is loaded; without this
// script the page still shows its figures and tables.

(function () {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const SVG = "http://www.w3.org/2000/svg";

  // ---------------------------------------------------------------------------------- numbers

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

  function bytes(value) {
    let unit = 0;
    while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
    const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    return value.toFixed(digits) + " " + UNITS[unit];
  }

  function seconds(value) {
    return value < 1 ? (value * 1000).toFixed(value < 0.01 ? 2 : 1) + " ms" : value.toFixed(2) + " s";
  }

  // Steps that read well: 1, 2, 5 times a power of ten, or a power of two for bytes.
  function niceStep(span, count, binary) {
    const raw = span / count;
    if (binary) return Math.pow(2, Math.round(Math.log2(Math.max(raw, 1))));
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.999);
  }

  function ticks(low, high, count, binary) {
    const step = niceStep(high - low || 1, count, binary);
    const list = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) list.push(t);
    return list;
  }

  // The decimals that tell neighbouring ticks apart.
  function decimals(list) {
    const step = list.length > 1 ? Math.abs(list[1] - list[0]) : Math.abs(list[0]) || 1;
    return Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
  }

  // ---------------------------------------------------------------------------------- drawing

  function node(tag, attributes, parent, text) {
    const element = document.createElementNS(SVG, tag);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  function html(tag, className, parent, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  // A chart's frame: scales, grid, axis labels. Returns what a plot needs to draw into it.
  function frame(host, options) {
    const old = host.querySelector("svg");
    if (old) old.remove();
    const width = Math.max(host.clientWidth, 260);
    const height = options.height;
    const inner = { left: options.left || 60, right: width - 14, top: 12, bottom: height - 26 };
    const svg = node("svg", { height: height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    host.prepend(svg);
    const [x0, x1] = options.x, [y0, y1] = options.y;
    const px = (v) => inner.left + ((v - x0) / (x1 - x0 || 1)) * (inner.right - inner.left);
    const py = (v) => inner.bottom - ((v - y0) / (y1 - y0 || 1)) * (inner.bottom - inner.top);
    const yTicks = ticks(y0, y1, 4, options.binary);
    const yText = options.yText || ((v) => v.toFixed(decimals(yTicks)));
    for (const t of yTicks) {
      node("line", { class: "grid", x1: inner.left, x2: inner.right, y1: py(t), y2: py(t) }, svg);
      node("text", { x: inner.left - 8, y: py(t) + 4, "text-anchor": "end" }, svg, yText(t));
    }
    const xTicks = ticks(x0, x1, Math.max(2, Math.round(width / 100)), false);
    const xText = options.xText || ((v) => v.toFixed(decimals(xTicks)));
    xTicks.forEach((t, i) => {
      const last = i === xTicks.length - 1;
      const name = xText(t) + (last && options.xUnit ? " " + options.xUnit : "");
      const anchor = px(t) > inner.right - 24 ? "end" : px(t) < inner.left + 8 ? "start" : "middle";
      node("text", { x: px(t), y: height - 8, "text-anchor": anchor }, svg, name);
    });
    node("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }, svg);
    return { svg, inner, px, py, width };
  }

  function path(xs, ys) {
    let d = "";
    for (let i = 0; i < xs.length; i += 1) d += (i ? "L" : "M") + xs[i].toFixed(1) + " " + ys[i].toFixed(1);
    return d;
  }

  // Memory changes at once, not gradually: between two samples the first one holds.
  function stairs(xs, ys) {
    let d = `M${xs[0].toFixed(1)} ${ys[0].toFixed(1)}`;
    for (let i = 1; i < xs.length; i += 1) d += `H${xs[i].toFixed(1)}V${ys[i].toFixed(1)}`;
    return d;
  }

  // The same stairs from right to left: the lower edge of an area whose upper edge went before.
  function backStairs(xs, ys) {
    let d = `V${ys[xs.length - 1].toFixed(1)}`;
    for (let i = xs.length - 1; i > 0; i -= 1) d += `V${ys[i - 1].toFixed(1)}H${xs[i - 1].toFixed(1)}`;
    return d + "Z";
  }

  // ------------------------------------------------------------------- a cursor for each chart

  // Pointer and arrow keys move a line along the x values; `describe(i)` fills the tip.
  // `state` outlives a redraw, listeners are attached once.
  function attachCursor(host, state) {
    state.tip = html("div", "tip", host);
    state.tip.hidden = true;
    state.tip.setAttribute("role", "status");
    const hide = () => { state.tip.hidden = true; if (state.line) state.line.setAttribute("visibility", "hidden"); };
    host.addEventListener("pointermove", (event) => {
      const box = host.getBoundingClientRect();
      moveCursor(host, state, nearest(state.positions, event.clientX - box.left));
    });
    host.addEventListener("pointerleave", hide);
    host.addEventListener("blur", hide);
    host.addEventListener("keydown", (event) => {
      const last = state.positions.length - 1;
      const stride = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
      const goal = { ArrowLeft: state.index - stride, ArrowRight: state.index + stride, Home: 0, End: last }[event.key];
      if (event.key === "Escape") return hide();
      if (goal === undefined) return undefined;
      event.preventDefault();
      return moveCursor(host, state, Math.min(last, Math.max(0, goal)));
    });
  }

  function nearest(sorted, value) {
    let low = 0, high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1; else high = middle;
    }
    return low > 0 && value - sorted[low - 1] < sorted[low] - value ? low - 1 : low;
  }

  function moveCursor(host, state, index) {
    state.index = index;
    const x = state.positions[index];
    state.line.setAttribute("x1", x);
    state.line.setAttribute("x2", x);
    state.line.setAttribute("visibility", "visible");
    state.tip.replaceChildren();
    state.describe(index, state.tip);
    state.tip.hidden = false;
    const left = x > host.clientWidth / 2 ? x - state.tip.offsetWidth - 12 : x + 12;
    state.tip.style.left = Math.max(0, left) + "px";
    state.tip.style.top = "14px";
  }

  function addCursor(state, view, positions, describe) {
    state.positions = positions;
    state.describe = describe;
    state.index = Math.min(state.index || 0, positions.length - 1);
    state.line = node("line", { class: "cursor", y1: view.inner.top, y2: view.inner.bottom, visibility: "hidden" }, view.svg);
  }

  function tipRow(tip, swatch, name, value, className) {
    const row = html("div", "row " + (className || ""), tip);
    if (swatch) html("span", "swatch", row).style.setProperty("--swatch", `var(--${swatch})`);
    html("span", "", row, name);
    html("b", "", row, value);
  }

  // Redraws a chart when its width changes.
  function whenSized(host, draw) {
    let width = 0;
    new ResizeObserver(() => {
      if (host.clientWidth !== width) { width = host.clientWidth; draw(); }
    }).observe(host);
  }

  // ------------------------------------------------------------------------------ the charts

  function smooth(values, reach) {
    const result = [];
    let sum = 0;
    for (let i = 0; i < values.length; i += 1) {
      sum += values[i];
      if (i >= reach) sum -= values[i - reach];
      result.push(sum / Math.min(i + 1, reach));
    }
    return result;
  }

  function lossChart(host) {
    const losses = data.training.loss;
    const state = {};
    attachCursor(host, state);
    const steps = losses.map((_, i) => i + 1);
    const mean = smooth(losses, Math.max(1, Math.round(losses.length / 40)));
    whenSized(host, () => {
      const top = Math.max(...losses) * 1.05 || 1;
      const view = frame(host, { height: 230, left: 44, x: [1, Math.max(2, losses.length)], y: [0, top], xUnit: "steps", xText: (v) => v.toFixed(0) });
      const xs = steps.map(view.px);
      node("path", { d: path(xs, losses.map(view.py)), fill: "none", stroke: "var(--accent-soft)", "stroke-width": 1 }, view.svg);
      node("path", { d: path(xs, mean.map(view.py)), fill: "none", stroke: "var(--accent)", "stroke-width": 2 }, view.svg);
      addCursor(state, view, xs, (i, tip) => {
        html("div", "when", tip, `step ${i + 1}`);
        tipRow(tip, "accent-soft", "loss", losses[i].toFixed(4));
        tipRow(tip, "accent", "running mean", mean[i].toFixed(4));
      });
    });
  }

  function accuracyChart(host) {
    const epochs = data.training.epochs;
    const state = {};
    attachCursor(host, state);
    whenSized(host, () => {
      const low = Math.min(...epochs.map((e) => e.accuracy));
      const bottom = Math.min(0.9, Math.floor(low * 20) / 20);
      const view = frame(host, { height: 230, left: 52, x: [1, Math.max(2, epochs.length)], y: [bottom, 1], xUnit: "epochs",
        xText: (v) => (Number.isInteger(v) ? v.toFixed(0) : ""), yText: (v) => (v * 100).toFixed(1 - bottom < 0.04 ? 1 : 0) + "%" });
      const xs = epochs.map((e) => view.px(e.epoch));
      const ys = epochs.map((e) => view.py(e.accuracy));
      node("path", { d: path(xs, ys), fill: "none", stroke: "var(--accent)", "stroke-width": 2 }, view.svg);
      xs.forEach((x, i) => node("circle", { cx: x, cy: ys[i], r: 3.5, fill: "var(--accent)" }, view.svg));
      const end = epochs.length - 1;
      node("text", { class: "halo", x: xs[end], y: ys[end] + 20, "text-anchor": "end" }, view.svg, (epochs[end].accuracy * 100).toFixed(1) + "%");
      addCursor(state, view, xs, (i, tip) => {
        html("div", "when", tip, `epoch ${epochs[i].epoch}`);
        tipRow(tip, "accent", "test accuracy", (epochs[i].accuracy * 100).toFixed(2) + "%");
        tipRow(tip, "", "mean loss", epochs[i].loss.toFixed(4));
        tipRow(tip, "", "time", seconds(epochs[i].seconds));
      });
    });
  }

  function drawMemory(host, state, memory) {
    const layers = memory.categories;
    const reserved = Math.max(...memory.reserved, 1);
    const inUse = Math.max(...memory.time.map((_, i) => layers.reduce((sum, l) => sum + l.bytes[i], 0)), 1);
    // A cache far larger than what is in use would flatten the chart: its line then runs along the top.
    const above = reserved > 1.8 * inUse;
    const last = memory.event[memory.event.length - 1];
    const view = frame(host, { height: 320, left: 66, x: [0, last], y: [0, above ? inUse * 1.3 : reserved * 1.06], binary: true, yText: bytes, xUnit: "events", xText: (v) => v.toLocaleString("en") });
    const xs = memory.event.map(view.px);
    let below = memory.time.map(() => 0);
    for (const layer of layers) {
      const upper = below.map((v, i) => v + layer.bytes[i]);
      node("path", { d: stairs(xs, upper.map(view.py)) + backStairs(xs, below.map(view.py)), fill: `var(--${layer.name})` }, view.svg);
      below = upper;
    }
    const line = memory.reserved.map((v) => Math.max(view.py(v), view.inner.top));
    node("path", { d: stairs(xs, line), fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "5 4" }, view.svg);
    if (above) node("text", { class: "halo", x: view.inner.right - 4, y: view.inner.top + 16, "text-anchor": "end" }, view.svg, `reserved: up to ${bytes(reserved)}, off the scale`);
    const top = below.indexOf(Math.max(...below));
    const side = xs[top] > view.width / 2 ? "end" : "start";
    node("circle", { cx: xs[top], cy: view.py(below[top]), r: 3.5, fill: "var(--ink)" }, view.svg);
    node("text", { class: "halo", x: xs[top] + (side === "end" ? -8 : 8), y: view.py(below[top]) - 7, "text-anchor": side }, view.svg, "peak " + bytes(below[top]));
    addCursor(state, view, xs, (i, tip) => {
      html("div", "when", tip, seconds(memory.time[i]) + (memory.labels && memory.labels[i] ? " · " + memory.labels[i] : ""));
      for (const layer of layers.slice().reverse()) {
        if (layer.bytes[i]) tipRow(tip, layer.name, layer.label, bytes(layer.bytes[i]));
      }
      tipRow(tip, "", "in tensors", bytes(below[i]), "total");
      tipRow(tip, "", "reserved", bytes(memory.reserved[i]));
    });
  }

  function memoryChart(host) {
    const state = {};
    attachCursor(host, state);
    let shown = "run";
    const draw = () => drawMemory(host, state, data.memory[shown]);
    for (const input of document.querySelectorAll('input[name="span"]')) {
      input.addEventListener("change", () => { shown = input.value; state.index = 0; draw(); });
    }
    whenSized(host, draw);
  }

  // -------------------------------------------------------------------------- the segment map

  function blockText(segment, block) {
    const start = "0x" + (BigInt(segment.address) + BigInt(block.offset)).toString(16);
    if (block.category === "free") return ["free (cached)", bytes(block.size), "at " + start];
    const waste = block.size - block.requested;
    return [block.label, bytes(block.size), "at " + start + (waste ? `, ${bytes(waste)} lost to rounding` : "")];
  }

  function segmentMap(host) {
    const reading = document.getElementById("segment-reading");
    const idle = reading.textContent;
    const largest = (segments) => Math.max(...segments.map((s) => s.size));
    const top = largest(data.segments);
    for (const pool of new Set(data.segments.map((s) => s.pool))) {
      // Each pool has a scale of its own: blocks of the small one would be hairlines on that of the large.
      const own = data.segments.filter((s) => s.pool === pool);
      const title = html("div", "pool", host, `${pool} pool`);
      const zoom = top / largest(own);
      if (zoom > 1.5) html("span", "", title, `, drawn ${Math.round(zoom)} times larger`);
      for (const segment of own) segmentRow(host, segment, largest(own), reading, idle);
    }
  }

  function segmentRow(host, segment, scale, reading, idle) {
    const row = html("div", "segment", host);
    const name = html("div", "name", row);
    html("b", "", name, bytes(segment.size));
    const used = segment.blocks.reduce((sum, b) => sum + (b.category === "free" ? 0 : b.size), 0);
    name.append(`, ${Math.round((100 * used) / segment.size)}% used`);
    drawTrack(html("div", "", row), segment, scale, reading, idle);
  }

  function drawTrack(cell, segment, largest, reading, idle) {
    const track = html("div", "track", cell);
    track.tabIndex = 0;
    track.setAttribute("role", "group");
    track.setAttribute("aria-label", `segment of ${bytes(segment.size)}, ${segment.blocks.length} blocks; arrow keys visit them`);
    track.style.width = (100 * segment.size) / largest + "%";
    const marks = segment.blocks.map((block) => {
      const mark = html("span", "block" + (block.category === "free" ? " free" : ""), track);
      mark.style.left = (100 * block.offset) / segment.size + "%";
      mark.style.width = (100 * block.size) / segment.size + "%";
      mark.style.setProperty("--swatch", `var(--${block.category})`);
      return mark;
    });
    let current = -1;
    const show = (index) => {
      if (current >= 0) marks[current].classList.remove("current");
      current = index;
      if (index < 0) { reading.textContent = idle; return; }
      marks[index].classList.add("current");
      const [what, size, where] = blockText(segment, segment.blocks[index]);
      reading.replaceChildren(html("b", "", null, what), ` ${size} ${where}`);
    };
    track.addEventListener("pointermove", (event) => show(marks.indexOf(event.target)));
    track.addEventListener("pointerleave", () => show(-1));
    track.addEventListener("focus", () => show(0));
    track.addEventListener("blur", () => show(-1));
    track.addEventListener("keydown", (event) => {
      const goal = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: marks.length - 1 }[event.key];
      if (goal === undefined) return;
      event.preventDefault();
      show(Math.min(marks.length - 1, Math.max(0, goal)));
    });
  }

  // ----------------------------------------------------------------------------------- start

  const start = { loss: lossChart, accuracy: accuracyChart, memory: memoryChart, segments: segmentMap };
  for (const name in start) {
    const host = document.getElementById(name + "-chart");
    if (host) start[name](host);
  }
})();
