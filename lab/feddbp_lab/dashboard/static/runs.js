// The runs of a folder: a table to choose from, and the curves of those that are chosen.
import { $, bytes, h, legend, percent, plural, replace, seconds } from "./dom.js";
import { LineChart, line } from "./charts.js";
import { phaseWords } from "./phases.js";
import { Table } from "./table.js";

const REFRESH_MS = 5000;
const COLOURS = ["1", "2", "3", "4", "6", "5"];
let runs = [];
const chosen = new Set();

const columns = [
  { key: "tick", title: "", left: true, value: (run) => chosen.has(run.key), cell: (run) => tick(run) },
  { key: "name", title: "Run", left: true, value: (run) => run.name, cell: (run) => h("a", { class: "name", href: `/run/${run.key}/` }, h("span", { class: "clip" }, run.name)) },
  { key: "method", title: "Method", left: true, value: method, cell: method },
  { key: "dataset", title: "Data", left: true, wide: true, value: (run) => run.dataset, cell: (run) => h("span", { class: "muted" }, `${run.dataset}${run.alpha === null || run.alpha === undefined ? "" : `, α ${run.alpha}`}`) },
  { key: "clients", title: "Clients", wide: true, first: "desc", value: (run) => run.clients, cell: (run) => String(run.clients) },
  { key: "completed", title: "Rounds", wide: true, first: "desc", value: (run) => run.completed, cell: (run) => `${run.completed} / ${run.rounds}` },
  { key: "seed", title: "Seed", wide: true, value: (run) => run.seed, cell: (run) => String(run.seed) },
  { key: "outcome", title: "Outcome", left: true, wide: true, value: outcome, cell: (run) => h("span", { class: "state" }, h("i", { class: `dot ${outcomeWords(run)[1]}` }), outcome(run)) },
  { key: "last", title: "Last", first: "desc", value: (run) => run.last, cell: (run) => percent(run.last) },
  { key: "best", title: "Best", first: "desc", value: (run) => run.best, cell: (run) => percent(run.best) },
  { key: "bytes", title: "Traffic", first: "desc", wide: true, value: (run) => run.bytes, cell: (run) => bytes(run.bytes) },
  { key: "seconds", title: "Time", first: "desc", wide: true, value: (run) => run.seconds, cell: (run) => seconds(run.seconds || null) },
];
const table = new Table($("run-scroll"), $("run-table"), columns, { sort: { key: "name", down: false }, rowKey: (run) => run.key });
const chart = new LineChart($("compare-chart"), {
  label: "Mean accuracy of the chosen runs over rounds",
  series: () => shown().map((_, index) => line(`--s${COLOURS[index % COLOURS.length]}`, { dash: index >= COLOURS.length ? [6, 4] : undefined, width: 2 })),
  y: { values: (_, splits) => splits.map((value) => `${value} %`) },
});

const hasCurve = (run) => run.curve.some(([round]) => round > 0);
const shown = () => runs.filter((run) => chosen.has(run.key));

function method(run) {
  return run.exchange ? `${run.title}, ${run.exchange}` : run.title;
}

function outcome(run) {
  return outcomeWords(run)[0];
}

function outcomeWords(run) {
  return phaseWords(run.outcome, { served: run.served, done: run.completed });
}

function tick(run) {
  return h("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.key), onchange: () => { chosen.has(run.key) ? chosen.delete(run.key) : chosen.add(run.key); drawChart(); } });
}

function drawChart() {
  const some = shown();
  const rounds = [...new Set(some.flatMap((run) => run.curve.map(([round]) => round)))].filter((round) => round > 0).sort((a, b) => a - b);
  const values = some.map((run) => { const at = new Map(run.curve); return rounds.map((round) => (at.has(round) ? 100 * at.get(round) : null)); });
  chart.shape = "";
  chart.draw([rounds, ...values], "Nothing chosen", "Tick runs in the table to compare their curves.");
  legend($("compare-legend"), some.map((run, index) => [`c${COLOURS[index % COLOURS.length]}`, `${run.name}: ${percent(run.last)}`]));
}

function drawTable() {
  const words = $("run-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => words.every((word) => `${run.name} ${method(run)} ${run.dataset} seed ${run.seed} ${outcome(run)}`.toLowerCase().includes(word)));
  table.setRows(found);
  replace($("list-note"), found.length === runs.length ? plural(runs.length, "run") : `${found.length} of ${plural(runs.length, "run")}`);
}

function drawDamaged(damaged) {
  $("damaged-runs").hidden = !damaged.length;
  replace($("damaged-runs"), ...damaged.map((run) => h("li", {}, h("a", { href: `/run/${run.key}/` }, run.name), ` cannot be read: ${run.problem}`)));
}

let listed = "";

/** Reads the list, and draws it if it has changed; while the dashboard does not answer, it stays as it is. */
async function load() {
  const answer = await fetch("/api/runs").catch(() => null);
  const text = await answer?.text();
  if (!answer?.ok) {
    if (!listed) replace($("list-note"), answer ? JSON.parse(text).error : "No answer from the dashboard");
    return;
  }
  if (text === listed) return;
  const isFirst = !listed;
  listed = text;
  const listing = JSON.parse(text);
  runs = listing.runs;
  if (isFirst) runs.filter(hasCurve).slice(0, 6).forEach((run) => chosen.add(run.key));
  drawTable();
  drawChart();
  drawDamaged(listing.damaged);
}

$("run-filter").addEventListener("input", drawTable);
await load();
document.body.dataset.ready = "yes";
setInterval(() => document.hidden || load(), REFRESH_MS);
