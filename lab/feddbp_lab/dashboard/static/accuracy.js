// Accuracy of every client and their mean, losses by term, and the gain over local training.
import { $, css, canvasIn, empty, hideTip, legend, onResize, percent, plural, replace, showTip } from "./dom.js";
import { FEW, LineChart, line } from "./charts.js";

const TERMS = ["c5", "c1", "c2", "c3", "c4", "c6"];

export class AccuracyPanel {
  constructor(state, select) {
    this.state = state;
    this.select = select;
    this.selected = null;
    this.hovered = null;
    this.chart = new LineChart($("accuracy-chart"), {
      label: "Mean accuracy over rounds, the middle 80 per cent of clients, and every client",
      series: () => [line("--s1", { width: 2.5, points: { show: this.points() } }), line("--band", { width: 0 }), line("--band", { width: 0 })],
      bands: [{ series: [3, 2] }],
      y: { values: (_, splits) => splits.map((value) => `${value} %`) },
      scaleY: { range: (_, low, high) => [Math.max(0, Math.floor((low - 4) / 10) * 10), Math.min(100, Math.ceil((high + 2) / 10) * 10)] },
      hooks: {
        drawAxes: [(u) => this.drawClients(u)],
        draw: [(u) => this.drawMarked(u)],
        ready: [(u) => {
          u.over.addEventListener("mousemove", (event) => this.hover(u, event));
          u.over.addEventListener("mouseleave", () => { hideTip(); this.mark(null); });
          u.over.addEventListener("click", () => this.hovered !== null && this.select(this.hovered));
        }],
      },
    });
    this.losses = new LineChart($("loss-chart"), {
      label: "Terms of the local loss over rounds, mean over clients",
      series: () => this.names.map((_, index) => line(index ? `--s${TERMS[index % TERMS.length].slice(1)}` : "--ink", { width: index ? 1.5 : 2.25, points: { show: this.few } })),
      scaleY: { distr: 3 },
      y: { values: (_, splits) => splits.map((value) => (value === null ? "" : Number(value.toPrecision(2)).toString())), size: 50 },
    });
    this.names = [];
    onResize($("gain-chart"), () => this.drawGain());
  }

  points() { return this.state.meanCurve().rounds.length < FEW; }

  draw() {
    const { rounds, mean, low, high } = this.state.meanCurve();
    const lowest = [...this.state.latest.values()].map((client) => client.now).filter((value) => value !== undefined);
    this.chart.scaleY.extra = lowest;
    this.chart.draw([rounds, mean, low, high], "No accuracy yet", "Clients evaluate at the start of every round; the first curve begins after round 1.");
    const count = this.state.accuracy.size;
    legend($("accuracy-legend"), rounds.length ? [["c1", "mean by samples"], ["band block", "middle 80 % of clients"], ["thin", `each of ${plural(count, "client")}`]] : []);
    const points = this.state.accuracyPoints();
    replace($("accuracy-note"), points ? `${points.last.mean.toFixed(1)} % ${this.state.shareOfClients(points.last)} after round ${points.last.round}; best ${points.best.mean.toFixed(1)} % after round ${points.best.round}` : "");
    this.drawLosses();
    this.drawGain();
  }

  drawLosses() {
    const { rounds, names, values } = this.state.lossCurves();
    const positive = values.map((row) => row.map((value) => (value > 0 ? value : null)));
    this.few = rounds.length < FEW;
    if (names.join() !== this.names.join()) this.losses.shape = "";
    this.names = names;
    this.losses.draw([rounds, ...positive], "No losses yet", "They arrive with the report on the first trained round.");
    legend($("loss-legend"), names.map((name, index) => [index ? TERMS[index % TERMS.length] : "ink", this.termName(name)]));
  }

  termName(name) {
    const names = this.state.run.loss_terms;
    return Object.hasOwn(names, name) ? names[name] : name.replaceAll("_", " ");
  }

  drawClients(u) {
    const context = u.ctx;
    context.save();
    context.beginPath();
    context.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    context.clip();
    context.lineWidth = devicePixelRatio || 1;
    context.strokeStyle = css("--thin");
    context.globalAlpha = this.state.accuracy.size > 100 ? 0.45 : 1;
    const newest = u.data[0].at(-1);
    for (const id of this.state.accuracy.keys()) this.trace(u, id, newest);
    context.restore();
  }

  trace(u, id, newest) {
    const context = u.ctx, curve = this.state.accuracy.get(id);
    context.beginPath();
    let begun = false;
    for (let round = this.state.firstShown(id); round < curve.length && round <= newest; round++) {
      if (curve[round] === undefined) continue;
      const x = u.valToPos(round, "x", true), y = u.valToPos(100 * curve[round], "y", true);
      begun ? context.lineTo(x, y) : context.moveTo(x, y);
      begun = true;
    }
    context.stroke();
  }

  drawMarked(u) {
    for (const [id, colour] of [[this.selected, "--s2"], [this.hovered, "--ink"]]) {
      if (!this.state.accuracy.has(id)) continue;
      u.ctx.save();
      u.ctx.lineWidth = 2 * (devicePixelRatio || 1);
      u.ctx.strokeStyle = css(colour);
      this.trace(u, id, u.data[0].at(-1));
      u.ctx.restore();
    }
  }

  hover(u, event) {
    const index = u.cursor.idx;
    if (index === null || index === undefined) return;
    const round = u.data[0][index], at = u.posToVal(u.cursor.top, "y");
    let nearest = null, distance = Infinity;
    for (const [id, curve] of this.state.accuracy) {
      if (curve[round] === undefined) continue;
      const off = Math.abs(100 * curve[round] - at);
      if (off < distance) { distance = off; nearest = id; }
    }
    const lines = [`after round ${round}`, `mean ${u.data[1][index].toFixed(1)} %`];
    if (nearest !== null) lines.push(`${this.state.name(nearest)}: ${percent(this.state.accuracy.get(nearest)[round])}`);
    const architecture = this.state.clients.get(nearest)?.architecture;
    if (architecture) lines.push(architecture);
    showTip(event, ...lines);
    this.mark(nearest);
  }

  mark(id) {
    if (id === this.hovered) return;
    this.hovered = id;
    this.chart.plot?.redraw(false, false);
  }

  setSelected(id) {
    this.selected = id;
    this.chart.plot?.redraw(false, false);
  }

  drawGain() {
    const pairs = Object.entries(this.state.baseline)
      .map(([id, local]) => ({ id: Number(id), local, now: this.state.latest.get(Number(id))?.now }))
      .filter((pair) => pair.now !== undefined)
      .sort((a, b) => (b.now - b.local) - (a.now - a.local));
    const hasBaseline = Object.keys(this.state.baseline).length > 0;
    $("gain-card").hidden = !hasBaseline;
    if (!hasBaseline) return;
    if (!pairs.length) { replace($("gain-chart"), empty("Nothing to compare yet", "The gain appears with the first accuracies.")); return; }
    drawPairs($("gain-chart"), pairs, this.state);
    const better = pairs.filter((pair) => pair.now > pair.local).length;
    const mean = pairs.reduce((sum, pair) => sum + pair.now - pair.local, 0) / pairs.length;
    legend($("gain-legend"), [["c5 block", "local"], ["c1 block", "this run"], ["none", `${better} of ${plural(pairs.length, "client")} better; ${mean >= 0 ? "+" : "−"}${Math.abs(100 * mean).toFixed(1)} points on average`]]);
  }
}

/** l_s as L_s, ce_shared as CE shared. */
function drawPairs(wrap, pairs, state) {
  const { canvas, context, width, height } = canvasIn(wrap, wrap.clientHeight, "Accuracy of every client in this run and in local training");
  const low = Math.floor(10 * Math.min(...pairs.map((pair) => Math.min(pair.local, pair.now)))) / 10;
  const left = 46, right = width - 10, top = 10, bottom = height - 24;
  const x = (index) => left + (right - left) * (index + 0.5) / pairs.length;
  const y = (value) => bottom - (bottom - top) * (value - low) / Math.max(0.1, 1 - low);
  context.fillStyle = css("--muted");
  context.strokeStyle = css("--line");
  for (let tick = low; tick <= 1.001; tick += 0.1) {
    context.beginPath(); context.moveTo(left, y(tick)); context.lineTo(right, y(tick)); context.stroke();
    context.textAlign = "right"; context.fillText(`${Math.round(100 * tick)} %`, left - 8, y(tick) + 4);
  }
  const radius = Math.max(2, Math.min(5, (right - left) / pairs.length / 3));
  pairs.forEach((pair, index) => {
    context.strokeStyle = css(pair.now >= pair.local ? "--s1" : "--s2");
    context.lineWidth = Math.min(2, radius);
    context.beginPath(); context.moveTo(x(index), y(pair.local)); context.lineTo(x(index), y(pair.now)); context.stroke();
    for (const [value, colour] of [[pair.local, "--s5"], [pair.now, "--s1"]]) {
      context.fillStyle = css(colour);
      context.beginPath(); context.arc(x(index), y(value), radius, 0, 7); context.fill();
    }
    if (pairs.length <= 40) { context.fillStyle = css("--muted"); context.textAlign = "center"; context.fillText(String(pair.id), x(index), height - 6); }
  });
  canvas.onmousemove = (event) => {
    const pair = pairs[Math.floor((event.offsetX - left) / (right - left) * pairs.length)];
    if (!pair) { hideTip(); return; }
    showTip(event, state.name(pair.id), `local ${percent(pair.local)}`, `this run ${percent(pair.now)}`);
  };
  canvas.onmouseleave = hideTip;
}
