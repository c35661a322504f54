// uPlot with this page's look, and one way to make and refresh a chart.
/* global uPlot */
import { css, empty, onResize, replace } from "./dom.js";

const axis = (extra) => ({
  stroke: css("--muted"), font: "11px Inter, system-ui, sans-serif", grid: { stroke: css("--line"), width: 1 },
  ticks: { show: false }, gap: 6, ...extra,
});

/** Points of a curve below which each has a marker. */
export const FEW = 3;
export const wholeRounds = (u, splits) => splits.map((value) => (Number.isInteger(value) ? value : ""));

/** Keeps one uPlot in `target`; `build(data)` returns its options, and it is rebuilt when its shape or the theme changes. */
export class LineChart {
  constructor(target, { label, series, y = {}, x = {}, hooks = {}, scaleY = {}, bands = [] }) {
    Object.assign(this, { target, label, series, y, x, hooks, scaleY, bands });
    this.plot = null;
    this.data = null;
    this.shape = "";
    onResize(target, () => this.rebuild());
  }

  /** `data` is [x, ...ys]; without points the chart says why it is empty. */
  draw(data, emptyTitle, emptyText) {
    this.data = data;
    if (!data[0].length) {
      this.destroy();
      replace(this.target, empty(emptyTitle, emptyText));
      return;
    }
    if (!this.plot || this.shapeNow() !== this.shape) this.rebuild();
    else this.plot.setData(data);
  }

  /** What a plot is built for; a curve of few points has markers. */
  shapeNow() { return `${this.data.length}:${this.data[0].length < FEW}:${this.target.clientWidth}`; }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
  }

  rebuild() {
    if (!this.data || !this.data[0].length || !this.target.clientWidth) return;
    this.destroy();
    this.target.replaceChildren();
    this.shape = this.shapeNow();
    const series = typeof this.series === "function" ? this.series() : this.series;
    this.plot = new uPlot({
      width: this.target.clientWidth,
      height: this.target.clientHeight,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: false, ...this.scaleX }, y: { ...this.scaleY } },
      axes: [axis({ values: wholeRounds, size: 28, ...this.x }), axis({ size: 46, ...this.y })],
      series: [{}, ...series],
      bands: this.bands.map((band) => ({ ...band, fill: css("--band") })),
      hooks: this.hooks,
    }, this.data, this.target);
    this.plot.root.setAttribute("role", "img");
    this.plot.root.setAttribute("aria-label", this.label);
  }
}

export const line = (colour, extra = {}) => ({ stroke: () => css(colour), width: 1.75, points: { show: false }, spanGaps: true, ...extra });
/** A marker for curves of few points, which a line alone would hide. */
export const marked = (colour, count) => line(colour, { points: { show: count < 2, size: 7, fill: css(colour) } });
