"""k in blocks: a block of one operand is packed, used by all rows, and left for the next one.

``for b: pack right[b]; for panel: for rows: acc = sum[k in b](..); p = b > 0 ? p + acc : acc``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from pullback.algebra.linear import Linear, linear, row_major
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.nest import Array, For, Stmts, Var
from pullback.lower.context import (
    Context,
    Nest,
    NestLoop,
    ceil_div,
    counted,
    in_pieces,
    nest,
    rest_of,
)
from pullback.lower.guards import Values
from pullback.lower.operands import (
    Contraction,
    Panels,
    Side,
    pack_panel,
)

# Rows of the source copied into one panel after the other: a source is then read in its own order
# and a panel written in pieces of some cache lines.
GROUP = 8


@frozen
class Depth:
    """Blocks of k. `loop` counts them; `prob` is the contraction of one.

    Sums wait in ``array[place]`` for the next block; `home`: where the result is stored, too.
    `streams`: `right` is read where it lies, by few rows, so that memory sets the pace.
    """

    loop: NestLoop
    prob: Contraction
    array: Array
    place: Linear
    home: bool
    streams: bool = False

    @property
    def later(self) -> Expr:
        """Whether sums of blocks before wait."""
        return E.Less(index(0), self.loop.var)

    @property
    def last(self) -> Expr:
        """Whether no block follows."""
        return E.Equal(linear(self.loop.var).shifted(1).expr(), self.loop.extent)

    @property
    def early(self) -> Expr:
        """Whether a block follows."""
        return E.Less(linear(self.loop.var).shifted(1).expr(), self.loop.extent)


def by_depth(context: Context, prob: Contraction, terms: int) -> Depth | None:
    """`prob` in blocks of about `terms` products; None where one block is all."""
    level = _level(prob.over, terms)
    before, loop, inside = prob.over[:level], prob.over[level], prob.over[level + 1 :]
    size = _size(loop, max(1, terms // prod(o.most for o in inside)), bool(inside))
    parts = -(-loop.most // size)
    count = prod(o.most for o in before) * parts
    if count == 1:
        return None
    block = context.var("b", count)
    within = context.var("q", size)
    values, number = _counted(block, before, parts)
    start = number.times(size)
    part = NestLoop(loop.axes, within, rest_of(loop, start, size), size)
    values[loop.var] = start.plus(linear(within)).expr()
    left, right = prob.left.at(values), prob.right.at(values)
    own = replace(prob, left=left, right=right, over=[part, *inside])
    total = index(count) if before else ceil_div(loop.extent, size)
    return Depth(NestLoop((), block, total, count), own, *_waiting(context, prob))


def _level(over: Nest, terms: int) -> int:
    """The loop that is cut: the outermost one with room for what is inside it.

    ``m < 8, p < 112, q < 112, 1280 terms -> p``
    """
    for level, loop in enumerate(over):
        if not loop.static or prod(o.most for o in over[level + 1 :]) < terms:
            return level
    return len(over) - 1


def _size(loop: NestLoop, most: int, inside: bool) -> int:
    """How many of a loop make a block: all blocks alike where that costs little."""
    even = -(-loop.most // -(-loop.most // most))
    if not inside:
        return -(-even // GROUP) * GROUP
    whole = [n for n in range(-(-even // 2), even + 1) if loop.most % n == 0]
    return whole[-1] if loop.static and whole else even


def _counted(block: Var, before: Nest, parts: int) -> tuple[Values, Linear]:
    """What block `block` stands for: the values of the loops before, the part of the one cut."""
    if not before:
        return {}, linear(block)
    values: Values = {}
    rest: Expr = E.FloorDiv(block, index(parts))
    for loop in reversed(before[1:]):
        values[loop.var] = E.Mod(rest, index(loop.most))
        rest = E.FloorDiv(rest, index(loop.most))
    values[before[0].var] = rest
    return values, Linear(0, {E.Mod(block, index(parts)): 1})


def _waiting(context: Context, prob: Contraction) -> tuple[Array, Linear, bool]:
    """Where sums wait: where the result is stored, if that holds them in full and in order, else in
    scratch.
    """
    home, store = context.homes.get(prob.stage.target), prob.store
    if home is not None and store is not None and _holds(home.array, store, prob):
        return home.array, store, True
    loops = [*prob.shared, *prob.rest, *(o for o in (prob.row, prob.column) if o is not None)]
    strides = row_major(loop.most for loop in loops)
    array = context.draft.local("sums", prob.kind, max(1, strides[0] * loops[0].most))
    named: dict[Expr, int] = {o.var: s for o, s in zip(loops, strides, strict=True)}
    return array, Linear(0, named), False


def pack(context: Context, side: Side, over: Nest, panel: Panels) -> Stmts:
    """All panels of a side; where rows of the source are copied, some rows of all panels first.

    ``for k by 8: for panel: for k..k+8: panel[k, c] = source[k, c]``
    """
    panels = counted(context, side.loop, panel.width, "p")
    *around, k = over

    def fill(*rows: NestLoop) -> Stmts:
        number = panels.var
        return nest([panels], pack_panel(context, side, list(rows), panel, number, number))

    if side.operand.stride(k.var) == 1 or k.most <= GROUP:
        return fill(*over)
    return nest(around, grouped(context, k, fill))


def grouped(context: Context, rows: NestLoop, body: Callable[[NestLoop], Stmts]) -> Stmts:
    """`body` of some rows at a time. ``for g: for row in 8 g .. 8 g + 8``"""
    if rows.most <= GROUP:
        return body(rows)
    groups, part = in_pieces(context, rows, GROUP, "g")
    return nest([groups], body(part))


def in_blocks(depth: Depth, body: Stmts) -> Stmts:
    """The loop over blocks of k around `body`."""
    return [For(depth.loop.var, depth.loop.first, depth.loop.extent, tuple(body))]


def _holds(array: Array, store: Linear, prob: Contraction) -> bool:
    """Whether an array holds sums in full, those of a row of columns side by side."""
    column = prob.column
    ordered = column is None or (store.of(column.var) == 1 and not store.hidden(column.var))
    return ordered and array.dtype == prob.kind
