// The run as this page knows it: grows with every message, and derives what the panels draw.

const FINAL = ["finished", "failed", "stopped"];
const [CLIENT, ROUND, ACCURACY, SAMPLES, TRAIN, , COLLECT, UP, DOWN] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

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
    this.latest = new Map(); // client -> {round, train, best, ...}
    this.perRound = []; // by completed rounds: {correct, samples, values, up, down}
  }

  apply(changes) {
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
      const tally = (this.perRound[round] ??= { correct: 0, samples: 0, values: [], up: 0, down: 0 });
      tally.up += columns[UP][row];
      tally.down += columns[DOWN][row];
      const known = this.latest.get(client) ?? { round: -1, best: null, up: 0, down: 0, trained: 0 };
      known.up += columns[UP][row];
      known.down += columns[DOWN][row];
      const spent = columns[TRAIN][row] + columns[COLLECT][row];
      if (spent > 0) { known.train = spent; known.trained += spent; }
      this.latest.set(client, known);
      if (!samples) continue;
      tally.correct += accuracy * samples;
      tally.samples += samples;
      tally.values.push(accuracy);
      let curve = this.accuracy.get(client);
      if (!curve) this.accuracy.set(client, (curve = []));
      curve[round] = accuracy;
      // before the first training, an inference rule may lack its prototypes
      if (round > 0 && round >= known.round) { known.round = round; known.now = accuracy; }
      if (round > 0 && (known.best === null || accuracy > known.best)) known.best = accuracy;
    }
  }

  get isOver() { return !!this.status && FINAL.includes(this.status.phase); }
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

  /** Completed rounds with a mean worth drawing: the open one joins when its clients have reported. */
  meanCurve() {
    const rounds = [], mean = [], low = [], high = [];
    for (let round = 1; round < this.perRound.length; round++) {
      const tally = this.perRound[round];
      if (!tally || !tally.samples) continue;
      if (this.isPartial(round)) continue;
      const values = [...tally.values].sort((a, b) => a - b);
      rounds.push(round);
      mean.push(100 * tally.correct / tally.samples);
      low.push(100 * quantile(values, 0.1));
      high.push(100 * quantile(values, 0.9));
    }
    return { rounds, mean, low, high };
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

  /** How many clients a round that is complete was evaluated by. */
  evaluatedBy() {
    const { rounds } = this.meanCurve();
    return rounds.length ? this.perRound[rounds.at(-1)].values.length : 0;
  }
}

export function quantile(sorted, share) {
  const place = (sorted.length - 1) * share;
  const below = Math.floor(place), above = Math.ceil(place);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}
