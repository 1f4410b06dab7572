"use strict";
// Replays side by side: one small chart a strategy, all on one scale. Provides lab.Strategies.

(function (lab) {
  const { colour, label, level, text, Surface } = lab.canvas;
  const { bytes } = lab.format;
  const HEIGHT = 130;
  const MARGIN = { left: 2, right: 2, top: 16, bottom: 4 };

  class StrategyChart {
    constructor(host, points, top, bound) {
      Object.assign(this, { points, top, bound });
      this.surface = new Surface(host, HEIGHT, () => this.draw());
    }

    y(amount) {
      return HEIGHT - MARGIN.bottom - (amount / this.top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    }

    x(i) {
      const { width } = this.surface;
      const inner = width - MARGIN.left - MARGIN.right;
      return MARGIN.left + (i / this.points.allocated.length) * inner;
    }

    draw() {
      const context = this.surface.begin();
      this.area(context, this.points.reserved, "--other");
      this.area(context, this.points.allocated, "--accent");
      context.strokeStyle = colour("--ink");
      context.lineWidth = 1.5;
      context.stroke(this.stairs(new Path2D(), this.points.reserved));
      this.drawBound(context);
      const peak = this.points.reserved.reduce((a, b) => Math.max(a, b), 0);
      label(context, bytes(peak), this.surface.width - 4, Math.max(11, this.y(peak) - 5), "right");
    }

    // What the recorded run reserved, to compare with.
    drawBound(context) {
      const y = this.y(this.bound);
      context.setLineDash([4, 4]);
      context.lineWidth = 1;
      context.strokeStyle = colour("--muted");
      level(context, MARGIN.left, this.surface.width - MARGIN.right, y);
      context.setLineDash([]);
      text(context, "as recorded", MARGIN.left + 4, y + 13, "left");
    }

    stairs(path, values) {
      values.forEach((amount, i) => {
        path.lineTo(this.x(i), this.y(amount));
        path.lineTo(this.x(i + 1), this.y(amount));
      });
      return path;
    }

    area(context, values, name) {
      const path = new Path2D();
      path.moveTo(this.x(0), this.y(0));
      this.stairs(path, values);
      path.lineTo(this.x(values.length), this.y(0));
      context.fillStyle = colour(name);
      context.fill(path);
    }
  }

  class Strategies {
    constructor(hosts, recording, peakReserved) {
      const { start, allocated, reserved } = recording.strategies;
      const top = 1.08 * reserved.reduce((a, b) => Math.max(a, b), peakReserved);
      this.charts = [...hosts].map((host, s) => new StrategyChart(host, {
        allocated: allocated.subarray(start[s], start[s + 1]),
        reserved: reserved.subarray(start[s], start[s + 1]),
      }, top, peakReserved));
    }

    draw() {
      for (const chart of this.charts) if (chart.points.reserved.length) chart.draw();
    }
  }

  lab.Strategies = Strategies;
})(window.lab ??= {});
