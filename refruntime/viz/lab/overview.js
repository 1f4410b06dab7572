"use strict";
// The whole recording in a strip, with a window that shows which part the timeline draws: drag the
// window to move it, press elsewhere to bring it there. Keys are the timeline's. Provides
// lab.Overview.

(function (lab) {
  const { colour, Memo, Surface } = lab.canvas;
  const HEIGHT = 44;
  const LEFT = 70;
  const RIGHT = 14;

  class Overview {
    constructor(host, view) {
      this.view = view;
      this.surface = new Surface(host, HEIGHT, () => view.changed());
      this.memo = new Memo();
      host.addEventListener("pointerdown", (event) => this.press(event, host));
      host.addEventListener("pointermove", (event) => this.drag(event));
      host.addEventListener("pointerup", () => { this.grip = null; });
      view.listeners.push(() => this.draw());
    }

    get columns() { return Math.floor(this.surface.width - LEFT - RIGHT); }

    x(value) { return LEFT + (value / this.view.axis.end) * this.columns; }

    value(event) {
      return ((this.surface.locate(event).x - LEFT) / this.columns) * this.view.axis.end;
    }

    // The heights change only with the axis, the grouping and the width.
    heights() {
      const { axis, grouping, recording } = this.view;
      const key = [axis.id, grouping.id, this.columns].join();
      if (this.key === key) return this.kept;
      const { series } = grouping;
      this.key = key;
      this.kept = Float64Array.from({ length: this.columns }, (_, c) => {
        const from = axis.moment((c / this.columns) * axis.end);
        const to = Math.max(from + 1, axis.stop(((c + 1) / this.columns) * axis.end));
        return series.total[series.peak(from, Math.min(to, recording.moments))];
      });
      return this.kept;
    }

    draw() {
      const { view } = this;
      const { low, high, moment, axis, grouping } = view;
      if (!this.memo.stale(low, high, moment, axis.id, grouping.id, this.surface.width)) return;
      const context = this.surface.begin();
      const heights = this.heights();
      const top = heights.reduce((a, b) => Math.max(a, b), 1);
      context.fillStyle = colour("--accent-soft");
      heights.forEach((amount, c) => {
        const height = (amount / top) * (HEIGHT - 6);
        context.fillRect(LEFT + c, HEIGHT - 2 - height, 1, height);
      });
      context.fillStyle = colour("--alarm");
      for (const m of view.recording.ooms.moment) {
        context.fillRect(this.x(axis.value(m)) - 1, 0, 2, 6);
      }
      context.fillStyle = colour("--accent");
      context.fillRect(this.x(view.axis.value(view.moment)) - 0.5, 0, 1.5, HEIGHT);
      this.drawWindow(context);
    }

    drawWindow(context) {
      const from = this.x(this.view.low);
      const to = Math.max(from + 3, this.x(this.view.high));
      context.fillStyle = colour("--panel");
      context.globalAlpha = 0.66;
      context.fillRect(LEFT, 0, from - LEFT, HEIGHT);
      context.fillRect(to, 0, LEFT + this.columns - to, HEIGHT);
      context.globalAlpha = 1;
      context.strokeStyle = colour("--accent");
      context.strokeRect(from + 0.5, 0.5, to - from - 1, HEIGHT - 1);
    }

    press(event, host) {
      const at = this.value(event);
      const { view } = this;
      if (at < view.low || at > view.high) view.show(at - view.span / 2, at + view.span / 2);
      this.grip = at - view.low;
      host.setPointerCapture(event.pointerId);
    }

    drag(event) {
      if (this.grip === null || this.grip === undefined) return;
      const low = this.value(event) - this.grip;
      this.view.show(low, low + this.view.span);
    }
  }

  lab.Overview = Overview;
})(window.lab ??= {});
