// Which client holds how much of which class: the bubble chart of the field, cells where there is no room for bubbles.
import { $, canvasIn, clipped, css, empty, hideTip, onResize, plural, replace, showTip } from "./dom.js";

export class DataPanel {
  constructor(state) {
    this.state = state;
    this.key = "";
    onResize($("data-chart"), () => this.paint());
  }

  draw() {
    const key = [...this.state.clients.values()].map((client) => `${client.id}:${client.label_counts?.length}`).join();
    if (key === this.key && this.state.clients.size) return;
    this.key = key;
    this.paint();
  }

  /** As wide as the longest name of a class, within reason. */
  labelWidth(wrap, classes) {
    const context = document.createElement("canvas").getContext("2d");
    context.font = "11px Inter, system-ui, sans-serif";
    const names = Array.from({ length: classes }, (_, number) => context.measureText(this.state.className(number)).width);
    return Math.min(Math.max(...names) + 20, 120, wrap.clientWidth * 0.28);
  }

  paint() {
    const wrap = $("data-chart");
    const clients = [...this.state.clients.values()].filter((client) => client.label_counts?.length).sort((a, b) => a.id - b.id);
    if (!clients.length) {
      replace(wrap, empty("The split is not known yet", this.state.hasStoredRounds ? "The files of this run do not have it: it was made before 0.2.0." : "Clients tell how many samples of each class they hold when they join."));
      return;
    }
    const classes = clients[0].label_counts.length;
    const most = Math.max(...clients.flatMap((client) => client.label_counts), 1);
    const row = Math.max(5, Math.min(30, 560 / classes)), label = this.labelWidth(wrap, classes);
    const { canvas, context, width, height } = canvasIn(wrap, classes * row + 26, `Samples of ${plural(classes, "class")} on ${plural(clients.length, "client")}`.replace("classs", "classes"));
    const column = (width - label) / clients.length;
    const largest = Math.min(row, column) / 2 - 0.5;
    context.font = "11px Inter, system-ui, sans-serif";
    const every = Math.ceil(11 / row);
    for (let number = 0; number < classes; number++) {
      if (number % every) continue;
      context.fillStyle = css("--muted");
      context.fillText(clipped(context, this.state.className(number), label - 12), 0, number * row + row / 2 + 4);
    }
    context.strokeStyle = css("--line");
    if (row >= 14) for (let number = 0; number < classes; number++) { context.beginPath(); context.moveTo(label, number * row + row / 2); context.lineTo(width, number * row + row / 2); context.stroke(); }
    context.fillStyle = css("--accent");
    clients.forEach((client, index) => {
      client.label_counts.forEach((count, number) => {
        if (!count) return;
        const x = label + (index + 0.5) * column, y = (number + 0.5) * row, share = Math.sqrt(count / most);
        if (largest >= 3) { context.globalAlpha = 0.85; context.beginPath(); context.arc(x, y, Math.max(1, share * largest), 0, 7); context.fill(); }
        else { context.globalAlpha = 0.15 + 0.85 * share; context.fillRect(x - column / 2, y - row / 2, Math.max(1, column), row - 0.5); }
      });
    });
    context.globalAlpha = 1;
    context.fillStyle = css("--muted");
    context.textAlign = "center";
    const step = Math.ceil(26 / column);
    clients.forEach((client, index) => { if (index % step === 0) context.fillText(String(client.id), label + (index + 0.5) * column, height - 6); });
    context.textAlign = "left";
    const held = clients.map((client) => client.label_counts.filter((count) => count > 0).length).sort((a, b) => a - b);
    const samples = clients.map((client) => client.label_counts.reduce((sum, count) => sum + count, 0));
    replace($("data-note"), `${plural(clients.length, "client")}, ${samples.reduce((sum, count) => sum + count, 0).toLocaleString("en")} training samples; a client holds ${held[0]} to ${held.at(-1)} of ${classes} classes and ${Math.min(...samples).toLocaleString("en")} to ${Math.max(...samples).toLocaleString("en")} samples`);
    canvas.onmousemove = (event) => {
      const client = clients[Math.floor((event.offsetX - label) / column)], number = Math.floor(event.offsetY / row);
      if (!client || number < 0 || number >= classes) { hideTip(); return; }
      showTip(event, this.state.name(client.id), `${this.state.className(number)}: ${plural(client.label_counts[number], "sample")}`);
    };
    canvas.onmouseleave = hideTip;
  }
}
