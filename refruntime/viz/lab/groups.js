"use strict";
// The ways to divide memory: by category, allocating line, size or stream, and by what the reserved
// bytes are used for. Each is a list of groups (name and colour) with a Series made on first use.
// Provides lab.groupings.

(function (lab) {
  const { STEP, Series } = lab;
  // So many lines get a colour of their own; the rest share one, which keeps the stack readable.
  const COLOURED_LINES = 11;
  const SAMPLES = 24;
  const MIB = 1 << 20;
  const SIZE_CLASSES = [
    { below: MIB, name: "up to 1 MiB" },
    { below: 10 * MIB, name: "1 to 10 MiB" },
    { below: 100 * MIB, name: "10 to 100 MiB" },
    { below: 1024 * MIB, name: "100 MiB to 1 GiB" },
    { below: Infinity, name: "1 GiB and more" },
  ];
  const WAITING = { name: "waiting for streams", colour: "--waiting" };

  function tinted(name, number) {
    return { name, colour: "--tint-" + (number % 12) };
  }

  // A grouping of blocks. `key` names what a block belongs to at a moment (there may be thousands),
  // `groupOf` which group of the stack that key is drawn in.
  class Grouping {
    constructor(recording, { id, label, key, keyName, keyed, groups, groupOf }) {
      Object.assign(this, { recording, id, label, key, keyName, keyed, groups, groupOf });
      this.waiting = groups.indexOf(WAITING);
    }

    group(block, moment) {
      if (this.waiting >= 0 && this.recording.waits(block, moment)) return this.waiting;
      return this.groupOf(this.key(block, moment));
    }

    get series() {
      this.built ??= this.build();
      return this.built;
    }

    build() {
      const { recording } = this;
      const { held, requested, end } = recording.blocks;
      const series = new Series(recording.moments, this.groups.length, 2 * held.length);
      const current = new Uint8Array(held.length);
      const move = (moment, block, to) => {
        series.add(moment, current[block], -held[block]);
        series.add(moment, to, held[block]);
        current[block] = to;
      };
      recording.eachStep((moment, kind, row) => {
        if (kind === STEP.blockBegin) {
          current[row] = this.group(row, moment);
          series.add(moment, current[row], held[row]);
        } else if (kind === STEP.blockEnd) {
          series.add(moment, current[row], -held[row]);
        } else if (kind === STEP.blockWait && this.waiting >= 0 && requested[row] < end[row]) {
          move(moment, row, this.waiting);
        } else if (kind === STEP.tag) {
          const block = recording.tags.block[row];
          const to = this.group(block, moment);
          if (to !== current[block]) move(moment, block, to);
        }
      });
      return series.finish();
    }
  }

  // How long a key's bytes live on average, in moments.
  function steadiness(recording, key) {
    const { begin, end, held } = recording.blocks;
    const weight = new Map();
    for (let b = 0; b < held.length; b += 1) {
      const k = key(b, end[b] - 1);
      const sums = weight.get(k) || [0, 0];
      sums[0] += held[b] * (end[b] - begin[b]);
      sums[1] += held[b];
      weight.set(k, sums);
    }
    return (k) => (weight.has(k) ? weight.get(k)[0] / weight.get(k)[1] : 0);
  }

  // What lives longest lies lowest, so that the stack stands on a steady base.
  function steadyOrder(recording, key, keys) {
    const life = steadiness(recording, key);
    return keys.sort((a, b) => life(b) - life(a));
  }

  // A free that is completed by the very next event is no wait worth a colour.
  function waitingGroup(recording) {
    return recording.blocks.wait.some((wait) => wait > 1) ? [WAITING] : [];
  }

  function byCategory(recording) {
    const names = [...recording.texts.categories, "no category"];
    const used = new Set(recording.blocks.category);
    for (const category of recording.tags.category) used.add(category);
    const key = (block, moment) => {
      const category = recording.category(block, moment);
      return category < 0 ? names.length - 1 : category;
    };
    const present = names.map((_, i) => i).filter((i) => used.has(i < names.length - 1 ? i : -1));
    const keys = steadyOrder(recording, key, present);
    const place = new Map(keys.map((key, group) => [key, group]));
    return new Grouping(recording, {
      id: "category",
      label: "category",
      keyed: keys.length,
      key,
      keyName: (k) => names[k],
      groups: [...keys.map((k) => categoryGroup(names[k], k)), ...waitingGroup(recording)],
      groupOf: (k) => place.get(k),
    });
  }

  // The runtime's own categories have colours of their own in the style; others take the next free.
  function categoryGroup(name, number) {
    const own = getComputedStyle(document.documentElement).getPropertyValue("--" + name);
    return /^[a-z]+$/.test(name) && own ? { name, colour: "--" + name } : tinted(name, number);
  }

  // What each key holds at a moment.
  function amounts(recording, key, moment) {
    const found = new Map();
    for (const block of recording.live(moment)) {
      const k = key(block, moment);
      found.set(k, (found.get(k) || 0) + recording.blocks.held[block]);
    }
    return found;
  }

  // The most that each key holds, looked at where it counts and at even distances.
  function weights(recording, key) {
    const last = recording.moments - 1;
    const even = Array.from({ length: SAMPLES }, (_, i) => Math.round((i / (SAMPLES - 1)) * last));
    const weight = new Map();
    for (const moment of [...recording.texts.keyMoments, ...even]) {
      for (const [k, held] of amounts(recording, key, moment)) {
        weight.set(k, Math.max(held, weight.get(k) || 0));
      }
    }
    return weight;
  }

  function byLine(recording) {
    const key = (block) => recording.lineOf(block);
    const weight = weights(recording, key);
    weight.delete(-1);
    const ranked = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a));
    const tint = new Map(ranked.slice(0, COLOURED_LINES).map((k, rank) => [k, rank]));
    const keys = steadyOrder(recording, key, [...tint.keys()]);
    const place = new Map(keys.map((k, group) => [k, group]));
    const groups = keys.map((k) => tinted(lineName(recording, k), tint.get(k)));
    place.set(-1, groups.push({ name: lineName(recording, -1), colour: "--unknown" }) - 1);
    const rest = groups.push({ name: "other lines", colour: "--other" }) - 1;
    return new Grouping(recording, {
      id: "line",
      label: "line",
      keyed: recording.texts.lines.length,
      key,
      keyName: (k) => lineName(recording, k),
      groups: [...groups, ...waitingGroup(recording)],
      groupOf: (k) => place.get(k) ?? rest,
    });
  }

  function lineName(recording, line) {
    return line < 0 ? "no stack recorded" : recording.texts.lines[line];
  }

  function bySize(recording) {
    const { size } = recording.blocks;
    return new Grouping(recording, {
      id: "size",
      label: "size",
      keyed: SIZE_CLASSES.length,
      key: (block) => SIZE_CLASSES.findIndex((c) => size[block] < c.below),
      keyName: (key) => SIZE_CLASSES[key].name,
      groups: [...SIZE_CLASSES.map((c, i) => tinted(c.name, i)), ...waitingGroup(recording)],
      groupOf: (key) => key,
    });
  }

  function byStream(recording) {
    const names = recording.texts.streams;
    const last = Math.min(names.length, COLOURED_LINES + 1) - 1;
    const groups = names.slice(0, last + 1).map((name, i) => tinted("stream " + name, i));
    if (names.length > last + 1) groups[last] = { name: "other streams", colour: "--other" };
    return new Grouping(recording, {
      id: "stream",
      label: "stream",
      keyed: names.length,
      key: (block) => recording.blocks.stream[block],
      keyName: (key) => "stream " + names[key],
      groups: [...groups, ...waitingGroup(recording)],
      groupOf: (key) => Math.min(key, last),
    });
  }

  // The groupings that divide this recording at all, the most telling first.
  function groupings(recording) {
    const all = [byCategory(recording), byLine(recording), bySize(recording), byStream(recording)];
    const telling = all.filter((grouping) => grouping.keyed > 1);
    return [...(telling.length ? telling : [all[2]]), lab.byUse(recording)];
  }

  lab.groupings = groupings;
})(window.lab ??= {});
