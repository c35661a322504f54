// Elements, numbers as people read them, and the tooltip. Text only ever reaches the page as text nodes.

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "width%") element.style.width = `${value}%`;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function replace(target, ...children) {
  target.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

export const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 999.5) return unit === "B" || count >= 99.95 ? `${count.toFixed(0)} ${unit}` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0.1) return `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${Math.floor(hours / 24)} days`;
}

export const ago = (at) => `${seconds(Math.max(0, Date.now() / 1000 - at))} ago`;
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** What is shown where there is nothing to show, and why. */
export const empty = (title, text) => h("div", { class: "empty" }, h("b", {}, title), h("span", {}, text));

export function legend(target, entries) {
  replace(target, ...entries.map(([kind, text]) => h("span", {}, h("i", { class: `key ${kind}` }), text)));
}

export function showTip(event, ...lines) {
  const tip = $("tip");
  replace(tip, ...lines.flatMap((line, index) => (index ? [h("br"), line] : [h("b", {}, line)])));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 10 : event.clientX + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.min(innerHeight - box.height - 6, event.clientY + 14)}px`;
}

export const hideTip = () => { $("tip").hidden = true; };

/** A canvas in its wrapper, sharp on every screen, with coordinates in CSS pixels. */
export function canvasIn(wrap, height, label) {
  let canvas = wrap.querySelector("canvas");
  if (!canvas) {
    canvas = h("canvas", { role: "img" });
    wrap.replaceChildren(canvas);
  }
  canvas.setAttribute("aria-label", label);
  const ratio = devicePixelRatio || 1;
  const width = wrap.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px Inter, system-ui, sans-serif";
  return { canvas, context, width, height };
}

/** Calls back when the wrapper's width or the colour scheme changes. */
export function onResize(element, callback) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth && element.clientWidth !== width) { width = element.clientWidth; callback(); }
  }).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
}

/** Cuts a label to the room it has. */
export function clipped(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}
