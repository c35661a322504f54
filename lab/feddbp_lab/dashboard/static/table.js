// A table that sorts by its heads and renders only the rows in view, so that a thousand of them scroll smoothly.
import { h, replace } from "./dom.js";

const ROW = 41;
const AROUND = 15;
const FOCUSABLE = "button, input, a";

export class Table {
  /** `columns` are {key, title, value(row), cell(row), left, wide, first}; `first: "desc"` sorts downwards first. */
  constructor(scroll, table, columns, { sort, rowKey, isSelected = () => false, onSelect = () => {} }) {
    Object.assign(this, { scroll, columns, rowKey, isSelected, onSelect });
    this.head = table.querySelector("thead");
    this.body = table.querySelector("tbody");
    this.sort = sort;
    this.rows = [];
    scroll.addEventListener("scroll", () => this.render(), { passive: true });
    this.drawHead();
  }

  drawHead() {
    const heads = this.columns.map((column) => {
      const sorted = this.sort.key === column.key;
      const mark = sorted ? (this.sort.down ? " ↓" : " ↑") : "";
      return h("th", { scope: "col", class: classes(column), "aria-sort": sorted ? (this.sort.down ? "descending" : "ascending") : null },
        column.title ? h("button", { type: "button", onclick: () => this.sortBy(column) }, column.title + mark) : null);
    });
    replace(this.head, h("tr", {}, ...heads));
  }

  sortBy(column) {
    this.sort = this.sort.key === column.key ? { key: column.key, down: !this.sort.down } : { key: column.key, down: column.first === "desc" };
    this.drawHead();
    this.setRows(this.rows);
    [...this.head.querySelectorAll("button")].find((button) => button.textContent.startsWith(column.title))?.focus();
  }

  setRows(rows) {
    const column = this.columns.find((one) => one.key === this.sort.key);
    const down = this.sort.down ? -1 : 1;
    this.rows = [...rows].sort((a, b) => down * compare(column.value(a), column.value(b)));
    this.render(true);
  }

  render(force = false) {
    const height = this.scroll.clientHeight || 600;
    const top = Math.floor(this.scroll.scrollTop / ROW), bottom = Math.min(this.rows.length, Math.ceil((this.scroll.scrollTop + height) / ROW));
    if (!force && top >= this.first && bottom <= this.last) return; // what is in view is rendered
    const first = Math.max(0, top - AROUND), last = Math.min(this.rows.length, bottom + AROUND);
    Object.assign(this, { first, last });
    const active = document.activeElement?.closest?.("tr");
    const focused = active?.dataset.key, place = active ? [...active.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : 0;
    const rows = this.rows.slice(first, last).map((row) => this.row(row));
    replace(this.body, spacer(first * ROW, this.columns.length), ...rows, spacer((this.rows.length - last) * ROW, this.columns.length));
    if (focused !== undefined && this.body.contains(document.activeElement) === false) {
      [...this.body.rows].find((row) => row.dataset.key === focused)?.querySelectorAll(FOCUSABLE)[place]?.focus({ preventScroll: true });
    }
  }

  row(row) {
    const key = String(this.rowKey(row));
    const cells = this.columns.map((column) => h("td", { class: classes(column) }, column.cell(row)));
    return h("tr", { "data-key": key, "aria-selected": this.isSelected(row) ? "true" : null, onclick: () => this.onSelect(row) }, ...cells);
  }
}

const classes = (column) => [column.left ? "left" : "", column.wide ? "wide" : ""].join(" ").trim() || null;

function spacer(height, columns) {
  if (height <= 0) return null;
  const cell = h("td", { colspan: columns });
  cell.style.height = `${height}px`;
  return h("tr", { class: "space", "aria-hidden": "true" }, cell);
}

/** Numbers by size, texts by the alphabet; what is missing comes first. */
function compare(a, b) {
  const missing = (value) => value === null || value === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b) ? (missing(a) ? -1 : 1) : 0;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}
