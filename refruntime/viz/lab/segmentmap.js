"use strict";
// The segment map: reserved memory at the chosen moment as one long strip, wrapped into rows like
// text. Every byte has a fixed place for the whole recording, so scrubbing shows what moves.
// Provides lab.SegmentMap.

(function (lab) {
  const { colour, element, pixel, Memo, Surface, Tip } = lab.canvas;
  const { bytes, count } = lab.format;
  const ROW = 17;
  const GAP = 4;
  const ROWS = 14;
  // How many frames of a block's stack the box beside the pointer shows.
  const FRAMES = 6;
  // Below the strip there is room for the request that failed, on the same scale.
  const REQUEST = { top: ROWS * (ROW + GAP) + 4, height: 9 };

  class SegmentMap {
    constructor(host, reading, view) {
      Object.assign(this, { host, reading, view, recording: view.recording });
      this.surface = new Surface(host, REQUEST.top + REQUEST.height, () => view.changed());
      this.tip = new Tip(host);
      this.memo = new Memo();
      this.low = 0;
      this.high = Math.max(1, view.recording.mapBytes);
      this.listen();
      view.listeners.push(() => this.draw());
    }

    // ------------------------------------------------------------------------------ places

    get width() { return Math.floor(this.surface.width); }

    // Bytes that one pixel stands for; pixels are counted along the strip, through all rows.
    get scale() { return (this.high - this.low) / (ROWS * this.width); }

    pixel(place) { return (place - this.low) / this.scale; }

    // ----------------------------------------------------------------------------- drawing

    draw() {
      const { moment, block, grouping, group } = this.view;
      const range = [this.low, this.high, this.surface.width];
      if (!this.memo.stale(moment, block, grouping.id, group, ...range)) return;
      this.update();
      const context = this.surface.begin();
      this.drawStrip(context);
      this.drawBounds(context);
      this.drawChosen(context);
      this.drawRequest(context);
      this.say();
    }

    // The state at the moment is worked out once a moment, not once a frame.
    update() {
      const { moment } = this.view;
      if (this.moment === moment) return;
      this.moment = moment;
      this.blocks = this.recording.mapped(moment);
      const { place } = this.recording.blocks;
      this.places = new Float64Array(this.blocks.length);
      for (let i = 0; i < this.places.length; i += 1) this.places[i] = place[this.blocks[i]];
      this.holes = lab.holes(this.recording, moment, this.blocks);
      this.pieces = this.recording.livePieces(moment);
      this.unplaced = this.recording.live(moment).length - this.blocks.length;
    }

    // The strip is coloured pixel by pixel in memory and then laid out in rows: the cost is that of
    // its pixels, whether ten blocks live or a hundred thousand.
    drawStrip(context) {
      const { ratio } = this.surface;
      this.cells = Math.floor(this.width * ratio);
      const strip = new Uint32Array(ROWS * this.cells);
      this.paintPieces(strip);
      this.paintBlocks(strip);
      const band = Math.round(ROW * ratio);
      for (let row = 0; row < ROWS; row += 1) {
        const line = strip.subarray(row * this.cells, (row + 1) * this.cells);
        const image = new ImageData(this.cells, band);
        const pixels = new Uint32Array(image.data.buffer);
        for (let y = 0; y < band; y += 1) pixels.set(line, y * this.cells);
        context.putImageData(image, 0, Math.round(row * (ROW + GAP) * ratio));
      }
    }

    // The place of a byte along the strip, in device pixels.
    cell(place) {
      return ((place - this.low) / (this.high - this.low)) * ROWS * this.cells;
    }

    paintPieces(strip) {
      const free = pixel("--free");
      for (const piece of this.pieces) {
        const place = this.recording.piecePlace(piece);
        const stop = this.cell(place + this.recording.pieces.size[piece]);
        strip.fill(free, Math.max(0, Math.round(this.cell(place))), Math.max(0, Math.round(stop)));
      }
    }

    paintBlocks(strip) {
      const { held } = this.recording.blocks;
      const { blockGrouping: grouping, grouping: shown, moment, group: front } = this.view;
      const plain = front < 0 || grouping !== shown;
      const strength = (g) => (plain || g === front ? 1 : 0.18);
      const tints = grouping.groups.map((group, g) => pixel(group.colour, strength(g)));
      for (let i = 0; i < this.blocks.length; i += 1) {
        const from = Math.round(this.cell(this.places[i]));
        const to = Math.round(this.cell(this.places[i] + held[this.blocks[i]]));
        if (to < 0 || from >= strip.length) continue;
        // A sliver of background parts neighbours that are wide enough to spare it; what is
        // narrower than a pixel still gets one.
        const stop = to - from > 4 ? to - 1 : Math.max(from + 1, to);
        const tint = tints[grouping.group(this.blocks[i], moment)];
        strip.fill(tint, Math.max(0, from), Math.max(0, stop));
      }
    }

    drawBounds(context) {
      context.fillStyle = colour("--ink");
      const ticks = new Set(this.pieces.map((p) => Math.floor(this.pixel(this.unitStart(p)))));
      // Where segments are as narrow as pixels, ticks would hide them.
      if (ticks.size > this.width) return;
      for (const at of ticks) {
        if (at < 0 || at >= ROWS * this.width) continue;
        const row = Math.floor(at / this.width);
        context.fillRect(at - row * this.width, row * (ROW + GAP) - 2, 1, ROW + 4);
      }
    }

    unitStart(piece) {
      return this.recording.units.place[this.recording.pieces.unit[piece]];
    }

    drawChosen(context) {
      const span = this.spanOf(this.view.block);
      if (!span) return;
      const { width } = this;
      context.strokeStyle = colour("--ink");
      context.lineWidth = 2;
      const from = Math.max(0, this.pixel(span.place));
      const to = Math.min(ROWS * width, Math.max(from + 3, this.pixel(span.place + span.bytes)));
      for (let row = Math.floor(from / width); row * width < to; row += 1) {
        const start = Math.max(from, row * width) - row * width;
        const stop = Math.min(to, (row + 1) * width) - row * width;
        context.strokeRect(start, row * (ROW + GAP), Math.max(2, stop - start), ROW);
      }
    }

    // At a failure: the request as a bar, to be held against the free spans above.
    drawRequest(context) {
      const { ooms } = this.recording;
      const failed = ooms.moment.indexOf(this.moment);
      document.getElementById("request-key").hidden = failed < 0;
      if (failed < 0) return;
      context.fillStyle = colour("--alarm");
      const length = Math.min(this.width, ooms.asked[failed] / this.scale);
      context.fillRect(0, REQUEST.top, length, REQUEST.height);
    }

    spanOf(block) {
      const { begin, end, unit, held } = this.recording.blocks;
      const { moment } = this.view;
      if (block < 0 || unit[block] < 0) return null;
      if (begin[block] > moment || end[block] <= moment) return null;
      return { place: this.recording.blocks.place[block], bytes: held[block] };
    }

    // ------------------------------------------------------------------- pointer and keyboard

    listen() {
      const { host } = this;
      host.addEventListener("pointermove", (event) => this.move(event));
      host.addEventListener("pointerleave", () => this.tip.hide());
      host.addEventListener("click", (event) => this.click(event));
      host.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      host.addEventListener("keydown", (event) => this.key(event));
    }

    placeAt(event) {
      const { x, y } = this.surface.locate(event);
      const row = Math.min(ROWS - 1, Math.max(0, Math.floor(y / (ROW + GAP))));
      return this.low + (row * this.width + x) * this.scale;
    }

    // The live block at a place, as an index into this.blocks; -1 in a hole.
    indexAt(place) {
      const index = lab.upperBound(this.places, place) - 1;
      if (index < 0) return -1;
      const stop = this.places[index] + this.recording.blocks.held[this.blocks[index]];
      return place < stop ? index : -1;
    }

    holeAt(place) {
      return this.holes.find((hole) => hole.place <= place && place < hole.place + hole.bytes);
    }

    move(event) {
      const place = this.placeAt(event);
      const { x, y } = this.surface.locate(event);
      const index = this.indexAt(place);
      const hole = index < 0 ? this.holeAt(place) : null;
      if (index < 0 && !hole) { this.tip.hide(); return; }
      const lines = index >= 0
        ? this.blockText(this.blocks[index])
        : lab.words.hole(this.recording, this.moment, hole);
      const stack = index >= 0 ? [lab.words.callers(this.recording, this.blocks[index], FRAMES)] : [];
      this.tip.show(x, y + 18, ...lines.map((line) => element("div", {}, line)), ...stack);
    }

    click(event) {
      const index = this.indexAt(this.placeAt(event));
      this.view.choose(index < 0 ? -1 : this.blocks[index]);
    }

    wheel(event) {
      if (!event.ctrlKey && document.activeElement !== this.host) return;
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 400), this.placeAt(event));
    }

    zoom(factor, center) {
      const whole = Math.max(1, this.recording.mapBytes);
      const span = Math.min(whole, Math.max(ROWS * 1024, (this.high - this.low) * factor));
      const low = center - ((center - this.low) / (this.high - this.low)) * span;
      this.low = Math.min(Math.max(0, low), whole - span);
      this.high = this.low + span;
      this.view.changed();
    }

    key(event) {
      const at = this.blocks.indexOf(this.view.block);
      const span = this.spanOf(this.view.block);
      const center = span ? span.place : (this.low + this.high) / 2;
      const line = this.scale * this.width;
      const actions = {
        ArrowLeft: () => this.visit(at - 1),
        ArrowRight: () => this.visit(at + 1),
        ArrowUp: () => this.visit(this.nearest(center - line, at - 1)),
        ArrowDown: () => this.visit(this.nearest(center + line, at + 1)),
        Home: () => this.visit(0),
        End: () => this.visit(this.blocks.length - 1),
        "+": () => this.zoom(1 / 1.6, center),
        "=": () => this.zoom(1 / 1.6, center),
        "-": () => this.zoom(1.6, center),
        0: () => this.zoom(Infinity, center),
        Escape: () => this.view.choose(-1),
      };
      const action = actions[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    }

    // The block one row away; at least the next one in that direction.
    nearest(place, least) {
      const index = Math.max(0, lab.upperBound(this.places, place) - 1);
      const current = this.blocks.indexOf(this.view.block);
      return index === current ? least : index;
    }

    visit(index) {
      if (!this.blocks.length) return;
      const inside = Math.min(this.blocks.length - 1, Math.max(0, index));
      this.view.choose(this.blocks[inside]);
      this.follow(this.places[inside]);
    }

    // Moves the part shown so that a place is in it.
    follow(place) {
      if (place >= this.low && place < this.high) return;
      const span = this.high - this.low;
      this.low = Math.min(Math.max(0, place - span / 2), this.recording.mapBytes - span);
      this.high = this.low + span;
    }

    // ------------------------------------------------------------------------------- words

    blockText(block) {
      return lab.words.block(this.recording, this.view.blockGrouping, this.moment, block);
    }

    overviewText() {
      const units = new Set(this.pieces.map((piece) => this.recording.pieces.unit[piece]));
      const largest = this.holes.reduce((most, hole) => Math.max(most, hole.bytes), 0);
      const outside = `${count(this.unplaced)} blocks lie in no recorded segment and are not drawn.`;
      return `${count(this.blocks.length)} blocks in ${count(units.size)} segments; ` +
        `the largest free span is ${bytes(largest)}. ${this.unplaced ? outside : ""}`;
    }

    say() {
      const { block } = this.view;
      const said = this.spanOf(block) ? `${this.blockText(block).join("; ")}.` : this.overviewText();
      // Spoken when a block was chosen; scrubbing has the slider's own words.
      this.reading.ariaLive = this.said === block ? "off" : "polite";
      this.said = block;
      if (this.reading.textContent !== said) this.reading.textContent = said;
    }
  }

  lab.SegmentMap = SegmentMap;
})(window.lab ??= {});
