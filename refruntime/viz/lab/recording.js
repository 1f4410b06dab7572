"use strict";
// The recording as typed arrays, and the questions that everything else asks of it: which blocks
// live at a moment, which category they have, what changes between two moments.
// Moment 0 is the state before the recording, moment k that after its k-th event.
// Provides lab.Recording and lab.STEP.

(function (lab) {
  // Kinds of steps, in the order in which those of one moment apply.
  const STEP = { blockEnd: 0, pieceEnd: 1, pieceBegin: 2, blockBegin: 3, blockWait: 4, tag: 5 };
  const KINDS = 6;

  // The columns whose names start with a prefix, without it.
  function part(columns, prefix) {
    const found = {};
    for (const name in columns) {
      if (name.startsWith(prefix + ".")) found[name.slice(prefix.length + 1)] = columns[name];
    }
    return found;
  }

  // The first index whose value in a sorted array is above a bound.
  function upperBound(sorted, bound) {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= bound) low = middle + 1; else high = middle;
    }
    return low;
  }

  class Recording {
    constructor({ texts, columns }) {
      this.texts = texts;
      this.time = columns.time;
      this.moments = columns.time.length;
      this.blocks = this.readBlocks(part(columns, "block"));
      this.pieces = part(columns, "piece");
      this.units = part(columns, "unit");
      this.ooms = part(columns, "oom");
      this.marks = part(columns, "mark");
      this.tags = part(columns, "tag");
      this.stacks = part(columns, "stack");
      this.strategies = part(columns, "strategy");
      this.mapBytes = texts.mapBytes;
      this.blocks.place = this.blockPlaces();
      this.tagStart = this.startsOf(this.tags.block, this.blocks.count);
      this.steps = this.stepsByMoment();
      this.scratch = new Int32Array(this.blocks.count);
    }

    // Lengths travel as differences, which pack better; the page wants moments and whole sizes.
    readBlocks(columns) {
      const { begin, life, wait, size, extra } = columns;
      const count = begin.length;
      const end = begin.map((moment, b) => moment + life[b]);
      const requested = end.map((moment, b) => moment - wait[b]);
      const held = size.map((bytes, b) => bytes + extra[b]);
      return { ...columns, count, end, requested, held };
    }

    // For rows sorted by owner: where the rows of each owner start.
    startsOf(owner, owners) {
      const start = new Int32Array(owners + 1);
      for (const o of owner) start[o + 1] += 1;
      for (let o = 0; o < owners; o += 1) start[o + 1] += start[o];
      return start;
    }

    // A counting sort of everything that happens: items `row * KINDS + kind`, by moment.
    stepsByMoment() {
      const { blocks, pieces, tags, moments } = this;
      const lists = [];
      lists[STEP.blockEnd] = blocks.end;
      lists[STEP.pieceEnd] = pieces.end;
      lists[STEP.pieceBegin] = pieces.begin;
      lists[STEP.blockBegin] = blocks.begin;
      lists[STEP.blockWait] = blocks.requested;
      lists[STEP.tag] = tags.moment;
      const start = new Int32Array(moments + 2);
      for (const list of lists) for (const m of list) start[m + 1] += 1;
      for (let m = 0; m <= moments; m += 1) start[m + 1] += start[m];
      const next = start.slice();
      const item = new Int32Array(start[moments + 1]);
      lists.forEach((list, kind) => {
        for (let row = 0; row < list.length; row += 1) item[next[list[row]]++] = row * KINDS + kind;
      });
      return { start, item };
    }

    step(index) {
      const item = this.steps.item[index];
      return { kind: item % KINDS, row: Math.floor(item / KINDS) };
    }

    // Calls visit(moment, kind, row) for all that happens, in order.
    eachStep(visit) {
      const { start, item } = this.steps;
      for (let m = 0; m < this.moments; m += 1) {
        for (let i = start[m]; i < start[m + 1]; i += 1) {
          visit(m, item[i] % KINDS, Math.floor(item[i] / KINDS));
        }
      }
    }

    // The blocks in their segments at a moment, oldest first; valid until the next call.
    live(moment) {
      const { begin, end } = this.blocks;
      const last = upperBound(begin, moment);
      let count = 0;
      for (let b = 0; b < last; b += 1) if (end[b] > moment) this.scratch[count++] = b;
      return this.scratch.subarray(0, count);
    }

    livePieces(moment) {
      const { begin, end } = this.pieces;
      const last = upperBound(begin, moment);
      const found = [];
      for (let p = 0; p < last; p += 1) if (end[p] > moment) found.push(p);
      return found;
    }

    waits(block, moment) {
      return moment >= this.blocks.requested[block];
    }

    // Categories change when a block is tagged: the last tag up to the moment holds.
    category(block, moment) {
      let category = this.blocks.category[block];
      for (let t = this.tagStart[block]; t < this.tagStart[block + 1]; t += 1) {
        if (this.tags.moment[t] > moment) break;
        category = this.tags.category[t];
      }
      return category;
    }

    // Where each block stands on the segment map; -1 if its segment is not known.
    blockPlaces() {
      const { address, unit } = this.blocks;
      const { place, address: start } = this.units;
      return address.map((at, b) => (unit[b] < 0 ? -1 : place[unit[b]] + at - start[unit[b]]));
    }

    piecePlace(piece) {
      const unit = this.pieces.unit[piece];
      return this.units.place[unit] + this.pieces.address[piece] - this.units.address[unit];
    }

    // Blocks on the map at a moment, by place. Two numbers become one key, so that the fast sort
    // of numbers serves: grains of the place, then the block's position among the live ones.
    mapped(moment) {
      const { place } = this.blocks;
      const live = this.live(moment);
      const grain = Math.max(1, this.mapBytes / 2 ** 31);
      const room = 2 ** 22;
      const keys = new Float64Array(live.length);
      let count = 0;
      for (let i = 0; i < live.length; i += 1) {
        if (place[live[i]] >= 0) keys[count++] = Math.floor(place[live[i]] / grain) * room + i;
      }
      const sorted = keys.subarray(0, count).sort();
      const blocks = new Int32Array(count);
      for (let i = 0; i < count; i += 1) blocks[i] = live[sorted[i] % room];
      return blocks;
    }

    frame(index) {
      const { stacks, texts } = this;
      const file = texts.frames[stacks.file[index]];
      return { file, line: stacks.number[index], name: texts.frames[stacks.name[index]] };
    }

    // The line that a block's stack stands for, an index into texts.lines; -1 without a stack.
    lineOf(block) {
      const stack = this.blocks.stack[block];
      return stack < 0 ? -1 : this.stacks.line[stack];
    }

    // The frames of a block's stack, the allocating call first; `own` marks that of its line.
    framesOf(block) {
      const stack = this.blocks.stack[block];
      if (stack < 0) return [];
      const { start, frame, own } = this.stacks;
      const indices = frame.subarray(start[stack], start[stack + 1]);
      return Array.from(indices, (i) => ({ ...this.frame(i), own: i === own[stack] }));
    }

    // The moment that holds at a time: the last one not after it.
    momentAt(time) {
      return Math.max(0, upperBound(this.time, time) - 1);
    }

    // The event that led to a moment, counted from 1; the state before is "start".
    momentName(moment) {
      return moment === 0 ? "start" : "event " + lab.format.count(moment);
    }
  }

  lab.Recording = Recording;
  lab.STEP = STEP;
  lab.upperBound = upperBound;
})(window.lab ??= {});
