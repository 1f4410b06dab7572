"use strict";
// Numbers as people read them, and the ticks of an axis. Provides lab.format.

(function (lab) {
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

  function bytes(value) {
    let unit = 0;
    while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
    const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    return value.toFixed(digits) + " " + UNITS[unit];
  }

  function count(value) {
    return value.toLocaleString("en");
  }

  function share(part, whole) {
    const percent = whole ? (100 * part) / whole : 0;
    return percent.toFixed(percent > 0 && percent < 10 ? 1 : 0) + "%";
  }

  function duration(micros) {
    if (micros < 1e3) return micros.toFixed(0) + " µs";
    if (micros < 1e6) return (micros / 1e3).toFixed(micros < 1e4 ? 2 : 1) + " ms";
    if (micros < 6e7) return (micros / 1e6).toFixed(2) + " s";
    const seconds = Math.floor(micros / 1e6);
    return Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
  }

  function address(value) {
    return "0x" + value.toString(16);
  }

  // Steps that read well: 1, 2 or 5 times a power of ten; powers of two for bytes.
  function step(span, wanted, binary) {
    const raw = Math.max(span / wanted, Number.MIN_VALUE);
    if (binary) return Math.max(1, Math.pow(2, Math.round(Math.log2(raw))));
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  }

  function ticks(low, high, wanted, binary) {
    const size = step(high - low || 1, wanted, binary);
    const list = [];
    for (let t = Math.ceil(low / size) * size; t <= high; t += size) list.push(t);
    return list;
  }

  lab.format = { bytes, count, share, duration, address, ticks };
})(window.lab ??= {});
