"""A program as a picture, dot or svg: what is stored, and the kernels between with their stages.

    x, w -> [kernel y: _sum = sum[k](x * w); y = max(_sum, 0)] -> y

A variable that is written again is another box from there on, so a picture has no circle. What runs
in a loop or a branch says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from pullback.ir.graph import Definition, Value, Variable
from pullback.ir.kernel import Kernel, stage_reads
from pullback.ir.notation import Names, shape_text
from pullback.ir.program import Compute, Feed, HostCall, Item, Launch, Receive
from pullback.ir.text import definition_text, stage_lines
from pullback.runtime.executable import Executable
from pullback.schedule.text import schedule_text
from pullback.viewer.graph import Place, placed
from pullback.viewer.layout import layered

WIDTH, HEIGHT = 7.3, 16.0  # of a letter and of a line, pixels, at 12 pixels of a monospaced font
PAD, GAP, ROW_GAP = 8.0, 24.0, 44.0  # around texts, between boxes of a row, between rows
MOST = 96  # letters of a line; longer ones end in dots


@dataclass(frozen=True, slots=True)
class Stage:
    """A definition in a kernel: its name, equation, what it reads, and the box that it stores to.

    `reads` are numbers of boxes, `inside` of earlier stages of the same box.
    """

    name: str
    equation: str
    reads: tuple[int, ...]
    inside: tuple[int, ...]
    store: int | None


@dataclass(slots=True)
class Box:
    """A variable, a kernel with its stages, or what the host does; `below`: boxes that it reads."""

    kind: str
    name: str
    lines: list[str]
    below: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)


class Picture:
    """The boxes of a program, each after those that it reads."""

    def __init__(self, program: Executable) -> None:
        self.boxes: list[Box] = []
        self._latest: dict[Variable, int] = {}
        self._names = Names()
        for place, item in placed(program.fused):
            if isinstance(item, Launch):
                self._kernel(place, item.kernel, _tiles(item.kernel, program))
            elif isinstance(item, Compute):
                self._definitions(place, item)
            else:
                self._host(place, item)

    def _variable(self, variable: Variable) -> int:
        """The box of what a variable holds now."""
        number = self._latest.get(variable)
        return self._written(variable, ()) if number is None else number

    def _written(self, variable: Variable, below: Sequence[int]) -> int:
        """A new box for a variable, from here on the one that is read."""
        kind = shape_text(variable.dtype, variable.shape)
        self.boxes.append(Box("variable", self._names(variable), [kind], list(below)))
        self._latest[variable] = len(self.boxes) - 1
        return len(self.boxes) - 1

    def _add(self, box: Box, reads: Sequence[Variable], writes: Sequence[Variable]) -> None:
        """A box behind what it reads, and what it writes behind it."""
        box.below = list(dict.fromkeys(map(self._variable, reads)))
        self.boxes.append(box)
        number = len(self.boxes) - 1
        for variable in writes:
            self._written(variable, [number])

    def _kernel(self, place: Place, kernel: Kernel, told: Sequence[str]) -> None:
        before = {v: self._variable(v) for v in kernel.reads}
        lines = [*([place.label] if place.label else []), *told]
        box = Box("kernel", kernel.name, lines)
        self._add(box, kernel.reads, kernel.writes)
        known: dict[Value, int] = {}
        for stage in kernel.every:
            sources = list(dict.fromkeys(take.source for take in stage_reads(stage)))
            store = None if stage.store is None else self._latest[stage.store]
            equation = _equation(stage_lines(stage, self._names)[1:])
            reads = tuple(before[s] for s in sources if isinstance(s, Variable))
            inside = tuple(known[s] for s in sources if s in known)
            known[stage.target] = len(box.stages)
            name = self._names(stage.target)
            box.stages.append(Stage(name, equation, reads, inside, store))

    def _definitions(self, place: Place, item: Compute) -> None:
        """What an interpreter runs: all definitions of an assignment in one box."""
        graph = item.graph
        before = {v: self._variable(v) for v in graph.inputs}
        box = Box("kernel", "definitions", [place.label] if place.label else [])
        self._add(box, graph.inputs, [v for v, _ in graph.assigns])
        into: dict[Value, int] = {d: self._latest[v] for v, d in graph.assigns}
        known: dict[Definition, int] = {}
        for d in graph.definitions:
            reads = tuple(before[s] for s in d.sources if isinstance(s, Variable))
            inside = tuple(known[s] for s in d.sources if isinstance(s, Definition))
            known[d] = len(box.stages)
            equation = _equation(definition_text(d, self._names).splitlines()[1:])
            box.stages.append(Stage(self._names(d), equation, reads, inside, into.get(d)))

    def _host(self, place: Place, item: Item) -> None:
        where = [place.label] if place.label else []
        if isinstance(item, Feed):
            self._add(Box("host", "feed", where), (), item.targets)
        elif isinstance(item, Receive):
            self._add(Box("host", "receive", where), item.sources, ())
        elif isinstance(item, HostCall):
            box = Box("host", item.name, [f"by {item.library}", *where])
            self._add(box, item.sources, item.targets)


def _tiles(kernel: Kernel, program: Executable) -> list[str]:
    """The first line of a kernel's schedule: tasks and tiles; of parts side by side none."""
    if program.target is None or kernel.parts:
        return []
    return schedule_text(program.chosen(kernel, program.target)).splitlines()[:1]


def _equation(lines: Sequence[str]) -> str:
    kept = [" ".join(line.split()) for line in lines]
    return "; ".join(line for line in kept if not line.startswith("reads "))


def dot(program: Executable) -> str:
    """Graphviz's language: a cluster for each kernel, a node for each stage and variable."""
    boxes = Picture(program).boxes
    lines = ["digraph program {", "  node [shape=box, fontname=monospace, fontsize=10];"]
    for n, box in enumerate(boxes):
        if box.kind == "variable":
            lines.append(f"  b{n} [label={_quoted(box.name, *box.lines)}, style=rounded];")
        elif not box.stages:
            lines.append(f"  b{n} [label={_quoted(box.name, *box.lines)}, style=dashed];")
        else:
            lines += _cluster(n, box)
    for n, box in enumerate(boxes):
        lines += _edges(n, box, boxes)
    return "\n".join([*lines, "}", ""])


def _cluster(n: int, box: Box) -> Iterator[str]:
    yield f"  subgraph cluster_{n} {{"
    yield f"    label={_quoted(f'kernel {box.name}', *box.lines)};"
    for k, stage in enumerate(box.stages):
        yield f"    b{n}s{k} [label={_quoted(stage.equation)}];"
    yield "  }"


def _edges(n: int, box: Box, boxes: Sequence[Box]) -> Iterator[str]:
    for k, stage in enumerate(box.stages):
        yield from (f"  b{b} -> b{n}s{k};" for b in stage.reads)
        yield from (f"  b{n}s{j} -> b{n}s{k};" for j in stage.inside)
        if stage.store is not None:
            yield f"  b{n}s{k} -> b{stage.store};"
    if not box.stages:
        yield from (f"  b{b} -> b{n};" for b in box.below if not boxes[b].stages)


def _quoted(*lines: str) -> str:
    texts = (_short(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(texts) + '"'


def _short(line: str) -> str:
    return line if len(line) <= MOST else f"{line[: MOST - 2]}.."


def svg(program: Executable) -> str:
    """One picture that any browser shows, complete in itself."""
    boxes = Picture(program).boxes
    texts = [_texts(box) for box in boxes]
    sizes = [
        (max(map(len, lines)) * WIDTH + 2 * PAD, len(lines) * HEIGHT + 2 * PAD) for lines in texts
    ]
    at, width, height = _positions([box.below for box in boxes], sizes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}">',
        f"<style>{STYLE}</style>",
    ]
    for n, box in enumerate(boxes):
        lines += [_arrow(at[b], sizes[b], at[n], sizes[n]) for b in box.below]
    for box, text, place, size in zip(boxes, texts, at, sizes, strict=True):
        lines += _drawn(box, text, place, size)
    return "\n".join([*lines, "</svg>", ""])


STYLE = (
    "text{font:12px monospace;fill:#222}rect{fill:#fff;stroke:#888}.kernel rect{fill:#eef4fb}"
    ".host rect{stroke-dasharray:4}.variable rect{fill:#f6f6f0}.name{font-weight:bold}"
    "path{fill:none;stroke:#aaa}"
)

Point = tuple[float, float]


def _texts(box: Box) -> list[str]:
    head = f"kernel {box.name}" if box.kind == "kernel" else box.name
    return [_short(t) for t in (head, *box.lines, *(s.equation for s in box.stages))]


def _positions(
    below: Sequence[Sequence[int]], sizes: Sequence[Point]
) -> tuple[list[Point], float, float]:
    """Where boxes lie: rows of the layered layout one under the other, each in the middle."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for n, (row, place) in enumerate(layered(below)):
        rows.setdefault(row, []).append((place, n))
    widths = {
        row: sum(sizes[n][0] for _, n in boxes) + GAP * (len(boxes) - 1)
        for row, boxes in rows.items()
    }
    whole = max(widths.values(), default=0.0)
    at: list[Point] = [(0.0, 0.0)] * len(sizes)
    y = GAP
    for row in sorted(rows):
        x = GAP + (whole - widths[row]) / 2
        for _, n in sorted(rows[row]):
            at[n] = x, y
            x += sizes[n][0] + GAP
        y += max(sizes[n][1] for _, n in rows[row]) + ROW_GAP
    return at, whole + 2 * GAP, y


def _arrow(start: Point, size: Point, end: Point, other: Point) -> str:
    """From the middle below one box to the middle above another."""
    x, y = start[0] + size[0] / 2, start[1] + size[1]
    u, v = end[0] + other[0] / 2, end[1]
    middle = (y + v) / 2
    return f'<path d="M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v:.1f}"/>'


def _drawn(box: Box, texts: Sequence[str], place: Point, size: Point) -> Iterator[str]:
    x, y = place
    yield f'<g class="{box.kind}"><title>{_text(box.name)}</title>'
    round_ = ' rx="8"' if box.kind == "variable" else ""
    yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"{round_}/>'
    for n, line in enumerate(texts):
        name = ' class="name"' if n == 0 else ""
        down = y + PAD + (n + 0.75) * HEIGHT
        yield f'<text{name} x="{x + PAD:.1f}" y="{down:.1f}">{_text(line)}</text>'
    yield "</g>"


def _text(line: str) -> str:
    """Text of XML, which has no control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in line))
