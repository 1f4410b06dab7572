"use strict";
// Starts the page: reads the data, builds the parts, and connects the controls.

(function (lab) {
  const { element, swatch } = lab.canvas;
  const byId = (id) => document.getElementById(id);

  // One radio button for each grouping that divides this recording.
  function groupingChoice(view) {
    for (const { id, label } of view.groupings) {
      const checked = id === view.grouping.id;
      const input = element("input", { type: "radio", name: "grouping", value: id, checked });
      input.addEventListener("change", () => view.setGrouping(id));
      byId("grouping").append(element("label", {}, input, element("span", {}, label)));
    }
  }

  function axisChoice(view) {
    for (const input of document.querySelectorAll('input[name="axis"]')) {
      input.addEventListener("change", () => view.setAxis(input.value));
    }
  }

  function legend(view) {
    const draw = () => {
      if (draw.shown === view.grouping) return;
      draw.shown = view.grouping;
      const used = view.grouping.groups.filter((_, g) => view.grouping.series.used[g]);
      const items = used.map((group) => element("li", {}, swatch(group.colour), group.name));
      const line = element("span", { className: "swatch line" });
      byId("legend").replaceChildren(...items, element("li", {}, line, "reserved"));
    };
    view.listeners.push(draw);
  }

  // Buttons that lead to moments worth looking at.
  function jumps(view) {
    const { texts, ooms } = view.recording;
    const add = (label, action) => {
      const button = element("button", { type: "button" }, label);
      button.addEventListener("click", () => view.goTo(action()));
      byId("jumps").append(button);
    };
    const failures = ooms.moment;
    for (const { label, moment } of texts.jumps) add(label, () => moment);
    if (failures.length === 1) add("out of memory", () => failures[0]);
    if (failures.length < 2) return;
    add("‹ out of memory", () => failures.findLast((m) => m < view.moment) ?? failures[0]);
    add("out of memory ›", () => failures.find((m) => m > view.moment) ?? failures.at(-1));
  }

  function zoomButtons(view) {
    const here = () => view.axis.value(view.moment);
    byId("zoom-in").addEventListener("click", () => view.zoom(1 / 1.6, here()));
    byId("zoom-out").addEventListener("click", () => view.zoom(1.6, here()));
    byId("zoom-all").addEventListener("click", () => view.showAll());
    byId("previous").addEventListener("click", () => view.goTo(view.moment - 1));
    byId("next").addEventListener("click", () => view.goTo(view.moment + 1));
  }

  function momentParts() {
    return {
      title: byId("moment-title"), event: byId("moment-event"), scrub: byId("scrub"),
      holders: byId("holders"), holderHead: byId("holder-head"), uses: byId("uses"),
      bar: byId("use-bar"), chosen: byId("chosen"),
    };
  }

  function strategies(recording) {
    const hosts = document.querySelectorAll(".strategy-chart");
    return new lab.Strategies(hosts, recording, recording.texts.peakReserved);
  }

  async function start() {
    const recording = new lab.Recording(await lab.columns.unpack(byId("lab-data").textContent));
    const view = new lab.View(recording, lab.groupings(recording));
    groupingChoice(view);
    axisChoice(view);
    legend(view);
    jumps(view);
    zoomButtons(view);
    const timeline = new lab.Timeline(byId("timeline"), view);
    new lab.TimelineHand(timeline);
    const overview = new lab.Overview(byId("overview"), view);
    const map = new lab.SegmentMap(byId("map"), byId("map-reading"), view);
    const moment = new lab.Moment(momentParts(), view);
    const replays = strategies(recording);
    replays.draw();
    lab.canvas.onScheme(() => { view.changed(); replays.draw(); });
    lab.page = { recording, view, timeline, overview, map, moment, replays };
    view.changed();
  }

  function fail(error) {
    const box = byId("trouble");
    box.hidden = false;
    box.textContent = `The charts could not be drawn: ${error.message}. ` +
      "The figures above and the tables below are complete.";
    throw error;
  }

  lab.ready = start().then(() => {
    document.body.dataset.ready = "yes";
  }, fail);
})(window.lab ??= {});
