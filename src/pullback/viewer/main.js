// Choosing programs, items and charts; keys; what the address says (#k3 chooses kernel 3).

let remark = null; // tells the chart that is shown what is chosen

function choose(id) {
  state.chosen = id;
  mark();
  showDetails();
  if (remark) remark();
  for (const point of document.querySelectorAll(".point[data-kernel]"))
    point.classList.toggle("chosen", id === `k${point.dataset.kernel}`);
  history.replaceState(null, "", id === null ? "#" : `#${id}`);
}

function showChart(name) {
  const every = charts();
  state.tab = every.has(name) ? name : [...every.keys()][0];
  byId("tabs").replaceChildren(...[...every.keys()].map((key) =>
    make("button", { type: "button", id: `tab-${key}`, class: key === state.tab ? "on" : "", onclick: () => showChart(key) }, key)));
  remark = every.get(state.tab)() || null;
  choose(state.chosen);
}

function showProgram(number) {
  const p = data.programs[number];
  Object.assign(state, { program: number, fold: p.fold, open: new Set(), chosen: null });
  byId("fold").value = p.fold;
  byId("summary").textContent = `${plural(p.facts.definitions, "definition")}, ${plural(p.kernels.length, "kernel")}`
    + (p.memory ? `, arena ${bytes(p.memory.arena)}` : "");
  drawGraph();
  fit(false);
  showChart(state.tab);
}

function start() {
  byId("programs").append(...data.programs.map((p, n) => make("option", { value: n }, p.name)));
  byId("programs").parentElement.hidden = data.programs.length < 2;
  byId("programs").addEventListener("change", (event) => showProgram(Number(event.target.value)));
  byId("fold").addEventListener("change", (event) => {
    Object.assign(state, { fold: event.target.value, open: new Set() });
    drawGraph();
    fit(false);
    choose(null);
  });
  byId("fit").addEventListener("click", () => fit(true));
  byId("search").addEventListener("input", (event) => search(event.target.value));
  byId("search").addEventListener("keydown", (event) => {
    const first = event.key === "Enter" ? search(event.target.value) : null;
    if (first) { choose(first.id); centre(first); }
  });
  addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT") return;
    if (event.key === "/") { event.preventDefault(); byId("search").focus(); }
    if (event.key === "Escape") choose(null);
  });
  addEventListener("resize", () => showChart(state.tab));
  const wanted = location.hash.slice(1);
  showProgram(0);
  if (itemOf(wanted)) choose(wanted);
}

start();
