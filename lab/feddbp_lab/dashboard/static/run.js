// The page of one run: receives changes, and draws what they concern.
import { $, h, replace } from "./dom.js";
import { RunState } from "./run_state.js";
import { Control, OverviewPanel } from "./overview.js";
import { AccuracyPanel } from "./accuracy.js";
import { ClientsPanel } from "./clients.js";
import { TimelinePanel } from "./timeline.js";
import { DataPanel } from "./data.js";
import { PrototypesPanel } from "./prototypes.js";
import { HealthPanel } from "./health.js";

const state = new RunState();
const select = (id) => {
  accuracy.setSelected(id);
  clients.setSelected(id);
  prototypes.selectClient(id);
};
const overview = new OverviewPanel(state, new Control(state));
const accuracy = new AccuracyPanel(state, select);
const clients = new ClientsPanel(state, select);
const prototypes = new PrototypesPanel(state);
const panels = [overview, accuracy, clients, new TimelinePanel(state), new DataPanel(state), prototypes, new HealthPanel(state)];

let scheduled = false;
let history = true;

function draw() {
  scheduled = false;
  // a status alone moves the head and the table; charts wait for reports and rounds
  const wanted = history ? panels : [overview, clients];
  history = false;
  for (const panel of wanted) panel.draw();
  document.body.dataset.ready = state.status ? "yes" : "no";
}

function receive(changes) {
  state.apply(changes);
  history ||= Boolean(changes.reset || changes.run || changes.reports || changes.rounds || state.isOver);
  if (!scheduled) {
    scheduled = true;
    requestAnimationFrame(draw);
    setTimeout(() => scheduled && draw(), 300); // a hidden page has no animation frames
  }
}

function lost() {
  replace($("notice"), h("p", { class: "notice" }, "The dashboard does not answer; reconnecting."));
  overview.shown.delete("notice");
}

if (document.body.dataset.live === "yes") {
  const source = new EventSource(`${document.body.dataset.api}/events`);
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = lost;
  setInterval(() => state.status && [overview, clients].forEach((panel) => panel.draw()), 5000); // times that pass
} else {
  fetch(`${document.body.dataset.api}/run`).then((answer) => answer.json()).then(receive, lost);
}
