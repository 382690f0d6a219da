"""Large products: tiles as wide as packed panels pay for, k in blocks that stay near.

Each tile packs its own block of `right`, which all its rows share, and of `left` where that is not
contiguous along k: ``c[512, 1024] = sum[b](sum[k in b](left[512, k] * right[k, 1024]))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from pullback.config import Ints, Pair, frozen
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target
from pullback.schedule.contraction import volume
from pullback.schedule.cost import most_tasks
from pullback.schedule.regions import regions
from pullback.schedule.schedule import Product, Step, Tile, Way
from pullback.schedule.slots import Lives, tile_counts
from pullback.schedule.tiling import STEPS

# The fewest rows, columns and terms that pay for packing what could be read in place: 8 % of the
# multiplications at 128 rows (0.2 ns an element copied, 0.02 ns a multiply-add).
FEWEST = 256

# A product of so few rows is bound by memory: `right` is read once, in order, a block of k at a
# time, and the next block is on its way meanwhile. So is one of less than FEWEST rows where tiles
# of a few rows would read again more than a core's share of the third-level cache: 64 x 3000 by
# 3000 x 3000 25 -> 7.6 ms, 128 rows 31 -> 12.6, 64 x 1024 of 4096 terms 9.6 -> 3.8, one Zen 5
# core. Below, tiles are as good: 192 x 1024 of 1024 terms 1.9 ms, in a stream 2.2; between a share
# and the whole cache 64 rows lose up to 13 % where nothing else is in it (64 x 8000 of 256 terms),
# 128 gain 35.
MOST_ROWS = 32

# The fewest where `right` is packed in any case: then blocks of k only keep it near. Gradients of
# weights: 64 x 147 of 100,352 terms 35 -> 26 ms, 128 x 576 of 6272 terms 12.3 -> 9.8.
FEWEST_PACKED = 64

# The fewest products of operands that are packed in words at any size: about 20 us.
LEAST_WORDS = 1 << 21


@frozen
class Large:
    """How a kernel runs that is one large product: tile, tasks and products of a block of k."""

    tile: Tile
    tasks: int
    terms: int


def large(kernel: Kernel, body: Sequence[Step], scratch: Lives, target: Target) -> Large | None:
    """Tiles of a kernel around one product of more than the second-level cache holds."""
    products = [step for step in body if step.product is not None]
    if len(products) != 1 or any(s.way not in (Way.TILES, Way.SWEEP) for s in body):
        return None
    step = products[0]
    stage = kernel.stages[step.lead]
    if step.product is None:
        return None
    tasks = most_tasks(kernel, target)
    if stage.partial:
        return _tall(kernel, stage, step.product, target)
    groups = _groups(stage, step.product)
    if groups is None:
        return None
    share, (rows, columns, terms) = target.l3 // tasks, groups.extents
    size = stage.body.dtype.itemsize
    inner = prod(upper(kernel.outer[o]) for o in groups.columns if o > min(groups.rows))
    far, again = terms * columns * size > target.l2, terms * inner * size
    few = far and step.product.direct and rows < (FEWEST if again > share else MOST_ROWS + 1)
    enough = far and min(groups.extents) >= (FEWEST if step.product.direct else FEWEST_PACKED)
    if step.product.word > 1:
        enough = min(groups.extents) >= FEWEST_PACKED and prod(groups.extents) >= LEAST_WORDS
    if not few and not enough:
        return None
    guards = regions(kernel.stages)
    if guards.work.get(stage.target) or guards.needed.get(stage.target):
        return None
    block = target.profile.tables["block"]
    high = int(block["rows"]) * step.product.word
    wide = int(block["run" if few else "columns"])
    tile = _tile(kernel, groups, (high, wide))
    if scratch.bytes(tile) > share:
        return None
    most = int(block["terms"])
    if few:
        most = _streamed_terms(prod(tile[a] for a in groups.columns) * size, rows, target)
    return Large(tile, min(prod(tile_counts(kernel, tile)), tasks), most)


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


def _tall(kernel: Kernel, stage: Stage, product_: Product, target: Target) -> Large | None:
    """A sum cut along its terms: one chunk a task, both operands read in order.

    ``y[8, 2000] = sum[k < 30000] -> 4 chunks of 7520 terms, 32 terms at a time``
    """
    if len(kernel.outer) != 1 or not product_.direct:
        return None
    rows, columns = (upper(stage.shape[a]) for a in (product_.row, product_.column))
    size = stage.body.dtype.itemsize
    terms = target.l1 // ((rows + columns) * size)
    terms = max(terms, _streamed_terms(columns * size, rows, target))
    tasks = most_tasks(kernel, target)
    chunk = -(-upper(kernel.outer[0]) // (tasks * terms)) * terms
    return Large((chunk,), tasks, terms)


def _tile(kernel: Kernel, groups: _Groups, most: Pair) -> Ints:
    """Tiles of at most so many rows and columns that copy least, an even number of them.

    ``3000 x 1000 -> 6 x 1 of 500 x 1000``
    """
    rows, columns, _ = groups.extents
    least = -(-rows // most[0]), -(-columns // most[1])
    trials = product(range(least[0], least[0] + 2), range(least[1], least[1] + 2))
    made = [(i * columns + j * rows, _cut(kernel, groups, (i, j))) for i, j in trials]
    even = [(cost, tile) for cost, tile in made if prod(tile_counts(kernel, tile)) % 2 == 0]
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
