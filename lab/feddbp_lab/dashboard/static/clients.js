// The table of clients.
import { $, ago, bytes, h, percent, plural, replace, seconds } from "./dom.js";
import { Table } from "./table.js";

const STATES = {
  training: ["training", "is-run"], uploaded: ["uploaded", "is-good"], idle: ["ready", ""], done: ["done", "is-good"],
  away: ["disconnected", "is-bad"], left: ["left", "is-warn"], blocked: ["blocked", "is-bad"],
};

export class ClientsPanel {
  constructor(state, select) {
    this.state = state;
    this.selected = null;
    const columns = [
      { key: "id", title: "Client", left: true, value: (row) => row.id, cell: (row) => h("button", { class: "name", type: "button", "aria-label": `Select ${row.name}` }, h("span", { class: "clip" }, row.name)) },
      { key: "state", title: "State", left: true, value: (row) => row.state, cell: (row) => h("span", { class: "state" }, h("i", { class: `dot ${row.kind}` }), row.state) },
      { key: "architecture", title: "Architecture", left: true, wide: true, value: (row) => row.architecture, cell: (row) => h("span", { class: "clip muted" }, row.architecture) },
      { key: "device", title: "Device", left: true, wide: true, value: (row) => row.device, cell: (row) => h("span", { class: "clip muted" }, row.device) },
      { key: "classes", title: "Classes", wide: true, first: "desc", value: (row) => row.classes, cell: (row) => String(row.classes ?? "–") },
      { key: "samples", title: "Samples", wide: true, first: "desc", value: (row) => row.samples, cell: (row) => row.samples?.toLocaleString("en") ?? "–" },
      { key: "now", title: "Accuracy", first: "desc", value: (row) => row.now, cell: (row) => percent(row.now) },
      { key: "best", title: "Best", first: "desc", wide: true, value: (row) => row.best, cell: (row) => percent(row.best) },
      { key: "train", title: "Training", first: "desc", wide: true, value: (row) => row.train, cell: (row) => seconds(row.train) },
      { key: "bytes", title: "Traffic", first: "desc", wide: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { key: "seen", title: "Last seen", wide: true, first: "desc", value: (row) => row.seen ?? Infinity, cell: (row) => h("span", { class: "muted" }, row.seenText) },
    ];
    this.table = new Table($("client-scroll"), $("client-table"), columns, {
      sort: { key: "id", down: false }, rowKey: (row) => row.id, isSelected: (row) => row.id === this.selected, onSelect: (row) => select(row.id),
    });
    $("client-filter").addEventListener("input", () => this.draw());
    $("client-state").addEventListener("change", () => this.draw());
    this.options = "";
  }

  rows() {
    const stored = this.state.status?.stored;
    return this.state.ids.map((id) => {
      const client = this.state.clients.get(id) ?? {}, live = this.state.activities.get(id), latest = this.state.latest.get(id) ?? {};
      let [word, kind] = this.state.isOver && live?.activity !== "left" ? ["done", "is-good"] : STATES[live?.activity] ?? ["–", ""];
      if (stored) [word, kind] = ["took part", ""];
      const [done, epochs] = live?.epochs ?? [0, 0];
      if (word === "training") word = epochs ? `training ${done}/${epochs}` : "queued";
      const counts = client.label_counts ?? [];
      return {
        id, name: this.state.name(id), state: word, kind,
        architecture: client.architecture || "–", device: client.device || "–",
        classes: counts.length ? counts.filter((count) => count > 0).length : client.classes_held,
        samples: counts.length ? counts.reduce((sum, count) => sum + count, 0) : client.train_samples,
        now: latest.now ?? null, best: latest.best ?? null, train: latest.train ?? null,
        bytes: live ? live.up + live.down : (latest.up ?? 0) + (latest.down ?? 0),
        seen: live?.last_seen, seenText: stored || this.state.isOver ? "–" : live?.last_seen ? ago(live.last_seen) : live ? "now" : "–",
      };
    });
  }

  draw() {
    const rows = this.rows();
    this.drawStates(rows);
    const words = $("client-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = $("client-state").value;
    const found = rows.filter((row) => (!wanted || row.state.startsWith(wanted)) && words.every((word) => `${row.id} ${row.name} ${row.architecture} ${row.device} ${row.state}`.toLowerCase().includes(word)));
    this.table.setRows(found);
    replace($("clients-note"), rows.length ? (found.length === rows.length ? plural(rows.length, "client") : `${found.length} of ${plural(rows.length, "client")}`) : "None has joined yet.");
  }

  drawStates(rows) {
    const states = [...new Set(rows.map((row) => row.state.split(" ")[0]))].sort();
    if (states.join() === this.options) return;
    this.options = states.join();
    const select = $("client-state"), value = select.value;
    replace(select, h("option", { value: "" }, "All states"), ...states.map((state) => h("option", { value: state }, state)));
    select.value = states.includes(value) ? value : "";
  }

  setSelected(id) {
    this.selected = id;
    this.table.render(true);
  }
}
