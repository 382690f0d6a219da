"""What a group costs as one launch: a roofline over its best outer axes and tile.

Stages that do not depend on an outer axis repeat in every tile. What a tile keeps is near; the
first touch of a variable is far; later tiles find it near if a tile's needs fit L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from pullback.fuse.groups import FINISH, Group, class_extent, is_partial, stored
from pullback.fuse.problem import Problem
from pullback.ir.expr import upper
from pullback.ir.target import Target
from pullback.machine.machine import Machine

# Groups, and with them the order of sums, must not depend on how many threads there are.
THREADS = 2
# What does not fit L2 comes in runs: to begin one costs as much as so many more elements of it
# (2000 x 2000 written in columns of 200, 2.3 ms; in rows 1.7).
RUN = 32
# Share of peak that a contraction reaches, by rows in a tile.
ROWS = {1: 0.25, 2: 0.7, 3: 0.75, 4: 0.85, 5: 0.85, 6: 0.85, 7: 0.85}
MANY_ROWS = 16
TILE_POWER_STEP = 2
# Square tiles are tried over at least two to this power coordinates.
SQUARE_POWER = 13


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Predicted seconds, the chosen classes, scratch bytes a thread, threads, bytes and work."""

    seconds: float
    outer: tuple[int, ...]
    scratch: int
    threads: int
    bytes: int


Cost = Callable[[Problem, Group, Target], GroupCost]


def row_rate(rows: int) -> float:
    """Share of the peak rate by tile rows."""
    return 1.0 if rows >= MANY_ROWS else ROWS.get(rows, 0.95)


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does in a second, and what it takes to launch, seconds.

    `product`: floating-point operations of products; `vector`: weighted operations of others;
    bytes from the second-level cache, the next one, memory. Less work than `parallel` stays on
    one thread.
    """

    product: float
    vector: float
    near: float
    cache: float
    memory: float
    fork: float
    launch: float
    parallel: float


@cache
def rates(machine: Machine) -> Rates:
    """Of a machine, for whole kernels."""
    whole, launch = machine.tables["whole"], machine.tables["launch"]
    return Rates(
        whole["product_flops"] * 1e9,
        whole["work"] * 1e9,
        whole["near"] * 1e9,
        whole["cache"] * 1e9,
        whole["memory"] * 1e9,
        launch["fork"] / 1e9,
        launch["launch"] / 1e9,
        whole["parallel"] / 1e9,
    )


@dataclass(slots=True)
class _Load:
    """What a group does, by the classes each part depends on (bit masks).

    `narrow`: work of maps whose last axis a class cuts: lanes need neighbours along it. `runs`:
    bytes beyond L2 that are read and written in runs which a class cuts.
    """

    sizes: list[int]
    vector: dict[int, int] = field(default_factory=dict)
    near: dict[int, int] = field(default_factory=dict)
    narrow: dict[tuple[int, int], int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    partial: list[int] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    products: list[tuple[int, list[tuple[int, int]], int]] = field(default_factory=list)
    written: int = 0

    def cut(self, on: list[int | None], last: int, size: int) -> None:
        """Note what lies along axis `last` of a stage, if a class runs along it."""
        if last in on:
            number = on.index(last)
            self.runs[number] = self.runs.get(number, 0) + size

    def masks(self) -> list[int]:
        found = [*self.vector, *self.near]
        found += [m for _, m in self.reads]
        found += [m for _, _, m in self.products]
        return list(dict.fromkeys(found))


def estimate(problem: Problem, group: Group, target: Target) -> GroupCost:
    """The best schedule of a group."""
    load = _measure(problem, group, target.l2)
    total = sum(b for b, _ in load.reads) + load.written
    footprint = problem.footprint
    speeds = rates(target.profile)
    rate = speeds.near if footprint <= target.l2 else speeds.memory
    if target.l2 < footprint <= 16 * target.l2:
        rate = speeds.cache
    budget = scratch_budget(problem, group, target)
    best: tuple[bool, float] | None = None
    found = GroupCost(math.inf, (), 0, 1, total)
    for outer in outer_choices(problem, group):
        for tile in _tiles(load.sizes, outer):
            for seconds, scratch, threads in _times(load, outer, tile, rate, target):
                fits = min(1.0, scratch / budget)
                rank = scratch > budget, seconds * (1 + 0.01 * fits)
                if best is None or rank < best:
                    best = rank
                    found = GroupCost(seconds, outer, scratch, threads, total)
    return found


def scratch_budget(problem: Problem, group: Group, target: Target) -> int:
    """Bytes a tile may keep: more where a contraction reads an earlier stage."""
    mine = set(group.stages)
    for stage in group.stages:
        product = problem.products[stage] is not None
        if product and any(source in mine for source, _ in problem.reads[stage]):
            return max(target.scratch, target.l2 // 4)
    return target.scratch


def outer_choices(problem: Problem, group: Group) -> list[tuple[int, ...]]:
    """Class sets that agree: each alone, and all that spread the same stages."""
    kinds: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(group.classes):
        odd = tuple(s for s in group.stages if one[s] == FINISH or is_partial(problem, s, one))
        kinds.setdefault(odd, []).append(number)
    found: list[tuple[int, ...]] = [(n,) for n in range(len(group.classes))]
    for numbers in kinds.values():
        chosen: list[int] = []
        for number in numbers:
            if not any(_collides(group, number, c) for c in chosen):
                chosen.append(number)
        if len(chosen) > 1:
            found.append(tuple(chosen))
    return found or [()]


def _collides(group: Group, a: int, b: int) -> bool:
    """Whether two classes bind one axis of a stage twice."""
    one, two = group.classes[a], group.classes[b]
    return any(one[s] is not None and one[s] != FINISH and one[s] == two[s] for s in group.stages)


def _measure(problem: Problem, group: Group, l2: int) -> _Load:
    load = _Load([upper(class_extent(problem, c)) for c in group.classes])
    load.partial = [0] * len(group.classes)
    outside = set(stored(problem, group))
    kept = _kept(problem, group)
    for s in group.stages:
        on = [c[s] for c in group.classes]
        mask = sum(1 << i for i, a in enumerate(on) if a is not None)
        width = problem.definition(s).dtype.itemsize
        groups = problem.products[s]
        if groups is not None:
            rows = [_rows(problem, s, g, on) for g in (groups.rows, groups.columns)]
            load.products.append((2 * problem.points[s], rows, mask))
        else:
            work = problem.points[s] * max(1, problem.flops[s])
            load.vector[mask] = load.vector.get(mask, 0) + work
            last = len(problem.definition(s).shape) - 1
            if problem.is_map(s) and last in on:
                key = on.index(last), mask
                load.narrow[key] = load.narrow.get(key, 0) + work
        if s in outside:
            size = width * problem.sizes[s]
            load.written += size
            if size > l2:
                load.cut(on, len(problem.definition(s).shape) - 1, size)
        elif s in kept:
            load.near[mask] = load.near.get(mask, 0) + width * problem.sizes[s]
        for i, one in enumerate(group.classes):
            if is_partial(problem, s, one):
                load.partial[i] += width * problem.sizes[s]
    for source, uses in group.external.items():
        masks = [
            sum(1 << i for i, c in enumerate(group.classes) if c[s] is not None and c[s] in bind)
            for s, bind in uses
        ]
        size = problem.sizes[source] * problem.values[source].dtype.itemsize
        load.reads.append((size, min(masks, key=int.bit_count)))
        for s, bind in uses[:1]:
            if size > l2 and len(bind) > 1 and bind[-1] is not None:
                load.cut([c[s] for c in group.classes], bind[-1], size)
    return load


def _kept(problem: Problem, group: Group) -> set[int]:
    """Stages whose value a tile holds in scratch, not in registers."""
    mine = set(group.stages)
    found = set()
    for s in group.stages:
        through = problem.is_map(s)
        for source, _ in problem.reads[s]:
            if source in mine and not (through and problem.sizes[s] == problem.sizes[source]):
                found.add(source)
    return found


def _rows(
    problem: Problem, stage: int, axes: tuple[int, ...], on: list[int | None]
) -> tuple[int, int]:
    """The classes that cut a contraction's rows, as a mask, and the rows of the other axes."""
    extents = problem.definition(stage).extents
    mask = sum(1 << i for i, a in enumerate(on) if a in axes)
    return mask, math.prod(upper(extents[a]) for a in axes if a not in on)


def _tiles(sizes: list[int], outer: tuple[int, ...]) -> list[dict[int, int]]:
    """Tile extents to try: powers of two, the last axis filled first, or squares."""
    found = []
    most = math.ceil(math.log2(max(1, math.prod(sizes[i] for i in outer))))
    for power in {*range(0, most + 1, TILE_POWER_STEP), max(0, most - 1)}:
        tile, rest = {}, 2**power
        for i in reversed(outer):
            tile[i] = min(sizes[i], rest)
            rest = -(-rest // tile[i])
        found.append(tile)
        if len(outer) == 2 and power % 2 == 0 and most > SQUARE_POWER:
            found.append({i: min(sizes[i], 2 ** (power // 2)) for i in outer})
    return found


def _times(
    load: _Load, outer: tuple[int, ...], tile: dict[int, int], rate: float, target: Target
) -> list[tuple[float, int, int]]:
    """(seconds, scratch bytes, threads) of one tiling, on one thread and on all."""
    counts = {i: -(-load.sizes[i] // tile[i]) for i in outer}
    tiles = math.prod(counts.values())
    again = {
        mask: math.prod(c for i, c in counts.items() if not mask >> i & 1) for mask in load.masks()
    }
    lanes, speeds = target.lanes(4), rates(target.profile)
    work = sum(v * again[m] for m, v in load.vector.items()) / speeds.vector
    # Of a row that tiles cut, each piece costs its vectors and one to enter.
    work += sum(
        v * again[m] * ((-(-tile[i] // lanes) + 1) * lanes / tile[i] - 1) / speeds.vector
        for (i, m), v in load.narrow.items()
        if i in tile and tile[i] < load.sizes[i] and v > speeds.parallel * speeds.vector
    )
    runs = sum(
        b * RUN / tile[i] for i, b in load.runs.items() if i in tile and tile[i] < load.sizes[i]
    )
    for flops, groups, mask in load.products:
        rows = min(
            local * math.prod(n if on >> i & 1 else 1 for i, n in tile.items())
            for on, local in groups
        )
        work += flops * again[mask] / (speeds.product * row_rate(rows))
    scratch = sum(b * again[m] for m, b in load.near.items()) // tiles
    held = scratch + sum(b * again[m] for b, m in load.reads) / tiles
    again_rate = speeds.near if held <= target.l2 else rate
    found = []
    for used in sorted({1, min(THREADS, tiles)}):
        first = sum(b * min(used, again[m]) for b, m in load.reads) + load.written
        first += int(runs)
        if used > 1:
            first += 2 * used * sum(load.partial[i] for i in outer)
        more = sum(b * max(0, again[m] - used) for b, m in load.reads) + 2 * scratch * tiles
        busy = max(work, first / rate + more / again_rate)
        if used > 1 and busy < speeds.parallel:
            continue
        share = busy / used * (-(-tiles // used) * used / tiles)
        found.append((share + (speeds.fork if used > 1 else speeds.launch), scratch, used))
    return found
