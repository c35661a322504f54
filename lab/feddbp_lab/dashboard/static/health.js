// Traffic and the server's health: bytes, refusals by reason, memory, time of aggregation.
import { $, bytes, h, legend, plural, replace, seconds } from "./dom.js";
import { LineChart, line } from "./charts.js";

export class HealthPanel {
  constructor(state) {
    this.state = state;
    const asBytes = { values: (_, splits) => splits.map((value) => bytes(value)), size: 62 };
    this.traffic = new LineChart($("traffic-chart"), { label: "Bytes up and down per round", series: () => [line("--s1"), line("--s2")], y: asBytes, scaleY: zero });
    this.aggregation = new LineChart($("aggregation-chart"), { label: "Time of aggregation per round", series: () => [line("--s1")], y: { values: (_, splits) => splits.map((value) => seconds(value)), size: 62 }, scaleY: zero });
    this.memory = new LineChart($("memory-chart"), { label: "Resident memory of the server after each round", series: () => [line("--s1")], y: asBytes, scaleY: zero });
  }

  draw() {
    const { perRound, rounds, status } = this.state;
    const counted = perRound.map((tally, round) => [round, tally]).filter(([round, tally]) => tally && (tally.up || tally.down) && round < (status?.rounds ?? 0) && (this.state.isOver || round < (status?.round ?? 0)));
    this.traffic.draw([counted.map(([round]) => round + 1), counted.map(([, tally]) => tally.up), counted.map(([, tally]) => tally.down)], "No traffic yet", "Clients report it round by round.");
    legend($("traffic-legend"), counted.length ? [["c1", "up"], ["c2", "down"]] : []);
    const x = rounds.map((round) => round.round + 1);
    const why = this.state.hasStoredRounds ? "The files of this run do not have it." : "It appears when the first round has closed.";
    this.aggregation.draw([x, rounds.map((round) => round.aggregation)], "Nothing measured", why);
    const measured = rounds.filter((round) => round.memory);
    this.memory.draw([measured.map((round) => round.round + 1), measured.map((round) => round.memory)], "Nothing measured", why);
    this.drawRefusals(status);
  }

  drawRefusals(status) {
    if (!status) return;
    const refusals = Object.entries(status.refusals).sort((a, b) => b[1] - a[1]);
    const facts = status.stored ? [] : [["Server", status.version ? `feddbp ${status.version}` : "–"], ["Up for", seconds(status.uptime)], ["Memory", status.memory ? bytes(status.memory) : "–"], ["Aggregation, mean", status.aggregations ? seconds(status.aggregation_seconds / status.aggregations) : "–"]];
    const refused = refusals.length
      ? refusals.map(([reason, count]) => [`Refused: ${reason.toLowerCase().replaceAll("_", " ")}`, plural(count, "call")])
      : [["Refused calls", "none"]];
    const key = JSON.stringify([facts.map((fact) => fact[1]), refused]);
    if (key === this.key) return;
    this.key = key;
    replace($("refusals"), h("dl", { class: "facts" }, ...[...facts, ...refused].map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))));
  }
}

const zero = { range: (_, low, high) => [0, Math.max(high * 1.1, 1e-6)] };
