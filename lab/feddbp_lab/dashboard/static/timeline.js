// The last rounds: what every client did when, so that a straggler is seen at once.
import { $, canvasIn, clipped, css, empty, hideTip, legend, onResize, plural, replace, seconds, showTip } from "./dom.js";

const ROUNDS = 6;
const MOST = 60;

export class TimelinePanel {
  constructor(state) {
    this.state = state;
    onResize($("timeline-chart"), () => this.draw());
  }

  draw() {
    const wrap = $("timeline-chart");
    const rounds = this.state.rounds.slice(innerWidth < 560 ? -3 : -ROUNDS).filter((round) => Object.keys(round.clients).length);
    if (!rounds.length) {
      replace(wrap, empty("No round has closed yet", this.state.hasStoredRounds ? "The files of this run have no times: it was made before 0.2.0." : "Download, training, upload and waiting appear here round by round."));
      replace($("timeline-legend"));
      replace($("timeline-note"));
      return;
    }
    const ends = new Map();
    for (const round of rounds) for (const [id, steps] of Object.entries(round.clients)) ends.set(Number(id), Math.max(ends.get(Number(id)) ?? 0, (steps[3] ?? round.seconds) / round.seconds));
    let ids = [...ends.keys()].sort((a, b) => a - b);
    const all = ids.length;
    if (all > MOST) ids = ids.sort((a, b) => ends.get(b) - ends.get(a)).slice(0, MOST);
    this.paint(wrap, rounds, ids);
    legend($("timeline-legend"), [["download block", "download"], ["train block", "evaluate and train"], ["upload block", "upload"], ["wait block", "wait for the others"]]);
    const last = rounds.at(-1), slow = slowest(last);
    const share = all > MOST ? `the ${MOST} slowest of ${plural(all, "client")}; ` : "";
    replace($("timeline-note"), `${share}round ${last.round + 1} took ${seconds(last.seconds)}${slow ? `, ${this.state.name(slow.id)} was last, ${seconds(slow.behind)} after the one before it` : ""}`);
  }

  paint(wrap, rounds, ids) {
    const row = ids.length > 30 ? 12 : 18, top = 26, gap = 10, label = Math.min(128, wrap.clientWidth * 0.24);
    const { canvas, context, width } = canvasIn(wrap, top + ids.length * row + 6, `Timeline of ${plural(rounds.length, "round")} and ${plural(ids.length, "client")}`);
    const total = rounds.reduce((sum, round) => sum + round.seconds, 0);
    const scale = (width - label - gap * (rounds.length - 1)) / total;
    const colours = ["--t-download", "--t-train", "--t-upload", "--t-wait"].map(css);
    context.font = "11px Inter, system-ui, sans-serif";
    const areas = [];
    ids.forEach((id, index) => {
      context.fillStyle = css("--muted");
      context.fillText(clipped(context, this.state.name(id), label - 12), 0, top + index * row + row / 2 + 4);
    });
    let left = label;
    for (const round of rounds) {
      const room = round.seconds * scale;
      context.fillStyle = css("--muted");
      context.fillText(clipped(context, `round ${round.round + 1} · ${seconds(round.seconds)}`, room), left, 14);
      ids.forEach((id, index) => {
        const steps = round.clients[id];
        const y = top + index * row + 2, tall = row - 5;
        if (!steps) return;
        const parts = partsOf(steps, round.seconds);
        parts.forEach(([from, until, kind]) => {
          context.fillStyle = colours[kind];
          const x = left + from * scale, wide = Math.max(kind === 3 ? 0 : 1.5, (until - from) * scale);
          context.beginPath(); context.roundRect(x, y, wide, tall, Math.min(2, wide / 2)); context.fill();
        });
        areas.push({ left, right: left + room, top: y, bottom: y + tall, id, round, parts });
      });
      left += room + gap;
    }
    const names = ["download", "training", "upload", "waiting"];
    canvas.onmousemove = (event) => {
      const hit = areas.find((area) => event.offsetX >= area.left && event.offsetX <= area.right && event.offsetY >= area.top - 2 && event.offsetY <= area.bottom + 2);
      if (!hit) { hideTip(); return; }
      showTip(event, `${this.state.name(hit.id)}, round ${hit.round.round + 1}`, ...hit.parts.map(([from, until, kind]) => `${names[kind]} ${seconds(until - from)}`));
    };
    canvas.onmouseleave = hideTip;
  }
}

/** [from, until, kind] of what the server saw; a step that it did not see is taken for the one before it. */
function partsOf([begun, received, sent, stored], end) {
  const parts = [];
  const start = received ?? begun ?? 0;
  if (begun !== null && received !== null) parts.push([begun, received, 0]);
  parts.push([start, sent ?? end, 1]);
  if (sent !== null && stored !== null) parts.push([sent, stored, 2], [stored, end, 3]);
  return parts;
}

function slowest(round) {
  const ends = Object.entries(round.clients).map(([id, steps]) => ({ id: Number(id), end: steps[3] })).filter((one) => one.end !== null).sort((a, b) => b.end - a.end);
  return ends.length > 1 ? { id: ends[0].id, behind: ends[0].end - ends[1].end } : null;
}
