"use strict";
// What the pointer and the keys do on the timeline, and what the box beside the pointer says.
// Provides lab.TimelineHand.

(function (lab) {
  const { element, swatch, Tip } = lab.canvas;
  const { bytes, duration, address } = lab.format;
  // Pixels that the pointer may move between press and release and still have clicked.
  const CLICK_SLACK = 4;
  // How many frames of a block's stack the box shows.
  const FRAMES = 6;

  class TimelineHand {
    constructor(timeline) {
      this.timeline = timeline;
      this.view = timeline.view;
      this.recording = timeline.recording;
      this.host = timeline.host;
      this.tip = new Tip(timeline.host);
      this.pressed = null;
      this.listen();
    }

    listen() {
      const { host } = this;
      host.addEventListener("pointermove", (event) => this.move(event));
      host.addEventListener("pointerleave", () => this.leave());
      host.addEventListener("pointerdown", (event) => this.press(event));
      host.addEventListener("pointerup", (event) => this.release(event));
      host.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      host.addEventListener("keydown", (event) => this.key(event));
    }

    // --------------------------------------------------------------------------- the pointer

    locate(event) {
      return this.timeline.surface.locate(event);
    }

    press(event) {
      this.pressed = { x: this.locate(event).x, low: this.view.low, high: this.view.high };
      this.host.setPointerCapture(event.pointerId);
    }

    // Whether the pointer has gone further since it was pressed than a click may.
    drags(x) {
      return this.pressed !== null && Math.abs(x - this.pressed.x) > CLICK_SLACK;
    }

    move(event) {
      const { x, y } = this.locate(event);
      if (this.drags(x)) this.drag(x);
      else this.point(x, y);
    }

    drag(x) {
      const { low, high, x: start } = this.pressed;
      const shift = ((start - x) / this.timeline.columns) * (high - low);
      this.tip.hide();
      this.view.show(low + shift, high + shift);
    }

    point(x, y) {
      this.timeline.hover = this.timeline.momentAt(x);
      this.showTip(x, this.timeline.hover, this.timeline.blockAt(x, y));
      this.view.changed();
    }

    release(event) {
      const { x, y } = this.locate(event);
      const clicked = this.pressed !== null && !this.drags(x);
      this.pressed = null;
      if (!clicked) return;
      const block = this.timeline.blockAt(x, y);
      if (block >= 0) this.view.choose(block);
      this.view.goTo(this.timeline.momentAt(x));
    }

    leave() {
      this.timeline.hover = null;
      this.tip.hide();
      this.view.changed();
    }

    // The wheel belongs to the page until the chart has focus, or Ctrl says zoom.
    wheel(event) {
      if (!event.ctrlKey && document.activeElement !== this.host) return;
      event.preventDefault();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (sideways) this.view.pan(event.deltaX / 800);
      else this.view.zoom(Math.exp(event.deltaY / 400), this.timeline.value(this.locate(event).x));
    }

    // ------------------------------------------------------------------------------ the keys

    key(event) {
      const { view } = this;
      const stride = event.shiftKey ? this.longStride() : 1;
      const here = view.axis.value(view.moment);
      const actions = {
        ArrowLeft: () => view.goTo(view.moment - stride),
        ArrowRight: () => view.goTo(view.moment + stride),
        ArrowUp: () => view.zoom(1 / 1.5, here),
        ArrowDown: () => view.zoom(1.5, here),
        "+": () => view.zoom(1 / 1.5, here),
        "=": () => view.zoom(1 / 1.5, here),
        "-": () => view.zoom(1.5, here),
        PageUp: () => view.pan(-0.5),
        PageDown: () => view.pan(0.5),
        Home: () => view.goTo(0),
        End: () => view.goTo(this.recording.moments - 1),
        0: () => view.showAll(),
      };
      const action = actions[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    }

    // With Shift, an arrow moves by a fiftieth of what is shown.
    longStride() {
      const { axis, low, high } = this.view;
      return Math.max(1, Math.round((axis.moment(high) - axis.moment(low)) / 50));
    }

    // ------------------------------------------------------------------------------- the box

    showTip(x, moment, block) {
      const { recording } = this;
      const when = `${recording.momentName(moment)} · ${duration(recording.time[moment])}`;
      const reserved = element("b", {}, bytes(this.timeline.reserved.total[moment]));
      this.tip.show(
        x, 8,
        element("div", { className: "when" }, when),
        ...this.groupRows(moment),
        element("div", { className: "row total" }, "reserved", reserved),
        ...(block < 0 ? [] : [this.blockLines(block)]),
      );
    }

    // The groups that hold something, in the order of the stack: the highest first.
    groupRows(moment) {
      const { series, groups } = this.view.grouping;
      const state = series.at(moment, new Float64Array(groups.length));
      return groups
        .map((group, g) => ({ ...group, amount: state[g] }))
        .filter(({ amount }) => amount > 0)
        .map((group) => this.groupRow(group))
        .reverse();
    }

    groupRow({ name, colour, amount }) {
      const held = element("b", {}, bytes(amount));
      return element("div", { className: "row" }, swatch(colour), name, held);
    }

    blockLines(block) {
      const { size, address: at } = this.recording.blocks;
      const head = element("div", {}, element("b", {}, bytes(size[block])), ` at ${address(at[block])}`);
      const stack = lab.words.callers(this.recording, block, FRAMES);
      return element("div", { className: "under" }, head, stack);
    }
  }

  lab.TimelineHand = TimelineHand;
})(window.lab ??= {});
