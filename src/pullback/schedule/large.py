"""Large products: tiles as wide as packed panels pay for, k in blocks that stay near.

Each tile packs its own block of `right`, which all its rows share, and of `left` where that is not
contiguous along k: ``c[512, 1024] = sum[b](sum[k in b](left[512, k] * right[k, 1024]))``.
"""

from __future__ import annotations

from itertools import product
from math import prod

from pullback.config import Ints, Pair, frozen
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target
from pullback.schedule.contraction import LONG, exact_sums, volume
from pullback.schedule.cost import most_tasks
from pullback.schedule.regions import regions
from pullback.schedule.schedule import Product, Steps, Tile, Way
from pullback.schedule.slots import Lives, tile_counts
from pullback.schedule.tiling import STEPS


@frozen
class Tiling:
    """How a kernel runs: tile, tasks and products of a block of k; 0: k is one block."""

    tile: Tile
    tasks: int
    terms: int = 0


def blocks(kernel: Kernel, body: Steps, scratch: Lives, target: Target) -> tuple[Tiling, ...]:
    """The ways of a kernel around one product to go in blocks of k; none of a product whose
    operands stay in the second-level cache, unless in words.
    """
    products = [step for step in body if step.product is not None]
    if len(products) != 1 or any(s.way not in (Way.TILES, Way.SWEEP) for s in body):
        return ()
    step = products[0]
    stage = kernel.stages[step.lead]
    assert step.product is not None
    if stage.partial:
        return _tall(kernel, stage, step.product, target)
    groups = _groups(stage, step.product)
    guards = regions(kernel.stages)
    if groups is None or guards.work.get(stage.target) or guards.needed.get(stage.target):
        return ()
    size = stage.body.dtype.itemsize
    width = target.vector // size
    direct = step.product.direct
    rows, columns, terms = groups.extents
    if terms * columns * size <= target.l2 and step.product.word == 1:
        return ()
    tasks = most_tasks(kernel, target)
    if terms > LONG and rows * -(-columns // width) * width <= exact_sums(target.vectors, width):
        # one tile, no blocks of k: they would wait in memory without what they lost
        inside = {*groups.rows, *groups.columns}
        tile = tuple(upper(e) if a in inside else 1 for a, e in enumerate(kernel.outer))
        return (Tiling(tile, min(prod(tile_counts(kernel, tile)), tasks)),)
    block = target.profile.tables["block"]
    ways = []
    for packed in (False, True) if direct else (True,):
        most = int(block["terms"])
        wide = int(block["columns" if packed else "run"])
        tile = _tile(kernel, groups, (int(block["rows"]) * step.product.word, wide))
        row = prod(tile[a] for a in groups.columns) * size
        if not packed:
            most = _streamed_terms(row, rows, target)
        elif direct and (rows < block["few"] or row * min(most, terms) <= target.l2):
            continue
        if scratch.bytes(tile) <= target.l3 // tasks:
            ways.append(Tiling(tile, min(prod(tile_counts(kernel, tile)), tasks), most))
    return tuple(ways)


@frozen
class _Groups:
    """The outer axes of rows and of columns, in order; how many rows, columns and terms."""

    rows: Ints
    columns: Ints
    extents: tuple[int, int, int]


def _groups(stage: Stage, product_: Product) -> _Groups | None:
    """Outer axes by the operand that has them; None where a tile repeats or divides the sum."""
    if None in stage.outer or stage.bound.keys() != set(range(len(stage.shape))):
        return None
    rows = [a for a in stage.bound if a not in product_.right.axes]
    columns = [a for a in stage.bound if a not in product_.left.axes]
    sizes = volume(stage, rows), volume(stage, columns), volume(stage, stage.over)
    outer = stage.bound
    return _Groups(tuple(outer[a] for a in rows), tuple(outer[a] for a in columns), sizes)


def _streamed_terms(width: int, rows: int, target: Target) -> int:
    """Products of a block of k where `right` comes from memory in rows of `width` bytes: this and
    the next fill half of the second-level cache. At least as many as rows, so that sums, which are
    read and written once a block, are no more than what is multiplied.
    """
    most = max(rows, int(target.profile.rate("block", "ahead")))
    return max(1, min(most, target.l2 // 2 // (2 * width)))


def _tall(kernel: Kernel, stage: Stage, product_: Product, target: Target) -> tuple[Tiling, ...]:
    """A sum cut along its terms: one chunk a task, both operands read in order.

    ``y[8, 2000] = sum[k < 30000] -> 4 chunks of 7520 terms, 32 terms at a time``
    """
    if len(kernel.outer) != 1 or not product_.direct:
        return ()
    rows, columns = (upper(stage.shape[a]) for a in (product_.row, product_.column))
    size = stage.body.dtype.itemsize
    terms = target.l1 // ((rows + columns) * size)
    terms = max(terms, _streamed_terms(columns * size, rows, target))
    tasks = most_tasks(kernel, target)
    chunk = -(-upper(kernel.outer[0]) // (tasks * terms)) * terms
    return (Tiling((chunk,), tasks, terms),)


def _tile(kernel: Kernel, groups: _Groups, most: Pair) -> Ints:
    """Tiles of at most so many rows and columns that copy least, an even number of them.

    ``3000 x 1000 -> 6 x 1 of 500 x 1000``
    """
    rows, columns, _ = groups.extents
    least = -(-rows // most[0]), -(-columns // most[1])
    trials = product(*(range(fewest, fewest + 2) for fewest in least))
    made = [(i * columns + j * rows, _cut(kernel, groups, (i, j))) for i, j in trials]
    even = [way for way in made if prod(tile_counts(kernel, way[1])) % 2 == 0]
    return min(even or made)[1]


def _cut(kernel: Kernel, groups: _Groups, parts: Pair) -> Ints:
    """A tile of about so many parts of the rows and of the columns, and one of all else."""
    tile = [1] * len(kernel.outer)
    sides = zip((groups.rows, groups.columns), parts, reversed(STEPS), strict=True)
    for axes, count, step in sides:
        left = -(-prod(upper(kernel.outer[a]) for a in axes) // count)
        for axis in reversed(axes):
            tile[axis] = _share(upper(kernel.outer[axis]), left, step)
            left = max(1, left // tile[axis])
    return tuple(tile)


def _share(extent: int, most: int, step: int) -> int:
    """About `most` of an extent: all, an even share, or whole steps."""
    if most >= extent:
        return extent
    if extent % most == 0:
        return most
    return min(extent, -(-most // step) * step)
