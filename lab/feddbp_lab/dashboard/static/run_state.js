// The run as this page knows it: grows with every message, and derives what the panels draw.

import { plural } from "./dom.js";
import { isFinal } from "./phases.js";

const [CLIENT, ROUND, ACCURACY, SAMPLES, TRAIN, , COLLECT, UP, DOWN, TRAINED] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

export class RunState {
  constructor() { this.reset(); }

  reset() {
    this.run = null;
    this.complete = false;
    this.clients = new Map();
    this.activities = new Map();
    this.status = null;
    this.baseline = {};
    this.rounds = [];
    this.losses = new Map();
    this.accuracy = new Map(); // client -> array by completed rounds
    this.latest = new Map(); // client -> {round, train, best, first, ...}
    this.perRound = []; // by completed rounds: {clients, values, samples, up, down}
    this.mean = null; // of these reports, until the next change
  }

  apply(changes) {
    this.mean = null;
    if (changes.reset) this.reset();
    if (changes.run && changes.run.id) {
      this.run = changes.run;
      this.complete = changes.complete;
      this.baseline = changes.baseline || {};
      for (const client of changes.clients) this.clients.set(client.id, client);
    }
    if (changes.reports) this.addReports(changes.reports);
    for (const [round, terms] of Object.entries(changes.losses || {})) this.losses.set(Number(round), terms);
    if (changes.rounds) {
      this.rounds.push(...changes.rounds);
      this.rounds.sort((a, b) => a.round - b.round);
    }
    if (changes.status) this.status = changes.status;
    for (const [id, row] of Object.entries(changes.activities || {})) this.activities.set(Number(id), row);
  }

  addReports(columns) {
    for (let row = 0; row < columns[CLIENT].length; row++) {
      const client = columns[CLIENT][row], round = columns[ROUND][row];
      const accuracy = columns[ACCURACY][row], samples = columns[SAMPLES][row];
      const tally = (this.perRound[round] ??= { clients: [], values: [], samples: [], up: 0, down: 0 });
      tally.up += columns[UP][row];
      tally.down += columns[DOWN][row];
      const known = this.latest.get(client) ?? { round: -1, first: null, best: null, up: 0, down: 0, trained: 0 };
      known.up += columns[UP][row];
      known.down += columns[DOWN][row];
      const spent = columns[TRAIN][row] + columns[COLLECT][row];
      if (spent > 0) { known.train = spent; known.trained += spent; }
      this.latest.set(client, known);
      if (columns[TRAINED][row]) known.first = Math.min(known.first ?? round, round);
      if (!samples) continue;
      tally.clients.push(client);
      tally.values.push(accuracy);
      tally.samples.push(samples);
      let curve = this.accuracy.get(client);
      if (!curve) this.accuracy.set(client, (curve = []));
      curve[round] = accuracy;
      if (round < this.firstShown(client)) continue;
      if (round >= known.round) { known.round = round; known.now = accuracy; }
      if (known.best === null || accuracy > known.best) known.best = accuracy;
    }
  }

  get isOver() { return !!this.status && isFinal(this.status.phase); }
  /** Whether the run has closed no round, and waits for its clients before the first. */
  get hasNotBegun() { return !!this.status && this.status.phase === "waiting" && !this.status.done; }
  /** Whether the files of a run have closed rounds: what is missing in them was not written. */
  get hasStoredRounds() { return !!this.status?.stored && this.status.done > 0; }
  get ids() { return [...new Set([...this.clients.keys(), ...this.activities.keys()])].sort((a, b) => a - b); }
  get newestRound() { return this.perRound.length - 1; }

  name(id) {
    const client = this.clients.get(id);
    return client && client.name ? `${client.name} (${id})` : `client ${id}`;
  }

  className(id) { return this.run?.class_names?.[id] ?? `class ${id}`; }

  /** Whether a round is open, and fewer clients have reported on it than on the one before. */
  isPartial(round) {
    const [before, tally] = [this.perRound[round - 1], this.perRound[round]];
    const isOpen = !this.isOver && !!this.status && round >= this.status.round;
    return isOpen && !!before && !!tally && tally.values.length < before.values.length;
  }

  /** The first round whose evaluation of a client is shown: what it measures before its own first training is not. */
  firstShown(client) { return (this.latest.get(client)?.first ?? 0) + 1; }

  /**
   * Completed rounds with a mean worth drawing: the open one joins when its clients have reported. As in
   * `feddbp_common.evaluation`, each round is over the newest evaluation of every client that has trained before it.
   */
  meanCurve() {
    if (this.mean) return this.mean;
    const curve = { rounds: [], mean: [], low: [], high: [], clients: [], evaluated: [] };
    const counted = new Map();
    this.perRound.forEach((tally, round) => {
      if (this.isPartial(round)) return;
      const evaluations = tally.clients.map((client, index) => [client, [tally.values[index], tally.samples[index]]]);
      for (const [client, evaluation] of evaluations) {
        if (round > (this.latest.get(client).first ?? round)) counted.set(client, evaluation);
      }
      const shown = counted.size ? counted : new Map(evaluations);
      if (round > 0 && shown.size) addPoint(curve, round, shown, tally.clients);
    });
    return (this.mean = curve);
  }

  /** The newest point of the mean curve, and the best one among those over most clients; null without points. */
  accuracyPoints() {
    const { rounds, mean, clients, evaluated } = this.meanCurve();
    if (!rounds.length) return null;
    const most = Math.max(...clients);
    const points = rounds.map((round, index) => ({ round, mean: mean[index], clients: clients[index], evaluated: evaluated[index] }));
    const complete = points.filter((point) => point.clients === most);
    return { last: points.at(-1), best: complete.reduce((best, point) => (point.mean > best.mean ? point : best)) };
  }

  /** Means of every loss term over rounds, the total first; of the open round once its clients have reported. */
  lossCurves() {
    const rounds = [...this.losses.keys()].filter((round) => !this.isPartial(round)).sort((a, b) => a - b);
    const names = [...new Set(rounds.flatMap((round) => Object.keys(this.losses.get(round))))];
    names.sort((a, b) => (b === "total") - (a === "total"));
    const values = names.map((name) => rounds.map((round) => this.losses.get(round)[name] ?? null));
    return { rounds: rounds.map((round) => round + 1), names, values };
  }

  /** Seconds until the last round, from the durations of the newest ones. */
  secondsToGo() {
    if (this.isOver || !this.rounds.length || !this.status) return null;
    const newest = this.rounds.slice(-5).map((round) => round.seconds).sort((a, b) => a - b);
    const typical = newest[Math.floor(newest.length / 2)];
    return Math.max(0, (this.status.rounds - this.status.done) * typical);
  }

  /** Over how many of the run's clients an accuracy is. */
  shareOfClients({ clients, evaluated }) {
    const earlier = clients > evaluated ? `, ${clients - evaluated} of them in earlier rounds` : "";
    return `over ${clients} of ${plural(Math.max(clients, this.run?.clients ?? 0), "client")}${earlier}`;
  }
}

/** Adds the mean by samples, and the middle 80 % of the clients, to a curve. */
function addPoint(curve, round, counted, evaluators) {
  let correct = 0, total = 0;
  for (const [accuracy, samples] of counted.values()) { correct += accuracy * samples; total += samples; }
  const values = [...counted.values()].map(([accuracy]) => accuracy).sort((a, b) => a - b);
  curve.rounds.push(round);
  curve.mean.push(100 * correct / total);
  curve.low.push(100 * quantile(values, 0.1));
  curve.high.push(100 * quantile(values, 0.9));
  curve.clients.push(counted.size);
  curve.evaluated.push(evaluators.filter((client) => counted.has(client)).length);
}

export function quantile(sorted, share) {
  const place = (sorted.length - 1) * share;
  const below = Math.floor(place), above = Math.ceil(place);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}
