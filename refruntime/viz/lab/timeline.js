"use strict";
// Memory over time: stacked groups, the reserved line, failures, the chosen moment and block.
// Every pixel column shows its highest moment, so no peak is lost at any zoom, and drawing costs
// the same for a thousand events as for a million. Provides lab.Timeline.

(function (lab) {
  const { colour, label, level, text, Memo, Surface } = lab.canvas;
  const { bytes, count, ticks } = lab.format;
  const HEIGHT = 340;
  const MOST_LINES = 8;
  const MARGIN = { left: 70, right: 14, top: 20, bottom: 42 };

  class Timeline {
    constructor(host, view) {
      this.host = host;
      this.view = view;
      this.recording = view.recording;
      this.surface = new Surface(host, HEIGHT, () => view.changed());
      this.cover = new Surface(host, HEIGHT, () => view.changed());
      this.memo = new Memo();
      // The moment under the pointer; set by the hand that holds it (see timelinehand.js).
      this.hover = null;
      this.reserved = this.reservedSeries();
      view.listeners.push(() => this.draw());
    }

    reservedSeries() {
      const { recording } = this;
      const { size } = recording.pieces;
      const series = new lab.Series(recording.moments, 1, 2 * size.length);
      recording.eachStep((moment, kind, row) => {
        if (kind === lab.STEP.pieceBegin) series.add(moment, 0, size[row]);
        if (kind === lab.STEP.pieceEnd) series.add(moment, 0, -size[row]);
      });
      return series.finish();
    }

    // ------------------------------------------------------------------------------ scales

    get inner() {
      const { width } = this.surface;
      const { left, right, top, bottom } = MARGIN;
      return { left, right: width - right, top, bottom: HEIGHT - bottom };
    }

    x(value) {
      const { left, right } = this.inner;
      return left + ((value - this.view.low) / this.view.span) * (right - left);
    }

    value(x) {
      const { left, right } = this.inner;
      return this.view.low + ((x - left) / (right - left)) * this.view.span;
    }

    y(amount) {
      const { top, bottom } = this.inner;
      return bottom - (amount / this.top) * (bottom - top);
    }

    // The moments that a pixel column stands for, as [from, to).
    range(column) {
      const { axis, low, span } = this.view;
      const share = span / this.columns;
      const from = axis.moment(low + column * share);
      const to = axis.stop(low + (column + 1) * share);
      return [from, Math.max(from + 1, to)];
    }

    // ----------------------------------------------------------------------------- drawing

    // The stack is drawn when the range or its look has changed; what moves lies on top of it.
    draw() {
      const { low, high, axis, grouping, group } = this.view;
      const { width } = this.surface;
      if (this.memo.stale(low, high, axis.id, grouping.id, group, width)) this.drawBase();
      const context = this.cover.begin();
      this.drawBlock(context);
      this.drawMoment(context);
      this.describe();
    }

    drawBase() {
      const context = this.surface.begin();
      this.columns = Math.floor(this.inner.right - this.inner.left);
      this.measure();
      this.drawGrid(context);
      this.drawStack(context);
      this.drawReserved(context);
      this.drawCapacity(context);
      this.drawMarks(context);
      this.drawFailures(context);
    }

    // For each column: its highest moment, the upper edge of every group there, reserved bytes.
    measure() {
      const { series } = this.view.grouping;
      const { columns } = this;
      const groups = series.groups;
      const state = new Float64Array(groups);
      this.peaks = new Int32Array(columns);
      this.edges = new Float64Array(columns * groups);
      this.limits = new Float64Array(columns);
      let highest = 1;
      let limit = 1;
      for (let c = 0; c < columns; c += 1) {
        const [from, to] = this.range(c);
        this.peaks[c] = series.peak(from, to);
        this.limits[c] = this.reserved.total[this.reserved.peak(from, to)];
        series.at(this.peaks[c], state);
        let sum = 0;
        for (let g = 0; g < groups; g += 1) this.edges[c * groups + g] = sum += state[g];
        highest = Math.max(highest, sum);
        limit = Math.max(limit, this.limits[c]);
      }
      // A cache far larger than what is in use would flatten the chart: its line leaves the scale.
      this.beyond = limit > 1.8 * highest ? limit : 0;
      this.top = (this.beyond ? 1.25 : 1.06) * (this.beyond ? highest : Math.max(highest, limit));
    }

    drawGrid(context) {
      const { left, right, bottom } = this.inner;
      context.lineWidth = 1;
      for (const t of ticks(0, this.top, 5, true)) {
        const y = Math.round(this.y(t)) + 0.5;
        context.strokeStyle = colour("--grid");
        level(context, left, right, y);
        text(context, bytes(t), left - 8, y + 4, "right");
      }
      const { low, high, axis } = this.view;
      for (const t of ticks(low, high, Math.max(2, (right - left) / 110), false)) {
        const x = this.x(t);
        const align = x > right - 30 ? "right" : x < left + 30 ? "left" : "center";
        text(context, axis.name(t), x, bottom + 34, align);
      }
    }

    drawStack(context) {
      const { groups } = this.view.grouping;
      for (let g = 0; g < groups.length; g += 1) {
        context.globalAlpha = this.view.group < 0 || this.view.group === g ? 1 : 0.18;
        context.fillStyle = colour(groups[g].colour);
        context.fill(this.area(g, groups.length));
      }
      context.globalAlpha = 1;
    }

    // The outline of a group's area: its upper edge from left to right, its lower one back.
    area(group, groups) {
      const { left } = this.inner;
      const path = new Path2D();
      const upper = (c) => this.y(this.edges[c * groups + group]);
      const lower = (c) => this.y(group ? this.edges[c * groups + group - 1] : 0);
      path.moveTo(left, lower(0));
      this.stairs(path, upper, 0, this.columns, 1);
      this.stairs(path, lower, this.columns - 1, -1, -1);
      return path;
    }

    // Columns of equal height become one line, which spares most of the points.
    stairs(path, height, from, to, step) {
      const { left } = this.inner;
      const edge = step > 0 ? 0 : 1;
      for (let c = from; c !== to; c += step) {
        const y = height(c);
        path.lineTo(left + c + edge, y);
        while (c + step !== to && height(c + step) === y) c += step;
        path.lineTo(left + c + 1 - edge, y);
      }
    }

    drawReserved(context) {
      const path = new Path2D();
      const height = (c) => this.y(Math.min(this.limits[c], this.top));
      path.moveTo(this.inner.left, height(0));
      this.stairs(path, height, 0, this.columns, 1);
      context.strokeStyle = colour("--ink");
      context.lineWidth = 1.5;
      context.stroke(path);
      if (!this.beyond) return;
      const said = `reserved: up to ${bytes(this.beyond)}, off the scale`;
      label(context, said, this.inner.right - 6, this.inner.top + 15, "right");
    }

    drawCapacity(context) {
      const { capacity } = this.recording.texts;
      if (!capacity || capacity > this.top) return;
      const y = this.y(capacity);
      context.setLineDash([6, 4]);
      context.strokeStyle = colour("--alarm");
      level(context, this.inner.left, this.inner.right, y);
      context.setLineDash([]);
      label(context, "device: " + bytes(capacity), this.inner.left + 6, y - 5, "left");
    }

    // Names of moments, where there is room for them.
    drawMarks(context) {
      const { mark, texts } = { mark: this.recording.marks, texts: this.recording.texts };
      let free = this.inner.left;
      for (let i = 0; i < mark.moment.length; i += 1) {
        const x = this.x(this.view.axis.value(mark.moment[i]));
        if (x < this.inner.left || x > this.inner.right) continue;
        context.fillStyle = colour("--muted");
        context.fillRect(x, this.inner.bottom, 1, 5);
        const width = context.measureText(texts.marks[i]).width;
        if (x < free || x + width > this.inner.right) continue;
        text(context, texts.marks[i], x, this.inner.bottom + 18, "left");
        free = x + width + 14;
      }
    }

    // A few failures are lines with a name; many would hide the memory, and are marks at the top.
    drawFailures(context) {
      const { left, right } = this.inner;
      const places = Array.from(this.recording.ooms.moment, (m) => this.x(this.view.axis.value(m)));
      const shown = places.filter((x) => x >= left - 1 && x <= right + 1);
      const few = shown.length <= MOST_LINES;
      for (const x of new Set(shown.map(Math.round))) this.drawFailure(context, x, few);
      const said = `${count(shown.length)} times out of memory`;
      if (!few) label(context, said, right - 4, this.inner.top - 2, "right");
    }

    drawFailure(context, x, line) {
      const { top, bottom } = this.inner;
      context.fillStyle = colour("--alarm");
      if (line) context.fillRect(x - 0.75, top, 1.5, bottom - top);
      context.beginPath();
      context.moveTo(x - 5, top - 8);
      context.lineTo(x + 5, top - 8);
      context.lineTo(x, top);
      context.fill();
      const side = x > this.surface.width / 2 ? -1 : 1;
      if (line) label(context, "out of memory", x + 9 * side, top - 2, side < 0 ? "right" : "left");
    }

    // The life of the chosen block, as a bar under the axis.
    drawBlock(context) {
      const { block, axis } = this.view;
      if (block < 0) return;
      const { begin, end } = this.recording.blocks;
      const last = this.recording.moments - 1;
      const from = Math.max(this.inner.left, this.x(axis.value(begin[block])));
      const to = Math.min(this.inner.right, this.x(axis.value(Math.min(end[block], last))));
      if (to < this.inner.left || from > this.inner.right) return;
      context.fillStyle = colour("--accent");
      context.fillRect(from, this.inner.bottom + 2, Math.max(2, to - from), 4);
    }

    drawMoment(context) {
      const draw = (value, name, width) => {
        const x = this.x(value);
        if (x < this.inner.left - 1 || x > this.inner.right + 1) return;
        context.fillStyle = colour(name);
        const { top, bottom } = this.inner;
        context.fillRect(x - width / 2, top, width, bottom - top + 6);
      };
      if (this.hover !== null) draw(this.view.axis.value(this.hover), "--muted", 1);
      draw(this.view.axis.value(this.view.moment), "--accent", 2);
    }

    // ------------------------------------------------------------------------- what is where

    column(x) {
      return Math.min(this.columns - 1, Math.max(0, Math.floor(x - this.inner.left)));
    }

    momentAt(x) {
      return this.peaks[this.column(x)];
    }

    // The group whose area covers a point, and how many bytes above its lower edge the point is.
    groupAt(x, y) {
      const groups = this.view.grouping.groups.length;
      const first = this.column(x) * groups;
      const { top, bottom } = this.inner;
      const amount = ((bottom - y) / (bottom - top)) * this.top;
      let lower = 0;
      for (let group = 0; group < groups && amount >= 0; group += 1) {
        const upper = this.edges[first + group];
        if (amount < upper) return { group, into: amount - lower };
        lower = upper;
      }
      return { group: -1, into: 0 };
    }

    // The block under a point: a group's blocks lie on each other in order of age, oldest lowest.
    blockAt(x, y) {
      const { grouping } = this.view;
      const { group, into } = this.groupAt(x, y);
      if (group < 0 || grouping.id === "use") return -1;
      const moment = this.momentAt(x);
      let sum = 0;
      for (const block of this.recording.live(moment)) {
        if (grouping.group(block, moment) !== group) continue;
        sum += this.recording.blocks.held[block];
        if (sum > into) return block;
      }
      return -1;
    }

    // The slider's value in words: what a screen reader says when the moment moves.
    describe() {
      const { moment } = this.view;
      const total = this.view.grouping.series.total[moment];
      this.host.setAttribute("aria-valuemin", 0);
      this.host.setAttribute("aria-valuemax", this.recording.moments - 1);
      this.host.setAttribute("aria-valuenow", moment);
      this.host.setAttribute(
        "aria-valuetext",
        `${this.recording.momentName(moment)} of ${count(this.recording.moments - 1)}, ` +
          `${bytes(total)} in use, ${bytes(this.reserved.total[moment])} reserved`,
      );
    }
  }

  lab.Timeline = Timeline;
})(window.lab ??= {});
