// Where the run stands: phase, progress, who is missing, what went wrong; and the buttons of an operator.
import { $, ago, bytes, h, percent, plural, replace, seconds } from "./dom.js";
import { phaseWords } from "./phases.js";

export class OverviewPanel {
  constructor(state, control) {
    this.state = state;
    this.control = control;
    this.shown = new Map();
  }

  /** Renders a part only if its content has changed, so that focus and selection stay. */
  put(target, key, ...children) {
    if (this.shown.get(target.id) === key) return;
    this.shown.set(target.id, key);
    replace(target, ...children);
  }

  draw() {
    const { run, status } = this.state;
    if (!status) return;
    this.drawHead(run, status);
    this.drawTiles(run, status);
    this.drawAttention(status);
    this.control.draw(status);
  }

  drawHead(run, status) {
    const [word, kind] = phaseWords(status.phase, status);
    const title = run ? `${run.title} on ${run.dataset}` : "A run";
    document.title = `${word} · ${title} · FedDBP`;
    this.put($("run-title"), title, title);
    const facts = run ? [plural(run.clients, "client"), plural(run.rounds, "round"), `seed ${run.seed}`, run.dataset === "custom" ? null : `Dirichlet α ${run.alpha}`, run.participation < 1 ? `${Math.round(100 * run.participation)} % of the clients per round` : null, plural(run.local_epochs, "local epoch"), run.exchange] : [];
    this.put($("run-sub"), facts.join(), facts.filter(Boolean).join(" · "));
    const promises = run?.privacy ?? [];
    this.put($("run-privacy"), promises.join("|"), ...promises.map((sentence) => h("p", { class: "sub" }, `Privacy: ${sentence}`)));
    this.put($("top-title"), title + word, h("span", { class: `pill ${kind}` }, h("i", { class: "dot" }), word), h("span", {}, title));
    const notices = [];
    if (status.trouble) notices.push(h("p", { class: "notice" }, `No answer from the server, reconnecting: ${status.trouble}`));
    if (status.reason && status.phase !== "finished") notices.push(h("p", { class: `notice ${status.phase === "failed" ? "bad" : ""}` }, status.reason));
    for (const note of status.notes ?? []) notices.push(h("p", { class: "notice" }, note));
    if (run && !this.state.complete) notices.push(h("p", { class: "notice" }, "The history is being read…"));
    this.put($("notice"), notices.map((notice) => notice.textContent).join("|"), ...notices);
  }

  drawTiles(run, status) {
    const toGo = this.state.secondsToGo();
    const connected = [...this.state.activities.values()].filter((client) => !["away", "left", "blocked"].includes(client.activity)).length;
    const open = ["collecting", "aggregating", "paused"].includes(status.phase);
    const round = Math.min(status.round + (open ? 1 : 0), status.rounds);
    const [word] = phaseWords(status.phase, status);
    const share = Math.min(100, 100 * status.done / Math.max(1, status.rounds));
    // from the curve, so that this number and the chart are of the same round
    const last = this.state.accuracyPoints()?.last;
    const accuracy = last ? `${last.mean.toFixed(1)} %` : percent(status.mean_accuracy ?? null);
    const measured = last ? `${this.state.shareOfClients(last)} after round ${last.round}` : "after the first round";
    const tiles = [
      tile("Round", [String(round), h("small", {}, ` of ${status.rounds}`)], word + (status.seconds_left !== null && status.seconds_left !== undefined && open ? `, deadline in ${seconds(status.seconds_left)}` : ""), share),
      tile("Mean accuracy", [accuracy], measured),
      status.stored
        ? tile("Time", [this.state.hasNotBegun ? "–" : seconds(status.seconds)], this.state.isOver ? "of the whole run" : this.state.hasNotBegun ? "the run has not begun" : "of the run so far")
        : tile(this.state.isOver ? "Time" : "Time left", [this.state.isOver ? seconds(this.state.rounds.reduce((sum, one) => sum + one.seconds, 0)) : toGo === null ? "–" : `~${seconds(toGo)}`], this.state.isOver ? "of all rounds" : toGo === null ? "after the first round" : "from the newest rounds"),
      status.stored || this.state.isOver
        ? tile("Clients", [String(this.state.clients.size), h("small", {}, run ? ` of ${run.clients}` : "")], this.state.hasNotBegun ? "have joined" : "took part")
        : tile("Clients", [String(connected), h("small", {}, run ? ` of ${run.clients}` : "")], status.missing.length ? `${status.missing.length} awaited` : "none is awaited"),
      tile("Traffic", [bytes(status.bytes_up + status.bytes_down)], `${bytes(status.bytes_up)} up, ${bytes(status.bytes_down)} down`),
    ];
    this.put($("tiles"), tiles.map((one) => one.textContent).join("|") + share, ...tiles);
  }

  drawAttention(status) {
    if (status.stored && !status.incidents.length) return;
    const missing = status.missing.map((id) => [id, this.state.activities.get(id)]);
    const gone = [...this.state.activities].filter(([id, client]) => ["away", "left", "blocked"].includes(client.activity) && !status.missing.includes(id));
    const away = [...missing.filter(([, client]) => !client || client.last_seen !== undefined), ...(this.state.isOver ? [] : gone)];
    const working = missing.length - missing.filter(([, client]) => !client || client.last_seen !== undefined).length;
    const rows = away.slice(0, 8).map(([id, client]) => h("li", {}, h("i", { class: "dot is-bad" }), h("p", {}, h("b", {}, this.state.name(id)), ` ${client ? { left: "has left", blocked: "is blocked" }[client.activity] ?? "is disconnected" : "has not joined"}`), h("time", {}, client?.last_seen ? `last seen ${ago(client.last_seen)}` : "")));
    if (away.length > 8) rows.push(h("li", {}, h("i", { class: "dot" }), h("p", {}, `and ${away.length - 8} more`)));
    const note = this.state.isOver ? "The run is over." : working ? `${plural(working, "client")} at work in this round.` : "Every client is connected.";
    const incidents = [...status.incidents].reverse().slice(0, 6).map((incident) => h("li", {}, h("i", { class: "dot is-warn" }), h("p", {}, incident.client === null ? null : h("b", {}, `${this.state.name(incident.client)} `), incident.message), h("time", {}, ago(incident.at))));
    const cards = [
      status.stored ? null : h("div", { class: "card" }, h("div", { class: "card-head" }, h("h3", {}, "Missing")), rows.length ? h("ul", { class: "list", id: "missing-list" }, ...rows) : h("p", { class: "muted" }, note)),
      h("div", { class: "card" }, h("div", { class: "card-head" }, h("h3", {}, "Last incidents")), incidents.length ? h("ul", { class: "list", id: "incident-list" }, ...incidents) : h("p", { class: "muted" }, "None since the server started.")),
    ].filter(Boolean);
    this.put($("attention"), cards.map((card) => card.textContent).join("|"), ...cards);
  }
}

function tile(title, value, note, share) {
  return h("dl", { class: "tile" }, h("dt", {}, title), h("dd", {}, ...value), h("p", {}, note), share === undefined ? null : h("div", { class: "bar", "aria-hidden": "true" }, h("i", { "width%": share })));
}

const ACTIONS = {
  pause: ["Pause", "Pause this run?", "Uploads for the open round are still accepted, but no round closes or opens until you resume.", ""],
  resume: ["Resume", "Resume this run?", "The open round gets its full deadline again.", ""],
  stop: ["Stop", "Stop this run for good?", "Clients are told and exit. Results so far are kept; only feddbp-server --reopen continues the run.", "danger"],
};

/** Pause, resume and stop: each asks first, and sends the token that only this page has. */
export class Control {
  constructor(state) {
    this.state = state;
    this.csrf = document.body.dataset.csrf;
    this.isLive = document.body.dataset.live === "yes";
    this.key = "";
    this.dialog = $("confirm");
    $("confirm-yes").addEventListener("click", () => this.send());
  }

  draw(status) {
    const over = this.state.isOver || !this.isLive;
    const wanted = over || !this.csrf ? [] : [status.phase === "paused" ? "resume" : "pause", "stop"];
    const key = `${wanted.join()}${over}`;
    if (key === this.key) return;
    this.key = key;
    const buttons = wanted.map((action) => h("button", { type: "button", class: `quiet ${ACTIONS[action][3]}`, id: `do-${action}`, onclick: () => this.ask(action) }, ACTIONS[action][0]));
    const hint = !over && !this.csrf ? [h("span", { class: "muted wide" }, "view only")] : [];
    replace($("controls"), ...buttons, ...hint);
  }

  ask(action) {
    const [word, title, text, kind] = ACTIONS[action];
    this.action = action;
    replace($("confirm-title"), title);
    replace($("confirm-text"), text);
    replace($("confirm-error"), "");
    replace($("confirm-yes"), word);
    $("confirm-yes").className = `primary ${kind}`;
    $("confirm-yes").disabled = false;
    $("confirm-reason").hidden = action !== "stop";
    $("confirm-reason").querySelector("input").value = "";
    this.dialog.showModal();
  }

  async send() {
    $("confirm-yes").disabled = true;
    const reason = $("confirm-reason").querySelector("input").value;
    const body = JSON.stringify({ confirm: this.state.run?.id, reason });
    try {
      const answer = await fetch(`${document.body.dataset.api}/${this.action}`, { method: "POST", body, headers: { "content-type": "application/json", "x-csrf-token": this.csrf } });
      if (answer.ok) { this.dialog.close(); return; }
      replace($("confirm-error"), (await answer.json()).error ?? `The dashboard answered ${answer.status}.`);
    } catch {
      replace($("confirm-error"), "The dashboard does not answer.");
    }
    $("confirm-yes").disabled = false;
  }
}
