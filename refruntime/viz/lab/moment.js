"use strict";
// The chosen moment in words and tables: what happened, who holds how much, what the reserved bytes
// are used for, and the chosen block with its stack. Provides lab.Moment.

(function (lab) {
  const { element, swatch } = lab.canvas;
  const { bytes, count, share, duration } = lab.format;
  const ROWS = 14;
  const IDLE = "Choose a block on the timeline, the map or in the table " +
    "to see who allocated it, and when.";

  function row(head, cells, className = "") {
    const first = element("th", { scope: "row" }, head);
    return element("tr", { className }, first, ...cells.map((cell) => element("td", {}, cell)));
  }

  function total(list) {
    return list.reduce((sum, { bytes: amount }) => sum + amount, 0);
  }

  class Moment {
    // `parts` are the page's elements: title, event, scrub, holders, uses, bar, chosen, ...
    constructor(parts, view) {
      Object.assign(this, { parts, view, recording: view.recording });
      this.memo = new lab.canvas.Memo();
      this.rows = ROWS;
      this.use = view.groupings[view.groupings.length - 1];
      parts.scrub.max = this.recording.moments - 1;
      parts.scrub.addEventListener("input", () => view.goTo(Number(parts.scrub.value)));
      view.listeners.push(() => this.draw());
    }

    draw() {
      const { moment, grouping, group, block } = this.view;
      if (this.memo.stale(moment, grouping.id, group, this.rows)) {
        this.drawHead();
        this.drawHolders();
        this.drawUses();
      }
      if (this.block !== block) this.drawChosen(block);
    }

    drawHead() {
      const { parts, recording } = this;
      const { moment, blockGrouping } = this.view;
      const happened = lab.words.happened(recording, blockGrouping, moment);
      parts.title.textContent = `${recording.momentName(moment)} of ${count(recording.moments - 1)}`;
      parts.event.textContent = `${duration(recording.time[moment])} after the start. ${happened}`;
      parts.scrub.value = moment;
      parts.scrub.ariaValueText = parts.title.textContent;
    }

    // ------------------------------------------------------------------------- who holds it

    drawHolders() {
      const { parts } = this;
      const grouping = this.view.blockGrouping;
      const holders = this.holders(grouping);
      const all = total(holders);
      const shown = holders.slice(0, this.rows);
      parts.holderHead.textContent = "by " + grouping.label;
      parts.holders.replaceChildren(...shown.map((holder) => this.holderRow(grouping, holder, all)));
      if (holders.length > ROWS) parts.holders.append(this.restRow(holders.slice(this.rows), all));
    }

    // What each key of a grouping holds at the moment, most bytes first.
    holders(grouping) {
      const { held } = this.recording.blocks;
      const { moment } = this.view;
      const found = new Map();
      for (const block of this.recording.live(moment)) {
        const key = grouping.key(block, moment);
        const holder = found.get(key) || { key, bytes: 0, blocks: 0, largest: block };
        holder.bytes += held[block];
        holder.blocks += 1;
        if (held[block] > held[holder.largest]) holder.largest = block;
        found.set(key, holder);
      }
      return [...found.values()].sort((a, b) => b.bytes - a.bytes);
    }

    holderRow(grouping, holder, all) {
      const { view } = this;
      const group = grouping.groupOf(holder.key);
      const { colour } = grouping.groups[group];
      const button = this.button(holder.key, () => this.pick(grouping, group, holder),
        swatch(colour), grouping.keyName(holder.key));
      button.ariaPressed = view.grouping === grouping && view.group === group;
      button.title = "show its largest block and its stack; bring its colour to the front";
      const largest = bytes(this.recording.blocks.held[holder.largest]);
      return row(button, [bytes(holder.bytes), share(holder.bytes, all), count(holder.blocks), largest]);
    }

    // What the table leaves out, in one row; its button shows all, or few again.
    restRow(rest, all) {
      const label = rest.length ? `${count(rest.length)} more` : "fewer";
      const button = this.button("rest", () => {
        this.rows = rest.length ? Infinity : ROWS;
        this.view.changed();
      }, label);
      const blocks = rest.reduce((sum, holder) => sum + holder.blocks, 0);
      const cells = rest.length ? [bytes(total(rest)), share(total(rest), all), count(blocks), ""] : [];
      return row(button, cells, "rest");
    }

    // Redrawing replaces the button that was pressed: the focus goes to the one in its place.
    button(key, action, ...children) {
      const made = element("button", { type: "button", className: "holder" }, ...children);
      made.dataset.key = key;
      made.addEventListener("click", () => {
        action();
        requestAnimationFrame(() => this.parts.holders.querySelector(`[data-key="${key}"]`)?.focus());
      });
      return made;
    }

    pick(grouping, group, holder) {
      this.view.choose(holder.largest);
      if (this.view.grouping === grouping) this.view.emphasize(group);
    }

    // ------------------------------------------------------------------------ where it goes

    drawUses() {
      const { parts } = this;
      const uses = this.uses();
      const all = total(uses);
      parts.bar.replaceChildren(...uses.map((use) => this.usePart(use, all)));
      parts.bar.ariaLabel = uses.map((use) => `${use.name} ${share(use.bytes, all)}`).join(", ");
      parts.uses.replaceChildren(...uses.map((use) => this.useRow(use, all)));
    }

    uses() {
      const { groups, series } = this.use;
      const state = series.at(this.view.moment, new Float64Array(groups.length));
      return groups.map((group, g) => ({ ...group, bytes: state[g] })).filter((use) => use.bytes > 0);
    }

    usePart(use, all) {
      const part = element("span", { title: `${use.name}: ${bytes(use.bytes)}` });
      part.style.width = (100 * use.bytes) / all + "%";
      part.style.background = `var(${use.colour})`;
      return part;
    }

    useRow(use, all) {
      const name = element("span", { className: "use" }, swatch(use.colour), use.name);
      const head = element("div", {}, name, element("small", {}, use.meaning));
      return row(head, [bytes(use.bytes), share(use.bytes, all)]);
    }

    // ----------------------------------------------------------------------- the chosen block

    drawChosen(block) {
      this.block = block;
      const { chosen } = this.parts;
      if (block < 0) {
        chosen.replaceChildren(element("p", { className: "idle" }, IDLE));
        return;
      }
      const facts = lab.words.facts(this.recording, block).map(([name, value]) =>
        element("div", {}, element("dt", {}, name), element("dd", {}, value)));
      const list = element("dl", { className: "facts" }, ...facts);
      chosen.replaceChildren(list, lab.words.stack(this.recording, block));
    }
  }

  lab.Moment = Moment;
})(window.lab ??= {});
