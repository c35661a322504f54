// The prototypes: a map of the classes that can be played round by round, their similarities, and what a client keeps.
import { $, canvasIn, clipped, css, empty, h, hideTip, legend, onResize, plural, replace, showTip } from "./dom.js";

const FRAME_MS = 450;

export class PrototypesPanel {
  constructor(state) {
    this.state = state;
    this.map = null;
    this.matrix = null;
    this.asked = -1;
    this.client = null;
    this.timer = null;
    this.follows = true;
    onResize($("map-chart"), () => this.paintMap());
    onResize($("matrix-chart"), () => this.paintMatrix());
    onResize($("own-channels"), () => this.paintChannels());
    $("map-round").addEventListener("input", () => { this.stop(); this.show(Number($("map-round").value)); });
    $("map-play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    $("own-client").addEventListener("change", () => this.selectClient(Number($("own-client").value)));
  }

  get api() { return document.body.dataset.api; }

  /** Asks for new prototypes when a round has closed since. */
  async draw() {
    const run = this.state.run;
    if (!run) return;
    this.drawClients();
    const closed = this.state.rounds.at(-1)?.round ?? 0;
    if (!run.shares_prototypes) { this.explain(); return; }
    if (this.asked === closed + (this.state.isOver ? 0.5 : 0)) return;
    this.asked = closed + (this.state.isOver ? 0.5 : 0);
    const found = await (await fetch(`${this.api}/prototypes`)).json();
    if (!found.rounds.length) { this.explain(); return; }
    $("prototypes-body").hidden = false;
    this.map = found;
    const slider = $("map-round");
    slider.max = String(found.rounds.length - 1);
    replace($("prototypes-note"), `${plural(found.classes.length, "class")}, directions on the plane that shows most of the newest round (${Math.round(100 * found.explained)} % of its variance)`.replace("classs", "classes"));
    if (this.follows && !this.timer) this.show(found.rounds.length - 1);
    else this.paintMap();
    if (this.client === null && this.state.ids.length) this.selectClient(this.state.ids[0]);
    else if (this.client !== null) this.loadClient();
  }

  explain() {
    const { run, status } = this.state;
    const [title, text] = run.shares_prototypes
      ? ["No prototypes yet", "The map appears when the first round has closed; methods that exchange no prototypes have none."]
      : status?.stored ? ["No prototypes were kept", "A server keeps them for the dashboard only with --share-prototypes-with-operators."]
        : ["This run does not share its prototypes", "They tell something of the data behind them. The server's option --share-prototypes-with-operators allows it."];
    $("prototypes-body").hidden = true;
    if (!$("prototypes").querySelector(".empty")) $("prototypes").append(h("div", { class: "card" }, empty(title, text)));
    $("prototypes").querySelector(".card:last-child").hidden = false;
  }

  show(index) {
    this.index = index;
    this.follows = index === this.map.rounds.length - 1;
    $("map-round").value = String(index);
    $("prototypes").querySelectorAll(":scope > .card").forEach((card) => card.remove());
    replace($("map-out"), `after round ${this.map.rounds[index]}`);
    this.paintMap();
    this.loadMatrix(this.map.rounds[index]);
  }

  play() {
    if (!this.map) return;
    $("map-play").setAttribute("aria-pressed", "true");
    replace($("map-play"), "Pause");
    if (this.index >= this.map.rounds.length - 1) this.show(0);
    this.timer = setInterval(() => {
      if (this.index >= this.map.rounds.length - 1) { this.stop(); return; }
      this.show(this.index + 1);
    }, FRAME_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    $("map-play").setAttribute("aria-pressed", "false");
    replace($("map-play"), "Play");
  }

  paintMap() {
    if (!this.map) return;
    const wrap = $("map-chart");
    const { positions, classes, rounds } = this.map;
    const { canvas, context, width, height } = canvasIn(wrap, Math.min(wrap.clientWidth, 440), `Map of ${classes.length} classes after round ${rounds[this.index]}`);
    const all = positions.flat().filter(Boolean);
    const reach = (axis) => [Math.min(...all.map((point) => point[axis])), Math.max(...all.map((point) => point[axis]))];
    const [x0, x1] = reach(0), [y0, y1] = reach(1);
    const pad = 44, scale = Math.min((width - 2 * pad) / Math.max(1e-6, x1 - x0), (height - 2 * pad) / Math.max(1e-6, y1 - y0));
    const at = ([x, y]) => [width / 2 + (x - (x0 + x1) / 2) * scale, height / 2 - (y - (y0 + y1) / 2) * scale];
    context.strokeStyle = css("--line");
    const [ox, oy] = at([0, 0]);
    context.beginPath(); context.moveTo(ox, 0); context.lineTo(ox, height); context.moveTo(0, oy); context.lineTo(width, oy); context.stroke();
    const many = classes.length > 40;
    classes.forEach((id, row) => {
      context.strokeStyle = css("--thin"); context.lineWidth = 1.25; context.beginPath();
      let begun = false;
      for (let frame = 0; frame <= this.index; frame++) {
        const point = positions[frame][row];
        if (!point) continue;
        const [x, y] = at(point);
        begun ? context.lineTo(x, y) : context.moveTo(x, y);
        begun = true;
      }
      context.stroke();
    });
    const spots = [];
    classes.forEach((id, row) => {
      const point = positions[this.index][row];
      if (!point) return;
      const [x, y] = at(point);
      context.fillStyle = css("--accent"); context.beginPath(); context.arc(x, y, many ? 3.5 : 5.5, 0, 7); context.fill();
      spots.push({ x, y, id });
    });
    context.font = `${many ? 10 : 12}px Inter, system-ui, sans-serif`;
    for (const spot of many ? spots.slice(0, 120) : spots) {
      const text = clipped(context, this.state.className(spot.id), 90), wide = context.measureText(text).width;
      const left = spot.x + 9 + wide > width ? spot.x - 9 - wide : spot.x + 9;
      context.lineWidth = 3; context.strokeStyle = css("--card"); context.strokeText(text, left, spot.y + 4);
      context.fillStyle = css("--ink"); context.fillText(text, left, spot.y + 4);
    }
    canvas.onmousemove = (event) => {
      const near = spots.map((spot) => [Math.hypot(spot.x - event.offsetX, spot.y - event.offsetY), spot]).sort((a, b) => a[0] - b[0])[0];
      near && near[0] < 16 ? showTip(event, this.state.className(near[1].id), `class ${near[1].id}`) : hideTip();
    };
    canvas.onmouseleave = hideTip;
  }

  async loadMatrix(round) {
    const found = await (await fetch(`${this.api}/similarity/${round}`)).json();
    if (this.map.rounds[this.index] !== round) return;
    this.matrix = found;
    this.paintMatrix();
  }

  paintMatrix() {
    if (!this.matrix) return;
    const wrap = $("matrix-chart"), { classes, matrix } = this.matrix;
    if (!classes.length) { replace(wrap, empty("Too many classes for a matrix", "Up to 400 are shown.")); return; }
    const side = Math.min(wrap.clientWidth, 440), named = classes.length <= 30;
    const { canvas, context, width } = canvasIn(wrap, side, `Cosine similarity of ${classes.length} classes`);
    context.font = "11px Inter, system-ui, sans-serif";
    const label = named ? Math.min(84, Math.max(...classes.map((id) => context.measureText(this.state.className(id)).width)) + 12) : 0;
    const cell = (side - label) / classes.length, left = (width - side) / 2 + label;
    const values = matrix.flatMap((row, y) => row.filter((_, x) => x !== y));
    const low = Math.min(...values, 0), high = Math.max(...values, 1);
    const gap = cell > 8 ? 1.5 : 0;
    matrix.forEach((row, y) => row.forEach((value, x) => {
      context.globalAlpha = x === y ? 0.08 : 0.06 + 0.94 * (value - low) / (high - low);
      context.fillStyle = css(x === y ? "--faint" : "--accent");
      context.beginPath(); context.roundRect(left + x * cell, y * cell, cell - gap, cell - gap, gap ? 2 : 0); context.fill();
    }));
    context.globalAlpha = 1;
    if (named) {
      context.fillStyle = css("--muted");
      classes.forEach((id, index) => {
        context.textAlign = "right";
        context.fillText(clipped(context, this.state.className(id), label - 8), left - 8, (index + 0.5) * cell + 4);
        context.save(); context.translate(left + (index + 0.5) * cell + 4, side - label + 8); context.rotate(-Math.PI / 2); context.fillText(clipped(context, this.state.className(id), label - 8), 0, 0); context.restore();
      });
      context.textAlign = "left";
    }
    legend($("matrix-legend"), [["none", `from ${(low / 100).toFixed(2)} (weak) to ${(high / 100).toFixed(2)} (strong); most alike: ${this.alike()}`]]);
    canvas.onmousemove = (event) => {
      const x = Math.floor((event.offsetX - left) / cell), y = Math.floor(event.offsetY / cell);
      if (matrix[y]?.[x] === undefined) { hideTip(); return; }
      showTip(event, `${this.state.className(classes[y])} – ${this.state.className(classes[x])}`, `cosine ${(matrix[y][x] / 100).toFixed(2)}`);
    };
    canvas.onmouseleave = hideTip;
  }

  alike() {
    const { classes, matrix } = this.matrix;
    let best = null;
    matrix.forEach((row, y) => row.forEach((value, x) => { if (x > y && (!best || value > best[0])) best = [value, y, x]; }));
    return best ? `${this.state.className(classes[best[1]])} and ${this.state.className(classes[best[2]])}` : "–";
  }

  drawClients() {
    const ids = this.state.ids, select = $("own-client");
    if (select.options.length === ids.length) return;
    replace(select, ...ids.map((id) => h("option", { value: id }, this.state.name(id))));
    if (this.client !== null) select.value = String(this.client);
  }

  selectClient(id) {
    this.client = id;
    $("own-client").value = String(id);
    this.loadClient();
  }

  async loadClient() {
    if (!this.state.run?.shares_prototypes || this.client === null) return;
    const id = this.client;
    const { classes } = await (await fetch(`${this.api}/clients/${id}/prototypes`)).json();
    if (id !== this.client) return;
    this.own = classes;
    const target = $("own-distances");
    if (!classes.length) {
      replace(target, empty("No upload yet", "It appears when this client has uploaded, and stays after the end where the server's files are at hand."));
      replace($("own-channels"));
      return;
    }
    const most = Math.max(...classes.map((one) => one.distance), 1e-9);
    replace(target, h("div", { class: "hbars" }, ...classes.flatMap((one) => [h("span", { class: "clip" }, this.state.className(one.class)), h("div", { class: "track" }, h("i", { "width%": 100 * one.distance / most })), h("span", { class: "muted" }, `${one.distance.toFixed(2)}  cos ${one.cosine.toFixed(2)}`)])));
    this.paintChannels();
  }

  paintChannels() {
    const wrap = $("own-channels"), rows = this.own;
    if (!rows?.length) return;
    const kept = rows[0].kept.length, channels = rows[0].channels;
    replace($("own-caption"), kept ? `The ${kept} of ${channels} channels per class with its own values (Top-K of its Fisher scores)` : "This method keeps no channels of its own");
    if (!kept) { replace(wrap); return; }
    const row = Math.max(6, Math.min(19.5, 400 / rows.length));
    const { canvas, context, width } = canvasIn(wrap, rows.length * row + 60, `Channels kept by ${this.state.name(this.client)}`);
    const scale = width / channels, counts = new Array(channels).fill(0);
    rows.forEach((one, index) => {
      context.fillStyle = css("--hover"); context.fillRect(0, index * row, width, row - 3);
      context.fillStyle = css("--accent");
      one.kept.forEach((channel) => { counts[channel] += 1; context.fillRect(channel * scale, index * row, Math.max(1.25, scale), row - 3); });
    });
    const base = rows.length * row + 58, most = Math.max(...counts);
    context.fillStyle = css("--s2");
    counts.forEach((count, channel) => count > 1 && context.fillRect(channel * scale, base - 30 * count / most, Math.max(1.25, scale), 30 * count / most));
    context.fillStyle = css("--muted"); context.font = "11px Inter, system-ui, sans-serif";
    context.fillText("kept for several classes", 0, rows.length * row + 16);
    canvas.onmousemove = (event) => {
      const one = rows[Math.floor(event.offsetY / row)], channel = Math.floor(event.offsetX / scale);
      one ? showTip(event, this.state.className(one.class), `channel ${channel}${one.kept.includes(channel) ? ", own value" : ""}`, `kept for ${plural(counts[channel] ?? 0, "class")}`.replace("classs", "classes")) : hideTip();
    };
    canvas.onmouseleave = hideTip;
  }
}
