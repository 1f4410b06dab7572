"use strict";
// What the reserved bytes are used for, at every moment: the fragmentation by cause. A grouping
// like the others, but of all reserved bytes, not of blocks. Provides lab.byUse and lab.holes.

(function (lab) {
  const { STEP, Series } = lab;
  const SMALL = 0;
  const PRIVATE = 2;

  // In the order of the stack. A gap is free memory between live blocks of a segment in use.
  const USES = [
    ["asked for", "--asked", "bytes that live tensors asked for"],
    ["rounding", "--rounding", "what blocks have beyond the size asked for"],
    ["waiting for streams", "--waiting", "freed, but work of another stream may still use it"],
    ["gaps, small pool", "--gap-small", "free between live blocks; serves requests up to 1 MiB only"],
    ["gaps, large pool", "--gap-large", "free between live blocks; can't be given back"],
    ["private pools", "--gap-private", "free in pools of graphs or of the user; serves only those"],
    ["empty segments", "--empty", "wholly free; given back to the device before a request fails"],
  ].map(([name, colour, meaning]) => ({ name, colour, meaning }));
  const [ASKED, ROUNDING, WAIT, GAP_SMALL, GAP_LARGE, IN_PRIVATE, EMPTY] = USES.keys();

  // Follows each unit's size and live bytes while the steps go by.
  class UseBuilder {
    constructor(recording) {
      this.recording = recording;
      const count = recording.blocks.count;
      this.series = new Series(recording.moments, USES.length, 4 * count);
      this.size = new Float64Array(recording.units.place.length);
      this.used = new Float64Array(recording.units.place.length);
      this.blocks = new Int32Array(recording.units.place.length);
    }

    // Where the free bytes of a unit belong.
    place(unit) {
      const pool = this.recording.units.pool[unit];
      if (pool === PRIVATE) return IN_PRIVATE;
      if (this.blocks[unit] === 0) return EMPTY;
      return pool === SMALL ? GAP_SMALL : GAP_LARGE;
    }

    // Applies a change to a unit, and books the change of its free bytes where they now belong.
    change(moment, unit, bytes, used, blocks) {
      if (unit < 0) return;
      this.book(moment, unit, -1);
      this.size[unit] += bytes;
      this.used[unit] += used;
      this.blocks[unit] += blocks;
      this.book(moment, unit, 1);
    }

    book(moment, unit, sign) {
      const free = this.size[unit] - this.used[unit];
      if (free === 0) return;
      this.series.add(moment, this.place(unit), sign * free);
    }

    hold(moment, block, sign) {
      const { size, held } = this.recording.blocks;
      const rounding = held[block] - size[block];
      this.series.add(moment, ASKED, sign * size[block]);
      if (rounding > 0) this.series.add(moment, ROUNDING, sign * rounding);
    }

    step(moment, kind, row) {
      const { pieces } = this.recording;
      if (kind === STEP.pieceBegin) this.change(moment, pieces.unit[row], pieces.size[row], 0, 0);
      if (kind === STEP.pieceEnd) this.change(moment, pieces.unit[row], -pieces.size[row], 0, 0);
      if (kind === STEP.blockBegin) this.begin(moment, row);
      if (kind === STEP.blockWait) this.wait(moment, row);
      if (kind === STEP.blockEnd) this.end(moment, row);
    }

    begin(moment, block) {
      const { unit, held } = this.recording.blocks;
      this.change(moment, unit[block], 0, held[block], 1);
      this.hold(moment, block, 1);
    }

    waits(block) {
      return this.recording.blocks.requested[block] < this.recording.blocks.end[block];
    }

    wait(moment, block) {
      if (!this.waits(block)) return;
      this.hold(moment, block, -1);
      this.series.add(moment, WAIT, this.recording.blocks.held[block]);
    }

    end(moment, block) {
      const { unit, held } = this.recording.blocks;
      this.change(moment, unit[block], 0, -held[block], -1);
      if (this.waits(block)) this.series.add(moment, WAIT, -held[block]);
      else this.hold(moment, block, -1);
    }
  }

  function byUse(recording) {
    return {
      id: "use",
      label: "use of reserved memory",
      groups: USES,
      get series() {
        if (!this.built) {
          const builder = new UseBuilder(recording);
          recording.eachStep((moment, kind, row) => builder.step(moment, kind, row));
          this.built = builder.series.finish();
        }
        return this.built;
      },
    };
  }

  // The free spans at a moment, on the map: { place, bytes, unit } by place.
  // `mapped` are the live blocks by place. Spans end where a unit does: no block crosses that.
  function holes(recording, moment, mapped) {
    const { blocks, pieces } = recording;
    const start = (piece) => recording.piecePlace(piece);
    const order = recording.livePieces(moment).sort((a, b) => start(a) - start(b));
    const found = [];
    const add = (place, bytes, unit) => {
      const last = found[found.length - 1];
      if (last && last.unit === unit && last.place + last.bytes === place) last.bytes += bytes;
      else found.push({ place, bytes, unit });
    };
    let at = 0;
    for (const piece of order) {
      let place = recording.piecePlace(piece);
      const stop = place + pieces.size[piece];
      while (at < mapped.length) {
        const begin = blocks.place[mapped[at]];
        if (begin >= stop) break;
        if (begin > place) add(place, begin - place, pieces.unit[piece]);
        place = Math.max(place, begin + blocks.held[mapped[at]]);
        // A block that goes on in the next mapped range covers that range's beginning as well.
        if (place > stop) break;
        at += 1;
      }
      if (place < stop) add(place, stop - place, pieces.unit[piece]);
    }
    return found;
  }

  lab.byUse = byUse;
  lab.holes = holes;
})(window.lab ??= {});
