"""What a page shows of one program, as plain data: numbers and texts, nothing of the page itself.

Times are nanoseconds, sizes bytes, unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from pullback.backends.host.profile import Profile, Span, Timed
from pullback.errors import Origin
from pullback.ir.graph import Definition, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.notation import Names, shape_text
from pullback.ir.target import Target
from pullback.ir.text import definition_text, kernel_text
from pullback.memory.plan import Plan
from pullback.runtime.executable import Executable
from pullback.schedule.cost import Model, traffic_bytes
from pullback.viewer.code import Codes
from pullback.viewer.graph import COLUMNS, Graph, Node, Place, kernels, lines, link
from pullback.viewer.layout import layered

Json = dict[str, Any]

MOST_SPANS = 4000  # of the timeline, the first ones
MOST_POINTS = 2000  # of a curve
MANY_NODES = 150  # from which a graph is first shown folded


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers by step, such as the losses of a training run. `first`: the step of the first."""

    name: str
    values: Sequence[float]
    first: int = 1


@dataclass(slots=True)
class _Tables:
    """What rows name by number: blocks of the program, and origins with place and excerpt."""

    names: Names = field(default_factory=Names)
    places: dict[Place, int] = field(default_factory=dict)
    origins: dict[Origin, int] = field(default_factory=dict)

    def place(self, place: Place) -> int:
        """The number of a block."""
        return self.places.setdefault(place, len(self.places))

    def origin(self, origin: Origin | None) -> int:
        """The number of an origin; -1 for none."""
        return -1 if origin is None else self.origins.setdefault(origin, len(self.origins))

    def rows(self) -> Json:
        """The tables themselves."""
        origins = [{"place": o.place, "excerpt": o.excerpt()} for o in self.origins]
        return {"places": [p.label for p in self.places], "origins": origins}


def program_data(
    name: str, program: Executable, codes: Codes, curves: Sequence[Curve] = ()
) -> Json:
    """Everything about one program. `codes` collects the code of its kernels.

    Times are there where the program was compiled with ``Options(profile=True)``.
    """
    nodes, tables = Graph(program.program.body).nodes, _Tables()
    for node in nodes:
        tables.place(node.place)
    compiled = program.target is not None
    profile = program.profile if program.options.profile and compiled else None
    launches = link(nodes, program.fused)
    return {
        "name": name,
        "facts": _facts(program),
        "columns": COLUMNS,
        "kernels": _kernels(launches, program, profile, codes, tables),
        "texts": list(program.texts),
        "nodes": [_node(n, tables) for n in nodes],
        "layout": _laid(nodes, [[n] for n in range(len(nodes))]),
        "folds": {"line": _folds(nodes, lines(nodes)), "kernel": _folds(nodes, kernels(nodes))},
        "fold": "kernel" if len(nodes) > MANY_NODES and launches else "",
        "memory": None if program.plan is None else _memory(program.plan),
        "timeline": _timeline(profile),
        "curves": [_curve(c) for c in curves],
        **tables.rows(),
    }


def _facts(program: Executable) -> Json:
    """Counts of the whole program."""
    return {
        "definitions": len(program.definitions),
        "backend": program.options.backend,
        "target": program.target.name if program.target else "",
        "launches_of_last_run": program.launches,
        "barriers_of_last_run": program.barriers,
        "bytes_moved_by_last_run": program.bytes_moved,
        "launches_again": len(program.steps),
        "cost": asdict(program.cost),
        "compiler_ms": {n: s * 1e3 for n, s in program.timings.items()},
    }


def _node(node: Node, tables: _Tables) -> Json:
    value, names = node.value, tables.names
    kind = shape_text(value.dtype, value.shape)
    text = f"{node.kind} {names(value)}: {kind}"
    if isinstance(value, Definition):
        text = definition_text(value, names)
    return {
        "name": names(value),
        "kind": node.kind,
        "type": kind,
        "text": text,
        "column": node.column,
        "place": tables.place(node.place),
        "below": list(node.below),
        "assigns": [names(v) for v in node.assigns],
        "origin": tables.origin(value.origin),
        "kernels": list(node.kernels),
    }


def _folds(nodes: Sequence[Node], shared: Sequence[object]) -> Json:
    """Nodes that are one in a folded graph: the group of each, and the groups' rows and places.

    A group is what has the same in `shared`, None apart, in one column of one block.
    """
    number: dict[object, int] = {}
    group = []
    for n, node in enumerate(nodes):
        key = n if shared[n] is None else (node.column, node.place, shared[n])
        group.append(number.setdefault(key, len(number)))
    members: list[list[int]] = [[] for _ in number]
    for n, g in enumerate(group):
        members[g].append(n)
    return {"of": group, "layout": _laid(nodes, members)}


def _laid(nodes: Sequence[Node], groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Row and place of each group of nodes, laid out in its block and column apart."""
    of = {n: g for g, members in enumerate(groups) for n in members}
    parts: dict[tuple[int, Place], list[int]] = {}
    for g, members in enumerate(groups):
        first = nodes[members[0]]
        parts.setdefault((first.column, first.place), []).append(g)
    spots = [(0, 0)] * len(groups)
    for part in parts.values():
        own = {g: at for at, g in enumerate(part)}
        reads = [[of[s] for n in groups[g] for s in nodes[n].below] for g in part]
        below = [[own[r] for r in every if r in own] for every in reads]
        for g, where in zip(part, layered(below), strict=True):
            spots[g] = where
    return spots


def _kernels(
    launches: Sequence[tuple[Place, Kernel, list[int]]],
    program: Executable,
    profile: Profile | None,
    codes: Codes,
    tables: _Tables,
) -> list[Json]:
    """The launches in program order, with what each needs of those before."""
    target = program.target
    if target is None:
        return []
    codes.add([kernel for _, kernel, _ in launches], target, program.chosen, program.texts)
    wrote: dict[Variable, int] = {}
    logged: dict[int, list[int]] = {}
    for span in () if profile is None else profile.spans:
        logged.setdefault(span.launch, []).append(span.end - span.start)
    rows = []
    for number, (place, kernel, nodes) in enumerate(launches):
        timed = Timed(kernel, 0, 0, traffic_bytes(kernel))
        if profile is not None:
            timed = profile.launches[number]
        row = _kernel_row(timed, target, codes, tables)
        row["below"] = list(dict.fromkeys(wrote[v] for v in kernel.reads if v in wrote))
        row["median"] = median(logged[number]) if number in logged else None
        rows.append({**row, "nodes": nodes, "place": tables.place(place)})
        wrote.update(dict.fromkeys(kernel.writes, number))
    return rows


def _kernel_row(timed: Timed, target: Target, codes: Codes, tables: _Tables) -> Json:
    kernel, own = timed.kernel, codes.of(timed.kernel, target)
    return {
        "name": kernel.name,
        "text": kernel_text(kernel),
        "schedule": "\n\n".join(codes.schedules[n] for n in own),
        "codes": own,
        "lines": _lines(kernel, target, own, codes, tables),
        "origin": tables.origin(timed.origin),
        "runs": timed.runs,
        "spent": timed.spent,
        "flops": timed.work.flops,
        "bytes": timed.moved,
        "predicted_us": sum(map(Model(target).work_us, kernel.pieces)),
    }


def _lines(
    kernel: Kernel, target: Target, own: Sequence[int], codes: Codes, tables: _Tables
) -> list[list[int]]:
    """For each of a kernel's codes, the origins of the stages that its lines name by number."""
    pieces = {codes.of(piece, target)[0]: piece for piece in reversed(kernel.pieces)}
    stages = [(*pieces[n].stages, *pieces[n].finish) for n in own]
    return [[tables.origin(s.target.origin) for s in every] for every in stages]


def _memory(plan: Plan) -> Json:
    """The arena: each buffer with its offset and the launches that it lives through."""
    return {
        "arena": plan.arena_bytes,
        "lower_bound": plan.lower_bound_bytes,
        "total": plan.total_bytes,
        "launches": len(plan.scratch),
        "buffers": [
            {
                "name": b.name,
                "kind": "working" if b.variable is None else "value",
                "size": b.size,
                "at": at,
                "first": b.first,
                "last": b.last,
            }
            for b, at in sorted(plan.placed, key=lambda p: (p[0].first, p[1]))
        ],
    }


def _timeline(profile: Profile | None) -> Json | None:
    """The first spans, from the first one's start on: lane, name, start, duration, launch."""
    if profile is None or not profile.spans:
        return None
    spans: list[Span] = sorted(profile.spans, key=lambda s: s.start)
    shown = spans[:MOST_SPANS]
    lanes = list(dict.fromkeys(s.lane for s in shown))
    names = list(dict.fromkeys(s.name for s in shown))
    lane = {name: n for n, name in enumerate(lanes)}
    number = {name: n for n, name in enumerate(names)}
    start = shown[0].start
    return {
        "lanes": lanes,
        "names": names,
        "spans": [
            (lane[s.lane], number[s.name], s.start - start, s.end - s.start, s.launch)
            for s in shown
        ],
        "left_out": len(spans) - len(shown),
    }


def _curve(curve: Curve) -> Json:
    """Every n-th value, and the last."""
    count = len(curve.values)
    every = max(1, -(-count // MOST_POINTS))
    kept = list(range(0, count, every))
    if count and kept[-1] != count - 1:
        kept.append(count - 1)
    points = [(curve.first + n, curve.values[n]) for n in kept]
    return {"name": curve.name, "points": points, "count": count}
