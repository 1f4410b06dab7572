"use strict";
// What the page shows: one moment, one range of time, one grouping, one chosen block. The parts
// change it through its methods and redraw when told. Provides lab.View.

(function (lab) {
  // An axis turns moments into values that are drawn evenly: themselves, or their times.
  // `moment(v)` is the one that holds at a value, `stop(v)` the first at or after it.
  class EventAxis {
    constructor(recording) {
      this.id = "event";
      this.recording = recording;
      this.end = Math.max(1, recording.moments);
      this.least = 8;
    }

    value(moment) { return moment; }
    moment(value) { return Math.min(this.recording.moments - 1, Math.max(0, Math.floor(value))); }
    stop(value) { return Math.min(this.recording.moments, Math.ceil(value)); }
    name(value) { return lab.format.count(value); }
  }

  class TimeAxis {
    constructor(recording) {
      this.id = "time";
      this.recording = recording;
      this.end = Math.max(1, recording.time[recording.moments - 1] * 1.0005);
      this.least = Math.min(20, this.end);
    }

    value(moment) { return this.recording.time[moment]; }
    moment(value) { return this.recording.momentAt(value); }
    stop(value) { return lab.upperBound(this.recording.time, Math.ceil(value) - 1); }
    name(value) { return lab.format.duration(value); }
  }

  class View {
    constructor(recording, groupings) {
      this.recording = recording;
      this.groupings = groupings;
      this.grouping = groupings[0];
      this.axes = { event: new EventAxis(recording), time: new TimeAxis(recording) };
      this.axis = this.axes.event;
      this.low = 0;
      this.high = this.axis.end;
      this.moment = recording.texts.keyMoments[0];
      this.block = -1;
      this.group = -1;
      this.listeners = [];
      this.pending = false;
    }

    // Redraws come once a frame, however many changes there were.
    changed() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame(() => {
        this.pending = false;
        for (const listener of this.listeners) listener();
      });
    }

    goTo(moment) {
      this.moment = Math.min(this.recording.moments - 1, Math.max(0, Math.round(moment)));
      this.reveal();
      this.changed();
    }

    // Moves the range, at its size, when the moment has left it.
    reveal() {
      const value = this.axis.value(this.moment);
      const half = this.span / 2;
      if (value < this.low || value > this.high) this.show(value - half, value + half);
    }

    get span() { return this.high - this.low; }

    get whole() { return this.low <= 0 && this.high >= this.axis.end; }

    show(low, high) {
      const span = Math.min(this.axis.end, Math.max(this.axis.least, high - low));
      const start = (low + high - span) / 2;
      this.low = Math.min(this.axis.end - span, Math.max(0, start));
      this.high = this.low + span;
      this.changed();
    }

    // Zooms by a factor; the value at `center` stays where it is on the screen.
    zoom(factor, center) {
      const span = Math.min(this.axis.end, Math.max(this.axis.least, this.span * factor));
      const low = center - ((center - this.low) / this.span) * span;
      this.show(low, low + span);
    }

    pan(share) {
      this.show(this.low + share * this.span, this.high + share * this.span);
    }

    showAll() { this.show(0, this.axis.end); }

    setAxis(name) {
      const first = this.axis.moment(this.low);
      const last = this.axis.moment(this.high);
      const whole = this.whole;
      this.axis = this.axes[name];
      if (whole) this.showAll(); else this.show(this.axis.value(first), this.axis.value(last));
    }

    setGrouping(id) {
      this.grouping = this.groupings.find((grouping) => grouping.id === id);
      this.group = -1;
      this.changed();
    }

    // The grouping that colours blocks: that of the stack, if it is one of blocks.
    get blockGrouping() {
      return this.grouping.id === "use" ? this.groupings[0] : this.grouping;
    }

    choose(block) {
      this.block = block;
      this.changed();
    }

    // Brings one group to the front; the same again lets all be equal.
    emphasize(group) {
      this.group = this.group === group ? -1 : group;
      this.changed();
    }
  }

  lab.View = View;
})(window.lab ??= {});
