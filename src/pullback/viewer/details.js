// What is known of the chosen definition, group or kernel.

const VIEWS = ["stages", "schedule"]; // and the texts of the backend
const unpacked = new Map();

// The texts of a kernel structure: base64, deflated, JSON.
async function code(number) {
  if (!unpacked.has(number)) {
    const packed = Uint8Array.from(atob(data.codes[number]), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(number, JSON.parse(await new Response(stream).text()));
  }
  return unpacked.get(number);
}

const link = (id, text) =>
  make("button", { class: "link", type: "button", onclick: () => { choose(id); centre(itemOf(id)); } }, text);
const nodeLink = (n) => link(`n${n}`, program().nodes[n].name);
const kernelLink = (n) => link(`k${n}`, program().kernels[n].name);

function row(name, content) {
  const cells = Array.isArray(content) ? content : [content];
  return cells.length ? make("tr", {}, make("td", { class: "dim" }, name), make("td", {}, cells)) : null;
}

// A listing. `origins`: of the stages that marks in it (`# stage 0, 2`) name; a click on a line that
// follows a mark shows the user's.
function numbered(text, origins = []) {
  const lines = text.replace(/\n$/, "").split("\n");
  const all = program().origins;
  let here = [];
  const rows = lines.map((line) => {
    const mark = /^( *[#;] )stage (\d+(?:, \d+)*)$/.exec(line);
    if (mark) {
      here = [...new Set(mark[2].split(", ").map((n) => origins[n]))].filter((o) => o >= 0);
      if (here.length) line = mark[1] + here.map((o) => all[o].place).join(", ");
    }
    if (!here.length) return `${line}\n`;
    const own = here.map((o) => all[o].excerpt).join("\n");
    return make("span", { class: mark ? "mark" : "placed", title: own, onclick: (event) => point(event.target, own) }, `${line}\n`);
  });
  return make("div", { class: "code" },
    make("pre", { class: "numbers" }, lines.map((_, n) => n + 1).join("\n")),
    make("pre", { class: "lines" }, rows));
}

// Shows the user's line of a chosen line of code.
function point(line, excerpt) {
  for (const other of document.querySelectorAll("#code .chosen")) other.classList.remove("chosen");
  line.classList.add("chosen");
  document.getElementById("origin").textContent = excerpt;
}

function nodeDetails(n) {
  const p = program();
  const node = p.nodes[n];
  const readers = p.nodes.flatMap((other, m) => (other.below.includes(n) ? [m] : []));
  const folding = p.folds[state.fold];
  const item = home[n];
  const grouped = folding && folding.of.filter((g) => g === folding.of[n]).length > 1;
  return [
    make("h2", {}, node.name),
    make("div", { class: "dim" }, `${node.kind}, ${node.type}${p.places[node.place] ? `, in ${p.places[node.place]}` : ""}`),
    make("pre", { id: "definition" }, node.text),
    make("pre", { id: "origin" }, origin(node)),
    make("table", {},
      row("reads", node.below.map(nodeLink)),
      row("read by", readers.map(nodeLink)),
      row("given to", node.assigns.join(", ") || []),
      row("computed by", node.kernels.map(kernelLink))),
    grouped ? make("button", { type: "button", onclick: () => toggle(item) }, "fold its group") : null,
  ];
}

function groupDetails(item) {
  const nodes = program().nodes;
  return [
    make("h2", {}, labels(item)[0]),
    make("button", { type: "button", id: "unfold", onclick: () => toggle(item) }, `unfold ${item.members.length}`),
    make("pre", {}, origin(nodes[item.members[0]])),
    item.members.map((n) => make("div", {}, nodeLink(n), make("span", { class: "dim" }, nodes[n].type))),
  ];
}

function measured(kernel) {
  const found = rates(kernel);
  const rows = [
    row("operations", `${count(kernel.flops)} flops, ${bytes(kernel.bytes)} a run`),
    row("predicted", `${Number(kernel.predicted_us.toPrecision(3))} µs`),
  ];
  if (found === null) return rows;
  return [
    row("measured", `${time(found.ns)} a run, ${time(kernel.spent / kernel.runs)} in the mean of ${plural(kernel.runs, "run")}`),
    row("rates", `${found.gflops.toFixed(1)} GFLOP/s, ${found.gbytes.toFixed(1)} GB/s${standing(found, ", ")}`),
    ...rows,
  ];
}

function kernelDetails(number) {
  const p = program();
  const kernel = p.kernels[number];
  const after = p.kernels.flatMap((other, m) => (other.below.includes(number) ? [m] : []));
  const pane = make("div", { id: "code" });
  const which = make("select", { onchange: () => show(state.view) },
    kernel.codes.map((_, n) => make("option", { value: n }, `part ${n + 1}`)));
  which.hidden = kernel.codes.length < 2;
  const views = [...VIEWS, ...p.texts];
  const buttons = views.map((view) =>
    make("button", { type: "button", id: `view-${view}`, onclick: () => show(view) }, view));
  async function show(wanted) {
    const view = views.includes(wanted) ? wanted : VIEWS[0];
    state.view = view;
    buttons.forEach((button, n) => button.classList.toggle("on", views[n] === view));
    let text = view === "stages" ? kernel.text : kernel.schedule;
    const part = Number(which.value);
    if (!VIEWS.includes(view)) text = (await code(kernel.codes[part]))[view];
    pane.replaceChildren(numbered(text, kernel.lines[part]));
  }
  show(state.view);
  return [
    make("h2", {}, kernel.name),
    make("div", { class: "dim" }, `launch ${number} of ${p.kernels.length}${p.places[kernel.place] ? `, in ${p.places[kernel.place]}` : ""}`),
    make("pre", { id: "origin" }, origin(kernel)),
    make("table", {}, measured(kernel),
      row("computes", kernel.nodes.map(nodeLink)),
      row("after", kernel.below.map(kernelLink)),
      row("before", after.map(kernelLink))),
    make("div", { class: "views" }, buttons, which),
    pane,
  ];
}

function programDetails() {
  const p = program();
  const cost = Object.entries(p.facts.cost).map(([name, n]) => row(name, n.toLocaleString("en")));
  return [
    make("h2", {}, p.name),
    make("p", { class: "dim" }, "Click a box for what it is; hover for the line that made it; double-click folds and unfolds; drag and wheel move."),
    make("table", {},
      row("definitions", p.facts.definitions),
      row("kernels", `${p.kernels.length}, of ${plural(new Set(p.kernels.flatMap((k) => k.codes)).size, "structure")}`),
      row("last run", `${plural(p.facts.launches_of_last_run, "launch").replace("launchs", "launches")}, ${bytes(p.facts.bytes_moved_by_last_run)} moved`),
      p.memory ? row("arena", `${bytes(p.memory.arena)}, at least ${bytes(p.memory.lower_bound)}`) : null,
      row("backend", `${p.facts.backend} ${p.facts.target}`), cost),
  ];
}

function showDetails() {
  const item = itemOf(state.chosen);
  let shown = programDetails();
  if (item !== null && item.kernel !== undefined) shown = kernelDetails(item.kernel);
  else if (item !== null && state.chosen[0] === "n") shown = nodeDetails(Number(state.chosen.slice(1)));
  else if (item !== null) shown = groupDetails(item);
  byId("details").replaceChildren(...shown.flat().filter((c) => c !== null));
}
