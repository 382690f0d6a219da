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

from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.config import Ints
from pullback.errors import OptionError
from pullback.ir.expr import Axis, Take, takes, upper
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import LINE
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.choose import choose
from pullback.schedule.contraction import address, volume
from pullback.schedule.schedule import Numbers, Product, Right, Schedule, Step, TileLoops
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
    if kernel.tiling is not None or not has_pages(target):
        return ()
    own = scheduled(kernel, target, columns)
    steps = [step for step in own.steps if step.product is not None]
    if len(steps) != 1:
        return ()
    if not isinstance(loops := steps[0].loops, TileLoops):
        return _undotted(kernel, own, steps[0], columns, target)
    if loops.ahead or (loops.terms is not None and _far(kernel, steps[0], target)):
        return ()  # it comes from memory, in order: the price has all of a launch near
    known = choose(kernel, target, columns).steps  # before loops of some products are plain
    (bare,) = (s for s in known if s.product is not None and s.lead == steps[0].lead)
    step = replace(bare, loops=loops)
    best: Numbers = {}
    least = _ns(kernel, own, step, target)
    for ways in (_reached, _tiled, _deeper):
        for given in list(ways(kernel, own, step, best, target)):
            with suppress(OptionError):
                made = scheduled(kernel, target, choices_of({**dict(columns), **given}))
                ns = _ns(kernel, made, step, target)
                if ns < least:
                    best, least = given, ns
    return choices_of(best)


def has_pages(target: Target) -> bool:
    """Whether a machine's pages are known."""
    return any(m.pages for m in target.profile.memories)


def _undotted(
    kernel: Kernel, own: Schedule, step: Step, columns: Choices, target: Target
) -> Choices:
    """Tiles of all columns where dot products of some take longer, whose operands are gathered (64
    x 20 of 1000 terms, one Zen 4 core: 131 us by dot products of 5 columns, 36 by tiles of 20).
    """
    best: Choices = ()
    least = price(kernel, own, target, ROUGH).ns
    for tile in all_columns(kernel, own, step, target):
        given = tile_choices(tile)
        with suppress(OptionError):
            made = scheduled(kernel, target, choices_of({**dict(columns), **given}))
            ns = price(kernel, made, target, ROUGH).ns
            if ns < least:
                best, least = choices_of(given), ns
    return best


def _ns(kernel: Kernel, made: Schedule, step: Step, target: Target) -> float:
    """The price, of k in blocks with what it leaves out."""
    ns = price(kernel, made, target, ROUGH).ns
    loops = [s.loops for s in made.steps if isinstance(s.loops, TileLoops)]
    blocked = any(one.terms is not None for one in loops)
    return ns * DEEP if blocked and not _apart(kernel, step) else ns


def _apart(kernel: Kernel, step: Step) -> bool:
    """Whether terms of the left operand lie apart, so that blocks of k keep their lines near."""
    stage = kernel.stages[step.lead]
    return any(not _by_lines(stage, take) for take in takes(_product(step).left))


def _far(kernel: Kernel, step: Step, target: Target) -> bool:
    """Whether the right operand is read where it lies, and no cache holds it."""
    right, loops = _product(step).right, step.loops
    size = volume(kernel.stages[step.lead], right.axes) * right.dtype.itemsize
    return isinstance(loops, TileLoops) and loops.right is Right.IN_PLACE and size > target.l3


def _aside(kernel: Kernel, step: Step) -> bool:
    """Whether the left operand is read, and its terms lie side by side."""
    left = _product(step).left
    return isinstance(left, Take) and _by_lines(kernel.stages[step.lead], left)


def _by_lines(stage: Stage, take: Take) -> bool:
    """Whether terms of an operand fill half a line of a cache: three of a row of places do not."""
    form, run = address(take), 1
    for axis in reversed(stage.over):
        if form.of(Axis(axis, stage.extents[axis])) != run:
            break
        run *= upper(stage.extents[axis])
    return run * take.dtype.itemsize * 2 >= LINE


def _product(step: Step) -> Product:
    assert step.product is not None
    return step.product


def _blocks(kernel: Kernel, step: Step, target: Target) -> Ints:
    """Blocks of k worth a price: their lines, where terms lie apart, are a half or a quarter of the
    first-level cache. None where terms lie side by side, but for products that have blocks anyway.
    """
    stage = kernel.stages[step.lead]
    if stage.partial or _product(step).word > 1 or (step.terms is None and _aside(kernel, step)):
        return ()
    most = target.l1 // 2 // LINE
    return (most, most // 2) if volume(stage, stage.over) > most else ()


def _reached(
    kernel: Kernel, own: Schedule, step: Step, best: Numbers, target: Target
) -> Iterator[Numbers]:
    """In place and in panels, each whole and in blocks of k."""
    seen, blocks = _product(step), _blocks(kernel, step, target)[:1]
    names = [f"packed.{step.lead}"] * (seen.direct and seen.word == 1)
    ranges: list[Ints] = [(0, 1)] * len(names)
    if blocks:
        names, ranges = [*names, f"terms.{step.lead}"], [*ranges, (0, *blocks)]
    for values in product(*ranges):
        yield dict(zip(names, values, strict=True))


def _tiled(
    kernel: Kernel, own: Schedule, step: Step, best: Numbers, target: Target
) -> Iterator[Numbers]:
    """Other tiles, by the best way so far and in panels."""
    seen, packed = _product(step), f"packed.{step.lead}"
    if seen.word > 1:
        return
    tiles = [_tall(kernel, own, step, target), _thin(kernel, own, step)]
    tiles += [*all_columns(kernel, own, step, target), *_wide(kernel, own, step)]
    for tile in dict.fromkeys(tiles):
        if tile == own.tile:
            continue
        placed = {**best, **tile_choices(tile)}
        yield placed
        if seen.direct and best.get(packed) != 1:
            yield {**placed, packed: 1}


def tile_choices(tile: Ints) -> Numbers:
    """The choice of a tile. ``(64, 16)  ->  tile.0: 64, tile.1: 16``"""
    return {f"tile.{n}": extent for n, extent in enumerate(tile)}


def _deeper(
    kernel: Kernel, own: Schedule, step: Step, best: Numbers, target: Target
) -> Iterator[Numbers]:
    """The best so far, in blocks of k of another depth: of what has blocks, twice as deep too."""
    name, loops = f"terms.{step.lead}", step.loops
    assert isinstance(loops, TileLoops)
    twice = () if loops.terms is None else (2 * loops.terms,)
    for terms in (*_blocks(kernel, step, target), *twice):
        if best.get(name) != terms:
            yield {**best, name: terms}


def _tall(kernel: Kernel, own: Schedule, step: Step, target: Target) -> Ints:
    """A tile of all rows, as far as blocks go, and a share of the columns for each task."""
    stage, seen, loops = kernel.stages[step.lead], _product(step), step.loops
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


def _thin(kernel: Kernel, own: Schedule, step: Step) -> Ints:
    """A tile of all columns and rows, one coordinate of the other axes that `right` lacks: what is
    read of `left` stays near for all columns (77 channels by 3x3 of 97 x 75 x 75, stride 2, one Zen
    3 core: 21.1 ms by 16 channels of all places, 12.8 by a row of places).
    """
    stage, seen = kernel.stages[step.lead], _product(step)
    bound, tile = stage.bound, list(own.tile)
    if stage.partial or not {seen.row, seen.column} <= bound.keys():
        return own.tile
    for axis, outer in bound.items():
        if axis in (seen.row, seen.column):
            tile[outer] = upper(kernel.outer[outer])
        elif axis not in seen.right.axes:
            tile[outer] = 1
    return tuple(tile) if prod(tile_counts(kernel, tile)) >= max(2, own.tasks) else own.tile


def all_columns(kernel: Kernel, own: Schedule, step: Step, target: Target) -> list[Ints]:
    """Tiles of all columns, the rest as it is or a share for each processor: `left` is read once,
    panels are packed as often as there are processors (18 channels by 5x5 of 379 x 6 x 6, seven
    pictures, one Zen 3 core: 3.9 ms in tiles of 9 channels, 3.1 by all of a row of places, 2.1 of
    half of them). Fewer tiles than processors are none: a price knows one core.
    """
    stage, column = kernel.stages[step.lead], _product(step).column
    if stage.partial or column not in stage.bound:
        return []
    outer, whole = stage.bound[column], [upper(extent) for extent in kernel.outer]
    parts = min(own.tasks, int(target.profile.rate("launch", "processors")))
    shares, rest = list(whole), [n for n in range(len(whole)) if n != outer]
    if rest:
        even = min(rest, key=lambda n: -(-whole[n] // parts) / whole[n])
        shares[even] = -(-whole[even] // parts)
    tiles = [(*own.tile[:outer], whole[outer], *own.tile[outer + 1 :]), tuple(shares)]
    return [t for t in dict.fromkeys(tiles) if prod(tile_counts(kernel, t)) >= parts]


def _wide(kernel: Kernel, own: Schedule, step: Step) -> list[Ints]:
    """Where tasks share only the rows, or only the columns: tiles of a half and of a quarter of
    them, so that fewer tasks read all of the other operand (768 x 192 of 394 terms, one Zen 3 core:
    2.6 ms in 12 tiles, 1.5 in two).
    """
    stage, seen, loops = kernel.stages[step.lead], _product(step), step.loops
    assert isinstance(loops, TileLoops)
    sides = {seen.row: loops.rows, seen.column: loops.columns}
    shared = [side for side in sides if side in stage.bound]
    if len(shared) != 1:
        return []
    axis, unit = stage.bound[shared[0]], sides[shared[0]]
    extent = upper(kernel.outer[axis])
    tiles = []
    for parts in (2, 4):
        share = -(-extent // (parts * unit)) * unit
        if own.tile[axis] < share < extent:
            tiles.append((*own.tile[:axis], share, *own.tile[axis + 1 :]))
    return tiles
