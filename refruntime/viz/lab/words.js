"use strict";
// Events, blocks and free spans in words, and their stacks. Provides lab.words.

(function (lab) {
  const { element } = lab.canvas;
  const { bytes, share, duration, address } = lab.format;
  const POOLS = ["small pool", "large pool", "private pool"];

  // What kinds of steps are called; each gets the recording, its row, and the name of its owner.
  const SENTENCES = {
    [lab.STEP.blockBegin]: ({ blocks }, row, owner) => `${bytes(blocks.size[row])} allocated (${owner})`,
    [lab.STEP.blockEnd]: ({ blocks }, row, owner) => `${bytes(blocks.size[row])} freed (${owner})`,
    [lab.STEP.blockWait]: ({ blocks }, row) =>
      (blocks.requested[row] < blocks.end[row] ? `${bytes(blocks.size[row])} given back` : ""),
    [lab.STEP.pieceBegin]: ({ pieces }, row) => `${bytes(pieces.size[row])} reserved from the device`,
    [lab.STEP.pieceEnd]: ({ pieces }, row) => `${bytes(pieces.size[row])} returned to the device`,
    [lab.STEP.tag]: ({ tags, texts }, row) => `a block became ${texts.categories[tags.category[row]]}`,
  };

  // What the event did that led to a moment.
  function happened(recording, grouping, moment) {
    if (moment === 0) return "The state before the first event.";
    const { ooms, steps } = recording;
    const failed = ooms.moment.indexOf(moment);
    if (failed >= 0) return `A request of ${bytes(ooms.asked[failed])} failed: out of memory.`;
    const words = [];
    for (let i = steps.start[moment]; i < steps.start[moment + 1]; i += 1) {
      const { kind, row } = recording.step(i);
      const ofBlock = kind === lab.STEP.blockBegin || kind === lab.STEP.blockEnd;
      const owner = ofBlock ? grouping.keyName(grouping.key(row, moment)) : "";
      words.push(SENTENCES[kind](recording, row, owner));
    }
    const said = words.filter((word) => word);
    return said.length ? said.join("; ") + "." : "Nothing changed.";
  }

  // A block on the map: its size, what it belongs to, and the segment it lies in.
  function block(recording, grouping, moment, b) {
    const { size, held, address: at, unit } = recording.blocks;
    const rounding = held[b] > size[b] ? `, ${bytes(held[b] - size[b])} of rounding` : "";
    const waits = recording.waits(b, moment) ? ", waiting for streams" : "";
    return [
      `${bytes(size[b])} at ${address(at[b])}${rounding}`,
      grouping.keyName(grouping.key(b, moment)) + waits,
      unitWords(recording, moment, unit[b]),
    ];
  }

  function hole(recording, moment, span) {
    return [`free: ${bytes(span.bytes)} in one span`, unitWords(recording, moment, span.unit)];
  }

  function unitWords(recording, moment, unit) {
    const { blocks, pieces, units, texts } = recording;
    const size = sum(recording.livePieces(moment), pieces.unit, unit, pieces.size);
    const used = sum(recording.live(moment), blocks.unit, unit, blocks.held);
    const kind = units.expandable[unit] ? "an expandable segment" : "a segment";
    const stream = texts.unitStreams[unit];
    const where = `${POOLS[units.pool[unit]]}${stream === "0" ? "" : `, stream ${stream}`}`;
    return `in ${kind} of ${bytes(size)}, ${share(used, size)} in use (${where})`;
  }

  // The sum of amounts over the rows that belong to one owner.
  function sum(rows, owners, owner, amounts) {
    let total = 0;
    for (const row of rows) if (owners[row] === owner) total += amounts[row];
    return total;
  }

  // Name and value of what is known about a block.
  function facts(recording, b) {
    const { size, held, address: at, begin, end, stream } = recording.blocks;
    const when = (moment) => `${recording.momentName(moment)}, ${duration(recording.time[moment])}`;
    return [
      ["size", bytes(size[b]) + (held[b] > size[b] ? `, takes ${bytes(held[b])}` : "")],
      ["address", address(at[b])],
      ["allocated", begin[b] ? when(begin[b]) : "before the recording"],
      ["freed", end[b] < recording.moments ? when(end[b]) : "not before the recording ended"],
      ["stream", recording.texts.streams[stream[b]]],
    ];
  }

  // -------------------------------------------------------------------------------- stacks

  function frameItem({ name, file, line, own }) {
    const place = element("span", {}, `${file}:${line}`);
    return element("li", { className: own ? "own" : "" }, name + " ", place);
  }

  function stackOf(frames, properties) {
    const items = frames.length ? frames.map(frameItem) : [element("li", {}, "no stack recorded")];
    return element("ol", { className: "stack", ...properties }, ...items);
  }

  // All frames of a block's stack, the allocating call first; that of its line is marked.
  function stack(recording, b) {
    return stackOf(recording.framesOf(b), { tabIndex: 0, ariaLabel: "stack of the chosen block" });
  }

  // For the box beside the pointer: the line, and a few of its callers.
  function callers(recording, b, most) {
    const frames = recording.framesOf(b);
    const python = frames.filter((frame) => frame.file.endsWith(".py"));
    const told = python.length ? python : frames;
    const first = Math.max(0, told.findIndex((frame) => frame.own));
    return stackOf(told.slice(first, first + most), {});
  }

  lab.words = { block, callers, facts, happened, hole, stack };
})(window.lab ??= {});
