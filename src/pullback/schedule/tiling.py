"""How wide tiles are: as wide as scratch allows; of contractions by predicted time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from pullback.config import Cap, Caps, Ints, Pair, frozen
from pullback.cost.facts import elements
from pullback.cost.product import Travel, product_ns
from pullback.cost.shares import most_rows, of_columns, of_rows
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Take, upper
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.node import walk
from pullback.schedule.contraction import WORD, volume
from pullback.schedule.cost import Model, traffic_bytes
from pullback.schedule.schedule import Step, Steps, Tile
from pullback.schedule.slots import Lives, tile_counts, tile_shape

# Tile extents tried along one axis.
EXTENTS: Caps = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# Tile extents are made of so many, the first that has room: whole vectors.
STEPS: Caps = (16, 8)

# A tile's last vector has at most this part of the tile in empty lanes, one in so many.
EMPTY_LANES = 6

# It is worked out for so many tasks whether they have equal work, of so many tiles each: what one
# tile more or less makes out is less where they have more.
FEW_TASKS: Cap = 4
MANY_TILES: Cap = 8

# Axes searched, those of a contraction's rows and columns first, then from the last; tiles of the
# others have an extent of one.
SEARCHED: Cap = 3

# A stage with less than this share of the largest one's work has no say in which axes run in lanes.
SMALL_WORK = 16

# A kernel too small for two threads keeps scratch below this share of what it moves, so that
# scratch does not rule the memory of small programs; but this much is always allowed, bytes, and
# whole register tiles (two triangles of 40 x 40 times 40 x 50: 9 us, two columns at a time 33), and
# two rows of a layer at a time, which read its weights once (encoder of d 64: 3.8 -> 2.9 us).
SMALL_SHARE = 256
SMALL_BYTES = 4096


def revisited_bytes(kernel: Kernel, body: Iterable[Step], tile: Tile) -> int:
    """Bytes of variables that change from tile to tile and are read by several steps of a tile."""
    sizes: dict[Variable, int] = {}
    users: dict[Variable, set[int]] = {}
    for number, step in enumerate(body):
        for stage in (kernel.stages[n] for n in step.stages):
            bound = stage.bound
            extents = [upper(e) for e in stage.extents]
            for axis, outer in bound.items():
                extents[axis] = tile[outer]
            for take in takes(stage):
                axes = frozenset[int]().union(*(i.axes for i in take.indices))
                if not isinstance(take.source, Variable) or axes.isdisjoint(bound):
                    continue
                size = prod(extents[a] for a in axes) * take.source.dtype.itemsize
                sizes[take.source] = max(sizes.get(take.source, 0), size)
                users.setdefault(take.source, set()).add(number)
    return sum(size for source, size in sizes.items() if len(users[source]) > 1)


def takes(stage: Stage) -> tuple[Take, ...]:
    """The reads of a stage that have indices."""
    return tuple(t for t in stage_reads(stage) if t.indices)


def choose_tile(fit: Fit) -> Ints:
    """Tile extents of every outer axis."""
    product_ = any(step.product is not None for step in fit.body)
    target = fit.model.target
    limit = target.l2 // 2 if product_ else target.scratch
    if fit.tasks == 1:
        least = fit.lives.bytes(fit.least)
        limit = min(limit, least + max(SMALL_BYTES, traffic_bytes(fit.kernel) // SMALL_SHARE))
    return _searched(fit, limit) if product_ else _greedy(fit, limit)


@frozen
class Fit:
    """A kernel whose tile is sought, for so many tasks."""

    kernel: Kernel
    body: Steps
    lives: Lives
    tasks: int
    model: Model

    @property
    def wide(self) -> int:
        """Elements of a run that is worth being one."""
        return int(self.model.target.profile.rate("held", "strip")) // 4

    @property
    def lanes(self) -> set[int]:
        """The outer axes that run in lanes somewhere; not of a number a row beside long rows."""
        members = [(self.kernel.stages[n], step) for step in self.body for n in step.stages]
        work = {stage: elements(stage.extents) for stage, _ in members}
        most = max(work.values(), default=0)
        large = [(s.bound, step.vector) for s, step in members if work[s] * SMALL_WORK >= most]
        return {bound[axis] for bound, axis in large if axis in bound}

    @property
    def least(self) -> Ints:
        """A tile of one coordinate, but wide along both sides of register tiles."""
        wide: set[int] = set()
        for step in self.body:
            stage, product_ = self.kernel.stages[step.lead], step.product
            # with few rows, register tiles of whole vectors do not matter
            few = most_rows(self.model.target.profile)
            if product_ is not None and upper(stage.shape[product_.row]) > few:
                bound = stage.bound
                wide |= {bound[a] for a in (product_.row, product_.column) if a in bound}
        extents = [min(self.wide, upper(e)) for e in self.kernel.outer]
        return tuple(e if n in wide else 1 for n, e in enumerate(extents))

    def cuts(self, stage: Stage, tile: Tile) -> bool:
        """Whether tiles cut across the blocks that ``axis // c`` and ``axis % c`` count."""
        if stage not in self.model.blocks:
            self.model.blocks[stage] = _blocks(stage)
        return any(block % tile[outer] for outer, block in self.model.blocks[stage])

    def tiles(self, tile: Tile) -> int:
        """How many tiles there are."""
        return prod(tile_counts(self.kernel, tile))

    def uneven(self, tile: Tile) -> float:
        """How long two threads take over half of the work, by turns.

        ``17 in tiles of 16 for two tasks -> 1.9, in tiles of 9 -> 1.1``
        """
        if not 1 < self.tasks <= FEW_TASKS:
            return 1.0
        count = self.tiles(tile)
        if count > MANY_TILES * self.tasks:
            return 1.0
        sizes = [
            [min(t, upper(e) - first) for first in range(0, upper(e), t)]
            for e, t in zip(self.kernel.outer, tile, strict=True)
        ]
        every = [prod(extents) for extents in product(*sizes)]
        ends = [n * count // self.tasks for n in range(self.tasks + 1)]
        loads = [0, 0]
        for first, end in pairwise(ends):
            loads[loads.index(min(loads))] += sum(every[first:end])
        return max(loads) * len(loads) / sum(loads)


def _greedy(fit: Fit, limit: int) -> Ints:
    """Those in lanes first, then inner axes, as wide as scratch and the number of tasks allow.

    At least one vector of float32 along an axis in lanes, be it that data leave the cache.
    """
    target = fit.model.target
    vector = target.lanes(4)
    revisits = len(fit.body) > 1
    near = target.l2 // 2
    lanes = fit.lanes
    shared = int(target.l1 * target.profile.rate("held", "close"))
    extents = [upper(e) for e in fit.kernel.outer]
    tile = [1] * len(extents)
    order = sorted(range(len(extents)), key=lambda axis: (axis not in lanes, -axis))
    for place, axis in enumerate(order):
        counts = [-(-extents[a] // tile[a]) for a in order[:place]]
        before = prod(counts) * prod(extents[a] for a in order[place + 1 :])
        most = extents[axis]
        if before < fit.tasks:
            fewest = min(vector, most) if axis in lanes else 1
            most = max(fewest, most * before // fit.tasks)
        close = limit if axis in lanes else min(limit, shared)

        def held(extent: int, axis: int = axis) -> int:
            return fit.lives.bytes((*tile[:axis], extent, *tile[axis + 1 :]))

        def used(extent: int, axis: int = axis, close: int = close) -> int:
            trial = (*tile[:axis], extent, *tile[axis + 1 :])
            again = revisited_bytes(fit.kernel, fit.body, trial) if revisits else 0
            return again * limit // close + held(extent)

        widest = _widest(most, limit, used)
        if widest < fit.wide and axis in lanes:
            strip = _widest(min(most, fit.wide), near, used)
            widest = max(widest, _widest(strip, limit, held))
        if widest < vector and axis in lanes:
            widest = max(widest, _widest(min(most, vector), limit, held))
        tile[axis] = round_tile(widest, fit.kernel.outer[axis])
        if tile[axis] < extents[axis] and axis not in lanes:
            break
    return tuple(tile)


def _searched(fit: Fit, limit: int) -> Ints:
    """The cheapest tile of a few extents for each axis whose scratch fits `limit`.

    Or much more, where few rows and columns take that already: long rows, or what all tiles share.
    """
    target = fit.model.target
    wide = _searched_axes(fit)
    outer = fit.kernel.outer
    held = target.profile.tables["held"]
    full = most_rows(target.profile)
    few = tuple(min(full, upper(e)) if n in wide else 1 for n, e in enumerate(outer))
    shared = fit.lives.bytes((1,) * len(outer)) * 5 // 4
    long = fit.tasks > 1 and fit.lives.bytes(few) > limit
    most = max(shared, int(held["most"] * target.l2)) if long else limit
    choices = [_extents(e, fit.tasks) if n in wide else [1] for n, e in enumerate(outer)]
    tiles = [t for t in product(*choices) if fit.tiles(t) >= fit.tasks]
    ranked = sorted((tile_ns(fit, t) * fit.uneven(t), [-n for n in reversed(t)]) for t in tiles)
    best: tuple[float, Ints] | None = None
    for cost, negative in ranked:
        tile = tuple(-n for n in reversed(negative))
        if best is not None and cost >= best[0]:
            break
        scratch = fit.lives.bytes(tile)
        if scratch > most:
            continue
        if scratch <= target.l2 * held["near"]:
            best = (cost, tile)
            break
        cost *= held["far"] if scratch <= limit else held["beyond"]
        if best is None or cost < best[0]:
            best = (cost, tile)
    return best[1] if best is not None else (1,) * len(fit.kernel.outer)


def _searched_axes(fit: Fit) -> list[int]:
    """The outer axes whose tile extents are searched."""
    axes: dict[int, None] = {}
    for step in fit.body:
        if step.product is None:
            continue
        bound = fit.kernel.stages[step.lead].bound
        sides = (step.product.column, step.product.row)
        axes.update({bound[a]: None for a in sides if a in bound})
    axes.update(dict.fromkeys(reversed(range(len(fit.kernel.outer)))))
    return list(axes)[:SEARCHED]


def _extents(extent: int | Dim, tasks: int) -> list[int]:
    """Tile extents worth trying along an axis; also what gives each task one."""
    size = upper(extent)
    rounded = [round_tile(n, extent) for n in EXTENTS if n < size]
    each = {-(-size // tasks)} if tasks <= FEW_TASKS else set()
    return sorted({*rounded, *each, size})


def tile_ns(fit: Fit, tile: Tile, terms: int | None = None) -> float:
    """Predicted time of the kernel on one thread with this tile, nanoseconds.

    `terms`: products of a block of k, 0: k is one; None: as if operands of products were near.
    """
    kernel = fit.kernel
    machine = fit.model.target.profile
    counts = tile_counts(kernel, tile)
    enter = machine.rate("whole", "step")
    total = 0.0
    for step in fit.body:
        total += enter * prod(counts[: step.level])
        for place, number in enumerate(step.stages):
            stage = kernel.stages[number]
            repeats = prod(
                count
                for count, axis in zip(counts[: step.level], stage.outer, strict=False)
                if axis is None
            )
            work = fit.model.stage_ns(stage) * repeats
            if step.product is not None and place == 0:
                work = _product_ns(fit, step, work, tile, counts, terms)
            elif fit.cuts(stage, tile):
                work *= machine.rate("block", "gathered")
            total += work
    return total


def _product_ns(
    fit: Fit, step: Step, work: float, tile: Tile, counts: list[int], terms: int | None
) -> float:
    """Of a sum of products, whose multiply-adds take `work` at the peak."""
    target = fit.model.target
    stage = fit.kernel.stages[step.lead]
    seen = step.product
    assert seen is not None
    machine = target.profile
    block = machine.tables["block"]
    shape = tile_shape(stage, tile)
    rows, columns = shape[seen.row], shape[seen.column]
    work /= of_rows(machine, rows)
    packing = 0.0
    if rows <= seen.dots:
        work /= block["dots"] * min(1.0, columns / block["dot_columns"])
    else:
        work /= of_columns(machine, columns, target.lanes(4))
        packing = _packing_ns(step, stage, counts, fit.tasks, machine.rate("whole", "pack"))
    if terms is None:
        return work + packing
    size = volume(stage, seen.right.axes) * seen.right.dtype.itemsize
    if size <= target.l2:
        return work + packing
    bound = stage.bound
    over = frozenset(stage.over)
    sample = size // volume(stage, seen.left.axes & seen.right.axes - over)
    turns = prod(counts[o] for a, o in bound.items() if a not in seen.right.axes)
    again = sums = 0
    direct = seen.direct
    if terms:
        packing = size * turns / WORD * machine.rate("whole", "pack")
        sums = elements(stage.shape) * ((volume(stage, over) - 1) // terms) * WORD
        direct = direct and terms != block["terms"]
    elif rows > seen.dots:
        widest = max(machine.tiles, key=lambda t: t.share).vectors
        depth = prod(tile[bound[a]] if a in bound else upper(stage.extents[a]) for a in over)
        if depth * widest * target.vector > target.l2 // 2:
            again = size * turns * -(-rows // most_rows(machine))
    ahead = terms > 0 and rows < block["few"]
    right = Travel(size, sample, turns, again, sums, direct, ahead)
    return product_ns(work, packing, right, target)


def _blocks(stage: Stage) -> list[Pair]:
    """Outer axes that the body divides, with the divisors."""
    blocks: dict[Pair, None] = {}
    for node in walk(stage.body):
        if not isinstance(node, E.FloorDiv | E.Mod) or not isinstance(node.right, E.Const):
            continue
        if node.dtype.is_integer:
            for axis, outer in stage.bound.items():
                if axis in node.left.axes and node.right.value:
                    blocks[outer, int(node.right.value)] = None
    return list(blocks)


def _packing_ns(
    step: Step,
    stage: Stage,
    counts: list[int],
    tasks: int,
    each: float,
) -> float:
    """Time to pack panels, `each` an element: once a task, or again for every tile of the loops
    around them.
    """
    if step.product is None or step.product.direct:
        return 0.0
    right = step.product.right
    size, inner = _panels(right, stage)
    again_here = inner or step.product.word > 1
    own = [o for a, o in stage.bound.items() if a in right.axes]
    if not again_here and not own:
        return size * each * tasks
    depth = step.level if again_here else max(own) + 1
    again = prod(count for o, count in enumerate(counts[:depth]) if o not in own)
    # Tasks that meet in a panel pack it each: six heads in each of eight tiles, eight times.
    return size * max(again, tasks / prod(counts[o] for o in own)) * each


@lru_cache(maxsize=256)
def _panels(right: E.Expr, stage: Stage) -> tuple[int, bool]:
    """Elements of all panels of an operand, and whether stages before compute it."""
    inner = any(isinstance(n, Take) and not isinstance(n.source, Variable) for n in walk(right))
    return prod(upper(stage.extents[a]) for a in right.axes), inner


def _widest(most: int, limit: int, used: Callable[[int], int]) -> int:
    """The largest extent up to `most` whose scratch fits; it grows about in proportion."""
    extent = most
    while extent > 1 and (bytes_used := used(extent)) > limit:
        extent = max(1, min(extent - 1, extent * limit // bytes_used))
    return extent


def round_tile(most: int, extent: int | Dim) -> int:
    """A tile extent up to `most`: all, or a divisor (of whole vectors, if any).

    A divisor that would leave much of its last vector empty is none (2 x 255 by 255 x 255 with its
    gradients: 43 us in tiles of 17, 35 in tiles of 32).
    Example: ``most=20, extent=64 -> 16``
    """
    size = upper(extent)
    if most >= size:
        return size
    if isinstance(extent, int):
        divisors = [d for d in range(max(1, -(-most // 2)), most + 1) if size % d == 0]
        if most >= STEPS[0]:
            divisors = [d for d in divisors if -d % STEPS[0] * EMPTY_LANES <= d]
        for step in (*STEPS, 1):
            even = [d for d in divisors if d % step == 0]
            if even:
                return max(even)
    for step in STEPS:
        if most >= step:
            return most // step * step
    return most
