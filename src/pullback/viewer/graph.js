// The graph: stages of the compiler as columns, rows as they were laid out, groups that fold.

const BOX = { width: 170, height: 36, across: 12, down: 20, between: 90, top: 46, wide: 4 };
const look = { x: 0, y: 0, scale: 1 };
let items = new Map();
let home = []; // of each node: the item that it is in

// What is to be seen: nodes, folded groups of them, and kernels. `row` sorts, as a list of numbers.
function visible() {
  const p = program();
  const folding = p.folds[state.fold];
  const found = new Map();
  const groups = new Map();
  p.nodes.forEach((_, n) => {
    const g = folding ? folding.of[n] : n;
    if (!groups.has(g)) groups.set(g, []);
    groups.get(g).push(n);
  });
  home = new Array(p.nodes.length);
  for (const [g, members] of groups) {
    const place = p.nodes[members[0]].place;
    const [row, order] = folding ? folding.layout[g] : [0, 0];
    if (folding && members.length > 1 && !state.open.has(g)) {
      add(found, `g${g}`, members, place, [place, row, 0], order);
      continue;
    }
    for (const n of members) {
      const [below, beside] = p.layout[n];
      const alone = members.length === 1 && folding;
      add(found, `n${n}`, [n], place, [place, row, alone ? 0 : below], alone ? order : beside);
    }
  }
  const last = p.columns.length - 1;
  p.kernels.forEach((k, n) => {
    found.set(`k${n}`, { id: `k${n}`, kernel: n, members: [], column: last, place: k.place, row: [n, 0, 0], order: 0 });
  });
  return found;
}

function add(found, id, members, place, row, order) {
  const item = { id, members, column: program().nodes[members[0]].column, place, row, order };
  found.set(id, item);
  for (const n of members) home[n] = item;
}

const compare = (a, b) => a.row[0] - b.row[0] || a.row[1] - b.row[1] || a.row[2] - b.row[2] || a.order - b.order;
const sameRow = (a, b) => a.row.every((value, n) => value === b.row[n]);

// Coordinates of all items; the columns with their left edges and widths, titles of blocks.
function arranged(all) {
  const columns = [];
  const titles = [];
  let left = 0;
  program().columns.forEach((name, number) => {
    const own = [...all.values()].filter((i) => i.column === number).sort(compare);
    if (!own.length) return;
    const lines = [];
    own.forEach((item, n) => {
      const line = lines[lines.length - 1];
      if (n && sameRow(own[n - 1], item) && line.length < BOX.wide) line.push(item);
      else lines.push([item]);
    });
    const step = BOX.width + BOX.across;
    const width = Math.max(...lines.map((line) => line.length)) * step - BOX.across;
    let top = BOX.top;
    lines.forEach((line, n) => {
      const fresh = !n || lines[n - 1][0].place !== line[0].place;
      const label = program().places[line[0].place];
      if (fresh && n) top += BOX.down;
      if (fresh && label) {
        titles.push({ x: left, y: top + 12, text: label });
        top += 20;
      }
      const start = left + (width - (line.length * step - BOX.across)) / 2;
      line.forEach((item, at) => Object.assign(item, { x: start + at * step, y: top }));
      top += BOX.height + BOX.down;
    });
    columns.push({ name, left, width, bottom: top });
    left += width + BOX.between;
  });
  return { columns, titles };
}

function labels(item) {
  const p = program();
  if (item.kernel !== undefined) {
    const kernel = p.kernels[item.kernel];
    const found = rates(kernel);
    return [`${item.kernel} ${kernel.name}`, found ? time(found.ns) + standing(found, " · ") : `${count(kernel.flops)} flops`, "kernel"];
  }
  const node = p.nodes[item.members[0]];
  if (item.members.length === 1) {
    const to = node.assigns.length ? ` → ${node.assigns.join(", ")}` : "";
    return [node.name + to, node.type, node.kind];
  }
  const last = p.nodes[item.members[item.members.length - 1]];
  const name = state.fold === "kernel" && last.kernels.length ? p.kernels[last.kernels[0]].name : `${node.name}..${last.name}`;
  return [name, `${item.members.length} folded`, "group"];
}

function hintOf(item) {
  const p = program();
  if (item.kernel !== undefined) return `${p.kernels[item.kernel].name}\n${origin(p.kernels[item.kernel])}`;
  const shown = item.members.slice(0, 6).map((n) => p.nodes[n].text);
  const more = item.members.length > 6 ? `\n.. ${item.members.length - 6} more` : "";
  return `${shown.join("\n")}${more}\n${origin(p.nodes[item.members[0]])}`;
}

function box(item) {
  const [first, second, kind] = labels(item);
  const found = draw("g", { class: `item ${kind}`, id: item.id, transform: `translate(${item.x} ${item.y})` },
    draw("rect", { width: BOX.width, height: BOX.height }),
    draw("text", { x: 7, y: 15 }, cut(first, 22)),
    draw("text", { x: 7, y: 29, class: "small" }, cut(second, 26)));
  if (item.kernel !== undefined) {
    const every = program().kernels.reduce((sum, k) => sum + k.spent, 0);
    const share = every ? program().kernels[item.kernel].spent / every : 0;
    found.append(draw("rect", { class: "share", y: BOX.height - 3, height: 3, width: BOX.width * share }));
  }
  found.addEventListener("click", () => choose(item.id));
  found.addEventListener("dblclick", () => toggle(item));
  return hinted(found, () => hintOf(item));
}

// From under a box to above a later one; across columns from side to side.
function curve(a, b) {
  const w = BOX.width;
  if (a.column !== b.column) {
    const [from, to] = a.x < b.x ? [a.x + w, b.x] : [a.x, b.x + w];
    const [y, z] = [a.y + BOX.height / 2, b.y + BOX.height / 2];
    const middle = (from + to) / 2;
    return `M${from} ${y}C${middle} ${y} ${middle} ${z} ${to} ${z}`;
  }
  const [x, y, u, z] = [a.x + w / 2, a.y + BOX.height, b.x + w / 2, b.y];
  const bend = Math.max(12, Math.abs(z - y) / 2.5);
  return `M${x} ${y}C${x} ${y + bend} ${u} ${z - bend} ${u} ${z}`;
}

function edges() {
  const seen = new Set();
  const paths = [];
  program().nodes.forEach((node, n) => {
    for (const below of node.below) {
      const [a, b] = [home[below], home[n]];
      const key = `${a.id} ${b.id}`;
      if (a === b || seen.has(key)) continue;
      seen.add(key);
      const across = a.column === b.column ? "" : " across";
      paths.push(draw("path", { class: `edge${across}`, d: curve(a, b), "data-from": a.id, "data-to": b.id }));
    }
  });
  return paths;
}

function drawGraph() {
  items = visible();
  const { columns, titles } = arranged(items);
  const scene = draw("g", { id: "scene" },
    columns.map((c) => draw("text", { class: "title", x: c.left, y: 24 }, c.name)),
    titles.map((t) => draw("text", { class: "small place", x: t.x, y: t.y }, t.text)),
    edges(), draw("g", { id: "links" }), [...items.values()].map(box));
  const canvas = draw("svg", { id: "canvas" }, scene);
  movable(canvas, (dx, dy, factor, x, y) => {
    const scale = Math.min(3, Math.max(0.02, look.scale * factor));
    const real = scale / look.scale;
    look.x = x - (x - look.x) * real + dx;
    look.y = y - (y - look.y) * real + dy;
    look.scale = scale;
    moved();
  });
  byId("graph").replaceChildren(canvas);
  look.width = Math.max(...columns.map((c) => c.left + c.width), 1);
  look.height = Math.max(...columns.map((c) => c.bottom), 1);
  mark();
}

function moved() {
  byId("scene").setAttribute("transform", `translate(${look.x} ${look.y}) scale(${look.scale})`);
  byId("canvas").classList.toggle("far", look.scale < 0.3);
  byId("canvas").style.setProperty("--far", Math.max(1, 0.7 / look.scale));
}

// The whole graph; or only its full width, if it is much higher.
function fit(whole) {
  const area = byId("graph");
  const [wide, high] = [area.clientWidth - 24, area.clientHeight - 16];
  const across = Math.min(1, wide / look.width);
  const down = high / look.height;
  look.scale = whole || down > 0.6 * across ? Math.min(across, down) : across;
  look.x = 12 + (wide - look.width * look.scale) / 2;
  look.y = 8;
  moved();
}

function centre(item) {
  const area = byId("graph");
  look.scale = Math.max(look.scale, 0.7);
  look.x = area.clientWidth / 2 - (item.x + BOX.width / 2) * look.scale;
  look.y = area.clientHeight / 2 - (item.y + BOX.height / 2) * look.scale;
  moved();
}

// Unfold a group, or fold the group of a node.
function toggle(item) {
  const folding = program().folds[state.fold];
  if (!folding || !item.members.length) return;
  const group = folding.of[item.members[0]];
  if (!state.open.delete(group)) state.open.add(group);
  drawGraph();
  moved();
  const shown = home[item.members[0]];
  choose(shown.id);
}

// The items that an id stands for, be they folded or not.
function itemOf(id) {
  if (id === null || items.has(id)) return items.get(id) || null;
  return id[0] === "n" ? home[Number(id.slice(1))] || null : null;
}

// Neighbours of the chosen item stand out; kernels are joined to what they compute.
function mark() {
  const chosen = itemOf(state.chosen);
  const near = new Set();
  for (const path of document.querySelectorAll(".edge[data-from]")) {
    const { from, to } = path.dataset;
    const touches = chosen !== null && (from === chosen.id || to === chosen.id);
    path.classList.toggle("near", touches);
    if (touches) near.add(from).add(to);
  }
  const joined = chosen === null ? [] : partners(chosen);
  byId("links").replaceChildren(...joined.map((other) =>
    draw("path", { class: "edge near", d: curve(chosen, other) })));
  joined.forEach((other) => near.add(other.id));
  for (const element of document.querySelectorAll(".item")) {
    element.classList.toggle("chosen", chosen !== null && element.id === chosen.id);
    element.classList.toggle("near", near.has(element.id) && element.id !== chosen.id);
  }
}

function partners(item) {
  const found = new Set();
  if (item.kernel !== undefined) {
    const kernel = program().kernels[item.kernel];
    kernel.nodes.forEach((n) => found.add(home[n]));
  }
  for (const n of item.members)
    program().nodes[n].kernels.forEach((k) => found.add(items.get(`k${k}`)));
  return [...found];
}

function search(text) {
  const wanted = text.toLowerCase();
  let first = null;
  for (const item of items.values()) {
    const names = item.kernel === undefined ? item.members.map((n) => program().nodes[n].name)
      : [program().kernels[item.kernel].name];
    const hit = wanted !== "" && names.some((name) => name.toLowerCase().includes(wanted));
    byId(item.id).classList.toggle("found", hit);
    if (hit && first === null) first = item;
  }
  return first;
}
