// The folded step as an axis of seconds, which both pictures share: what is in view, where it is in pixels.

const GUTTER = 118; // pixels left of the axis, for labels
const MARGIN = 10; // pixels right of it
const SHORTEST = 1e-3; // of the whole step: no closer look than that

class Axis {
  constructor(end) {
    this.end = end || 1;
    this.from = 0;
    this.to = this.end;
    this.cursor = null; // seconds under the pointer
    this.drawings = [];
  }

  get isWhole() { return this.from === 0 && this.to === this.end; }

  x(seconds, width) { return GUTTER + (seconds - this.from) / (this.to - this.from) * (width - GUTTER - MARGIN); }

  seconds(x, width) { return this.from + (x - GUTTER) / (width - GUTTER - MARGIN) * (this.to - this.from); }

  show(from, to) {
    const length = Math.min(this.end, Math.max(to - from, this.end * SHORTEST));
    this.from = Math.min(Math.max(0, from), this.end - length);
    this.to = length === this.end ? this.end : this.from + length;
    this.redraw();
  }

  zoom(at, factor) { this.show(at - (at - this.from) * factor, at + (this.to - at) * factor); }

  point(seconds) {
    this.cursor = seconds;
    this.redraw();
  }

  redraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.drawings.forEach((draw) => draw());
    });
  }

  ticks(count) { return ticks(this.from, this.to, count); }
}

// Round values from `from` to `to`, about `count` of them.
function ticks(from, to, count) {
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((it) => it * power).find((it) => it >= rough);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, index) => (first + index) * step);
}

function secondsText(value) {
  const [unit, name] = Math.abs(value) >= 1 ? [1, "s"] : Math.abs(value) >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return value ? `${+(value / unit).toPrecision(4)} ${name}` : "0";
}

function sizeText(bytes) {
  const [unit, name] = bytes >= 2 ** 30 / 100 ? [2 ** 30, "GiB"] : [2 ** 20, "MiB"];
  return bytes ? `${(bytes / unit).toFixed(2)} ${name}` : "0";
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name.replaceAll(" ", "-")}`).trim();
}
