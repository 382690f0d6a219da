"use strict";
// What the page is drawn from, and how an element is made. Texts go through textContent alone.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { program: 0, fold: "", open: new Set(), chosen: null, tab: "", view: "stages" };
const program = () => data.programs[state.program];

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return element;
}

const make = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);
const cut = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
const plural = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

function scaled(value, units, step) {
  let n = 0;
  while (Math.abs(value) >= step && n < units.length - 1) {
    value /= step;
    n += 1;
  }
  return `${Number(value.toPrecision(3))} ${units[n]}`;
}

const bytes = (n) => scaled(n, ["B", "KB", "MB", "GB"], 1024);
const time = (ns) => scaled(ns, ["ns", "µs", "ms", "s"], 1000);
const count = (n) => scaled(n, ["", "k", "M", "G", "T"], 1000).trim();

// A usual run of a kernel beside what the computer could do; null where nothing was timed.
function rates(kernel) {
  if (!kernel.runs || !kernel.spent) return null;
  const ns = kernel.median || kernel.spent / kernel.runs;
  const found = { ns, gflops: kernel.flops / ns, gbytes: kernel.bytes / ns, share: null };
  if (data.roof) {
    const best = Math.max(kernel.flops / data.roof.gflops, kernel.bytes / data.roof.gbytes);
    found.share = best / ns;
  }
  return found;
}

// How near to the roofline; data that comes from the caches may be faster than memory.
function standing(found, before) {
  if (found.share === null) return "";
  return before + (found.share > 1 ? "above the roof" : `${Math.round(found.share * 100)} % of roof`);
}

function origin(thing) {
  return thing.origin < 0 ? "" : program().origins[thing.origin].excerpt;
}

// A box beside the pointer while it is over `element`.
function hinted(element, text) {
  const hint = byId("hint");
  const move = (event) => {
    hint.style.left = `${Math.max(0, Math.min(event.clientX + 14, innerWidth - hint.offsetWidth - 8))}px`;
    hint.style.top = `${Math.max(0, Math.min(event.clientY + 14, innerHeight - hint.offsetHeight - 8))}px`;
  };
  element.addEventListener("pointerenter", (event) => {
    hint.replaceChildren(make("pre", {}, text()));
    hint.hidden = false;
    move(event);
  });
  element.addEventListener("pointermove", move);
  element.addEventListener("pointerleave", () => (hint.hidden = true));
  return element;
}

// Drag moves, wheel scales about the pointer: `changed(dx, dy, factor, x, y)`, in pixels of `area`.
function movable(area, changed) {
  let last = null;
  let moved = 0;
  area.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    moved = 0;
  });
  area.addEventListener("pointermove", (event) => {
    if (last === null || event.buttons !== 1) return;
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    moved += Math.abs(dx) + Math.abs(dy);
    last = [event.clientX, event.clientY];
    if (moved > 4) changed(dx, dy, 1, 0, 0);
  });
  area.addEventListener("pointerup", () => (last = null));
  area.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = area.getBoundingClientRect();
    const factor = Math.exp(-event.deltaY * 0.0015);
    changed(0, 0, factor, event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
}
