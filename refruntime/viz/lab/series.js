"use strict";
// A stack of byte counts that changes at moments, answering in time that does not grow with the
// recording's length: the counts at any moment, and the highest moment of any range.
// Provides lab.Series.

(function (lab) {
  // Moments between two stored states: a state is found by replaying half of these on average.
  const STRIDE = 128;
  // Entries that one entry of the next level of the peak tree stands for.
  const FAN = 16;

  class Series {
    // For so many moments and groups. Changes are added in the order of their moments; `capacity`
    // says how many are to be expected.
    constructor(moments, groups, capacity) {
      this.moments = moments;
      this.groups = groups;
      this.count = 0;
      this.moment = new Int32Array(capacity);
      this.group = new Uint8Array(capacity);
      this.delta = new Float64Array(capacity);
      // Which groups ever hold anything.
      this.used = new Array(groups).fill(false);
    }

    add(moment, group, delta) {
      if (this.count === this.moment.length) this.grow();
      this.moment[this.count] = moment;
      this.group[this.count] = group;
      this.delta[this.count] = delta;
      this.count += 1;
      this.used[group] = true;
    }

    grow() {
      for (const name of ["moment", "group", "delta"]) {
        const larger = new this[name].constructor(2 * this[name].length + 16);
        larger.set(this[name]);
        this[name] = larger;
      }
    }

    // Ends the adding: totals, stored states and the peak tree.
    finish() {
      this.total = new Float64Array(this.moments);
      this.states = new Float64Array(Math.ceil(this.moments / STRIDE) * this.groups);
      this.next = new Int32Array(Math.ceil(this.moments / STRIDE));
      const state = new Float64Array(this.groups);
      let at = 0;
      let sum = 0;
      for (let m = 0; m < this.moments; m += 1) {
        for (; at < this.count && this.moment[at] === m; at += 1) {
          state[this.group[at]] += this.delta[at];
          sum += this.delta[at];
        }
        this.total[m] = sum;
        if (m % STRIDE === 0) {
          this.states.set(state, (m / STRIDE) * this.groups);
          this.next[m / STRIDE] = at;
        }
      }
      this.levels = this.peakTree();
      return this;
    }

    // Level 0 holds the highest moment of each FAN moments, level 1 of each FAN of those, ...
    peakTree() {
      const levels = [];
      let size = this.moments;
      let pick = (i) => i;
      while (size > 1) {
        const below = pick;
        const level = new Int32Array(Math.ceil(size / FAN));
        for (let i = 0; i < level.length; i += 1) {
          level[i] = this.highest(below, i * FAN, Math.min((i + 1) * FAN, size));
        }
        levels.push(level);
        pick = (i) => level[i];
        size = level.length;
      }
      return levels;
    }

    highest(pick, from, to) {
      let best = pick(from);
      for (let i = from + 1; i < to; i += 1) {
        const m = pick(i);
        if (this.total[m] > this.total[best]) best = m;
      }
      return best;
    }

    // The first moment in [from, to) with the highest total.
    peak(from, to) {
      const parts = [];
      let low = from;
      let high = to;
      let pick = (i) => i;
      for (const level of this.levels) {
        if (high - low <= 2 * FAN) break;
        const inner = Math.ceil(low / FAN);
        const outer = Math.floor(high / FAN);
        if (low < inner * FAN) parts.push(this.highest(pick, low, inner * FAN));
        if (outer * FAN < high) parts.push(this.highest(pick, outer * FAN, high));
        low = inner;
        high = outer;
        pick = (i) => level[i];
      }
      if (low < high) parts.push(this.highest(pick, low, high));
      return parts.reduce((best, m) => (this.better(m, best) ? m : best));
    }

    better(m, than) {
      return this.total[m] > this.total[than] || (this.total[m] === this.total[than] && m < than);
    }

    // Writes the count of each group at a moment into `out`.
    at(moment, out) {
      const state = Math.floor(moment / STRIDE);
      out.set(this.states.subarray(state * this.groups, (state + 1) * this.groups));
      for (let i = this.next[state]; i < this.count && this.moment[i] <= moment; i += 1) {
        out[this.group[i]] += this.delta[i];
      }
      return out;
    }
  }

  lab.Series = Series;
})(window.lab ??= {});
