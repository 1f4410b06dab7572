"use strict";
// Canvases that stay sharp and follow the colour scheme, and small DOM makers. Provides lab.canvas.

(function (lab) {
  // Colours come from the style, so that light and dark have one home; read once a scheme.
  let colours = new Map();
  let scheme = 0;

  function colour(name) {
    if (!colours.has(name)) {
      colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return colours.get(name);
  }

  function onScheme(redraw) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      colours = new Map();
      scheme += 1;
      redraw();
    });
  }

  // A colour as one pixel of an ImageData, mixed with the paper where `strength` is below one.
  function pixel(name, strength = 1) {
    const [front, back] = [colour(name), colour("--panel")].map((hex) => parseInt(hex.slice(1), 16));
    const part = (shift) => [(front >> shift) & 255, (back >> shift) & 255];
    const mix = (shift) => Math.round(part(shift)[0] * strength + part(shift)[1] * (1 - strength));
    return ((255 << 24) | (mix(0) << 16) | (mix(8) << 8) | mix(16)) >>> 0;
  }

  // Remembers what a drawing was made of, so that it is made again only when that has changed.
  class Memo {
    stale(...parts) {
      const key = [scheme, ...parts].join();
      const changed = key !== this.key;
      this.key = key;
      return changed;
    }
  }

  // A canvas in a host: `begin()` returns a context in CSS pixels, cleared, as large as the host.
  // Several in one host lie on each other.
  class Surface {
    constructor(host, height, onResize) {
      this.canvas = element("canvas", { ariaHidden: "true" });
      host.append(this.canvas);
      this.host = host;
      this.height = height;
      this.width = Math.max(host.clientWidth, 200);
      new ResizeObserver(() => {
        const width = Math.max(host.clientWidth, 200);
        if (width === this.width) return;
        this.width = width;
        onResize();
      }).observe(host);
    }

    get ratio() {
      return window.devicePixelRatio || 1;
    }

    begin() {
      const { ratio } = this;
      const { canvas, width, height } = this;
      const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
      if (canvas.width !== across || canvas.height !== down) {
        Object.assign(canvas, { width: across, height: down });
        canvas.style.height = height + "px";
      }
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
      return context;
    }

    // The pointer's place in CSS pixels of the canvas.
    locate(event) {
      const box = this.canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    }
  }

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function swatch(colourName) {
    const made = element("span", { className: "swatch" });
    made.style.setProperty("--swatch", `var(${colourName})`);
    return made;
  }

  // A box near the pointer; it stays inside its host.
  class Tip {
    constructor(host) {
      this.host = host;
      this.box = element("div", { className: "tip", hidden: true, ariaHidden: "true" });
      host.append(this.box);
    }

    show(x, y, ...children) {
      this.box.replaceChildren(...children);
      this.box.hidden = false;
      const { clientWidth: width } = this.host;
      const left = x > width / 2 ? x - this.box.offsetWidth - 14 : x + 14;
      this.box.style.left = Math.max(0, Math.min(left, width - this.box.offsetWidth)) + "px";
      this.box.style.top = y + "px";
    }

    hide() {
      this.box.hidden = true;
    }
  }

  // A level line from one x to another.
  function level(context, from, to, y) {
    context.beginPath();
    context.moveTo(from, y);
    context.lineTo(to, y);
    context.stroke();
  }

  function text(context, value, x, y, align, colourName) {
    context.textAlign = align;
    context.fillStyle = colour(colourName || "--muted");
    context.fillText(value, x, y);
  }

  // Text over a drawing: a rim in the paper's colour keeps it readable.
  function label(context, value, x, y, align) {
    context.textAlign = align;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = colour("--panel");
    context.strokeText(value, x, y);
    context.fillStyle = colour("--ink");
    context.fillText(value, x, y);
  }

  lab.canvas = { Memo, Surface, Tip, colour, element, label, level, onScheme, pixel, swatch, text };
})(window.lab ??= {});
