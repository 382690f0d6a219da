"""How the operands of a sum of products reach its register tiles: by the lowest price.

``c[i, j] = sum[k] a[i, k] b[k, j]  ->  (packed.0, 1), (tile.0, 128), (tile.1, 64)``: b in panels
that all rows share, in place of b where it lies, again for each 16 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod

from pullback.backends.nests.price import ROUGH, price
from pullback.config import Ints
from pullback.errors import OptionError
from pullback.ir.expr import Axis, takes, upper
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import LINE
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.choose import choose
from pullback.schedule.contraction import address, volume
from pullback.schedule.schedule import Numbers, Right, Schedule, Step, TileLoops
from pullback.schedule.slots import tile_counts

# Sums of products in blocks of k take so many times as long as their price where the left operand
# is contiguous along k: 100 x 1000 of 1000 terms in panels 2.68 ms priced in one block, 2.32 in
# blocks of 256, 2.37 and 2.53 measured; a 3x3 convolution of 64 channels of 56 x 56 6.48 and 6.43,
# 6.22 and 7.96 measured, one Zen 3 core.
DEEP = 1.1


def operands(kernel: Kernel, target: Target, columns: Choices) -> Choices:
    """The tile, its panels and blocks of k of a kernel around one product with these `columns`.

    None for a machine whose pages are not known: what is read in place, whose rows lie in pages of
    their own, has too low a price there (128 x 512 of 784 terms, one Zen 3 core: in place 1.54 ms,
    in panels 1.17, priced 1.22 and 1.34 without them).
    """
    if kernel.tiling is not None or not any(m.pages for m in target.profile.memories):
        return ()
    own = scheduled(kernel, target, columns)
    steps = [step for step in own.steps if step.product is not None]
    if len(steps) != 1 or not isinstance(loops := steps[0].loops, TileLoops):
        return ()
    if loops.terms is not None and loops.right is Right.IN_PLACE:
        return ()  # it comes from memory, in order: the price has all of a launch near
    (bare,) = (s for s in choose(kernel, target, columns).steps if s.product is not None)
    step = replace(bare, loops=loops)
    best: Numbers = {}
    least = _ns(kernel, own, step, target)
    for given in _ways(kernel, own, step, target):
        with suppress(OptionError):
            made = scheduled(kernel, target, choices_of({**dict(columns), **given}))
            ns = _ns(kernel, made, step, target)
            if ns < least:
                best, least = given, ns
    return choices_of(best)


def _ns(kernel: Kernel, made: Schedule, step: Step, target: Target) -> float:
    """The price, of k in blocks with what it leaves out."""
    ns = price(kernel, made, target, ROUGH).ns
    loops = [s.loops for s in made.steps if isinstance(s.loops, TileLoops)]
    blocked = any(one.terms is not None for one in loops)
    return ns * DEEP if blocked and not _apart(kernel, step) else ns


def _apart(kernel: Kernel, step: Step) -> bool:
    """Whether terms of the left operand lie apart, so that blocks of k keep their lines near."""
    stage, seen = kernel.stages[step.lead], step.product
    assert seen is not None
    last = stage.over[-1]
    at = Axis(last, stage.extents[last])
    return any(address(take).of(at) not in (0, 1) for take in takes(seen.left))


def _ways(kernel: Kernel, own: Schedule, step: Step, target: Target) -> Iterator[Numbers]:
    """Choices worth a price."""
    stage, lead, seen = kernel.stages[step.lead], step.lead, step.product
    assert seen is not None
    if seen.word > 1:
        return
    # terms that lie apart are lines, which half of the first-level cache holds
    block = target.l1 // 2 // LINE
    deep = not stage.partial and volume(stage, stage.over) > block
    deep = deep and (step.terms is not None or _apart(kernel, step))
    tiles = dict.fromkeys([own.tile, _tall(kernel, own, step, target)])
    names = [f"packed.{lead}"] * seen.direct + [f"terms.{lead}"] * deep
    for tile in tiles:
        placed = {f"tile.{n}": e for n, e in enumerate(tile)} if tile != own.tile else {}
        for values in product(*((0, block if "terms" in name else 1) for name in names)):
            yield {**placed, **dict(zip(names, values, strict=True))}


def _tall(kernel: Kernel, own: Schedule, step: Step, target: Target) -> Ints:
    """A tile of all rows, as far as blocks go, and a share of the columns for each task."""
    stage, seen, loops = kernel.stages[step.lead], step.product, step.loops
    assert seen is not None
    bound = stage.bound
    if stage.partial or not {seen.row, seen.column} <= bound.keys():
        return own.tile
    assert isinstance(loops, TileLoops)
    row, column = bound[seen.row], bound[seen.column]
    rows, extent = upper(kernel.outer[row]), upper(kernel.outer[column])
    tile = list(own.tile)
    tile[row], tile[column] = min(rows, int(target.profile.rate("block", "rows"))), extent
    parts = -(-own.tasks // prod(tile_counts(kernel, tile)))
    tile[column] = min(extent, -(-extent // (parts * loops.columns)) * loops.columns)
    return tuple(tile)
