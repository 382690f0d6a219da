// Charts of the whole program: roofline, memory, timeline, curves, what compiling took.

const EDGE = { left: 70, right: 16, top: 12, bottom: 34 };

function frame() {
  const area = byId("chart");
  const [wide, high] = [area.clientWidth, area.clientHeight];
  const found = { left: EDGE.left, right: wide - EDGE.right, top: EDGE.top, bottom: high - EDGE.bottom };
  found.svg = draw("svg", {},
    draw("path", { class: "axis", d: `M${found.left} ${found.top}V${found.bottom}H${found.right}` }));
  area.replaceChildren(found.svg);
  return found;
}

const words = (x, y, text, anchor = "middle") =>
  draw("text", { class: "small", x, y, "text-anchor": anchor }, text);

function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

// Round numbers for a logarithmic axis: 1, 2, 5, 10, ..; of many only the powers of ten.
function powers(low, high) {
  const steps = high / low > 1e4 ? [1] : [1, 2, 5];
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
    found.push(...steps.map((s) => s * 10 ** p).filter((v) => v >= low && v <= high));
  return found;
}

function roofline() {
  const timed = program().kernels.map((k, n) => ({ k, n, r: rates(k) })).filter((t) => t.r !== null);
  const points = timed.filter((t) => t.k.flops > 0 && t.k.bytes > 0);
  const f = frame();
  if (!points.length) return f.svg.append(words(f.left + 10, 30, "nothing was timed, or no kernel computes with floats", "start"));
  const dense = points.map((t) => t.k.flops / t.k.bytes);
  const speeds = points.map((t) => t.r.gflops);
  if (data.roof) {
    dense.push(data.roof.gflops / data.roof.gbytes);
    speeds.push(data.roof.gflops);
  }
  const [low, high] = [Math.min(...dense) / 2, Math.max(...dense) * 2];
  const [slow, fast] = [Math.min(...speeds) / 2, Math.max(...speeds) * 2];
  const log = Math.log10;
  const x = (v) => linear(log(low), log(high), f.left, f.right)(log(v));
  const y = (v) => linear(log(slow), log(fast), f.bottom, f.top)(log(v));
  powers(low, high).forEach((v) => f.svg.append(words(x(v), f.bottom + 14, count(v))));
  powers(slow, fast).forEach((v) => f.svg.append(words(f.left - 6, y(v) + 3, count(v), "end")));
  f.svg.append(words((f.left + f.right) / 2, f.bottom + 28, "flops for each byte moved"),
    words(f.left + 6, f.top + 8, "GFLOP/s", "start"));
  if (data.roof) {
    const { gflops, gbytes } = data.roof;
    const start = Math.max(low, slow / gbytes);
    const knee = gflops / gbytes;
    f.svg.append(draw("path", { class: "roof", d: `M${x(start)} ${y(start * gbytes)}L${x(knee)} ${y(gflops)}H${f.right}` }),
      words(f.right, y(gflops) - 5, `${gflops.toFixed(0)} GFLOP/s, ${gbytes.toFixed(0)} GB/s`, "end"));
  }
  const most = Math.max(...timed.map((t) => t.k.spent));
  for (const { k, n, r } of points) {
    const point = draw("circle", {
      class: "point", "data-kernel": n, cx: x(k.flops / k.bytes), cy: y(r.gflops), r: 3 + 9 * Math.sqrt(k.spent / most),
      onclick: () => choose(`k${n}`),
    });
    f.svg.append(hinted(point, () => `${k.name}\n${time(r.ns)} a run, ${r.gflops.toFixed(1)} GFLOP/s, ${r.gbytes.toFixed(1)} GB/s`));
  }
  const without = timed.length - points.length;
  if (without) f.svg.append(words(f.right, f.bottom - 6, `${plural(without, "kernel")} without operations on floats`, "end"));
}

function memory() {
  const m = program().memory;
  const f = frame();
  if (!m || !m.buffers.length) return f.svg.append(words(f.left + 10, 30, "nothing is kept in an arena", "start"));
  const x = linear(0, m.launches, f.left, f.right);
  const y = linear(0, m.arena, f.bottom, f.top);
  const band = draw("rect", { class: "band", y: f.top, height: f.bottom - f.top, width: x(1) - x(0), visibility: "hidden" });
  f.svg.append(band);
  for (const b of m.buffers) {
    const block = draw("rect", {
      class: `block ${b.kind}`, x: x(b.first), width: Math.max(1, x(b.last + 1) - x(b.first)),
      y: y(b.at + b.size), height: Math.max(1, y(b.at) - y(b.at + b.size)), onclick: () => choose(`k${b.first}`),
    });
    f.svg.append(hinted(block, () => `${b.name}: ${bytes(b.size)} at ${b.at}\nlaunches ${b.first} to ${b.last}`));
  }
  f.svg.append(words((f.left + f.right) / 2, f.bottom + 28, `launches: ${m.launches}`),
    words(f.left, f.bottom + 14, "0"), words(f.right, f.bottom + 14, m.launches, "end"),
    words(f.left - 6, f.top + 8, bytes(m.arena), "end"), words(f.left - 6, f.bottom, "0", "end"),
    draw("path", { class: "roof", d: `M${f.left} ${y(m.lower_bound)}H${f.right}` }),
    words(f.right, y(m.lower_bound) + 12, `most alive at once: ${bytes(m.lower_bound)}`, "end"));
  f.mark = () => {
    const item = itemOf(state.chosen);
    const on = item !== null && item.kernel !== undefined;
    band.setAttribute("visibility", on ? "visible" : "hidden");
    if (on) band.setAttribute("x", x(item.kernel));
  };
  return f.mark;
}

function timeline() {
  const t = program().timeline;
  const f = frame();
  if (!t) return f.svg.append(words(f.left + 10, 30, "nothing was timed", "start"));
  const end = Math.max(...t.spans.map(([, , at, long]) => at + long));
  const shown = { from: 0, to: end };
  const layer = draw("g", {});
  const high = (f.bottom - f.top) / t.lanes.length;
  t.lanes.forEach((lane, n) => f.svg.append(words(f.left - 6, f.top + (n + 0.5) * high, lane, "end")));
  f.svg.append(layer);
  const left = t.left_out ? `, the first ${t.spans.length} of ${t.spans.length + t.left_out} spans` : "";
  function redraw() {
    const x = linear(shown.from, shown.to, f.left, f.right);
    layer.replaceChildren(words(f.left, f.bottom + 14, time(shown.from), "start"),
      words(f.right, f.bottom + 14, time(shown.to), "end"),
      words((f.left + f.right) / 2, f.bottom + 28, `time${left}`));
    for (const [lane, name, at, long, kernel] of t.spans) {
      const [a, b] = [Math.max(f.left, x(at)), Math.min(f.right, x(at + long))];
      if (b < f.left || a > f.right) continue;
      const chosen = state.chosen === `k${kernel}` ? " chosen" : "";
      const span = draw("rect", {
        class: `block${kernel < 0 ? " working" : ""}${chosen}`, x: a, width: Math.max(0.6, b - a),
        y: f.top + lane * high + 3, height: Math.max(2, high - 6),
        onclick: () => kernel >= 0 && choose(`k${kernel}`),
      });
      layer.append(hinted(span, () => `${t.names[name]}: ${time(long)} at ${time(at)}`));
    }
  }
  movable(f.svg, (dx, _, factor, px) => {
    const scale = (shown.to - shown.from) / (f.right - f.left);
    const at = shown.from + (px - f.left) * scale;
    const width = Math.min(end, Math.max(end / 1e6, (shown.to - shown.from) / factor));
    const share = factor === 1 ? 0 : (px - f.left) / (f.right - f.left);
    shown.from = Math.max(0, Math.min(end - width, factor === 1 ? shown.from - dx * scale : at - share * width));
    shown.to = shown.from + width;
    redraw();
  });
  redraw();
  return redraw;
}

function curveChart(found) {
  const f = frame();
  const points = found.points.filter(([, value]) => value !== null);
  if (!points.length) return f.svg.append(words(f.left + 10, 30, "no numbers", "start"));
  const values = points.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = linear(points[0][0], points[points.length - 1][0], f.left, f.right);
  const y = linear(low, high, f.bottom - 6, f.top + 6);
  f.svg.append(draw("polyline", { class: "curve", points: points.map(([at, v]) => `${x(at)},${y(v)}`).join(" ") }),
    words(f.left - 6, y(high) + 3, high.toPrecision(4), "end"), words(f.left - 6, y(low) + 3, low.toPrecision(4), "end"),
    words(f.left, f.bottom + 14, points[0][0]), words(f.right, f.bottom + 14, points[points.length - 1][0], "end"),
    words((f.left + f.right) / 2, f.bottom + 28, `${found.name} by step`));
  const dot = draw("circle", { class: "point", r: 4, visibility: "hidden" });
  const area = draw("rect", { x: f.left, y: f.top, width: f.right - f.left, height: f.bottom - f.top, "fill-opacity": 0 });
  let near = points[0];
  area.addEventListener("pointermove", (event) => {
    const at = event.clientX - byId("chart").getBoundingClientRect().left;
    near = points.reduce((a, b) => (Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a));
    fill(dot, { cx: x(near[0]), cy: y(near[1]), visibility: "visible" }, []);
    byId("hint").replaceChildren(make("pre", {}, `step ${near[0]}: ${near[1]}`));
  });
  f.svg.append(dot, hinted(area, () => `step ${near[0]}: ${near[1]}`));
}

function compiler() {
  const stages = Object.entries(program().facts.compiler_ms).sort((a, b) => b[1] - a[1]);
  const f = frame();
  const x = linear(0, Math.max(...stages.map(([, ms]) => ms), 1e-9), f.left, f.right - 80);
  const high = Math.min(22, (f.bottom - f.top) / Math.max(1, stages.length));
  stages.forEach(([name, ms], n) => {
    const y = f.top + n * high;
    f.svg.append(draw("rect", { class: "block", x: f.left, y: y + 1, height: high - 2, width: Math.max(1, x(ms) - f.left) }),
      words(f.left - 6, y + high / 2 + 3, name, "end"), words(x(ms) + 6, y + high / 2 + 3, `${ms.toFixed(1)} ms`, "start"));
  });
}

function charts() {
  const own = program().curves.map((c) => [c.name, () => curveChart(c)]);
  return new Map([...own, ["roofline", roofline], ["memory", memory], ["timeline", timeline], ["compiler", compiler]]);
}
