"""Contractions by register tiles: outer products of a column of `left` and a row of `right`.

``for panel: for row block: acc[8, 48] = 0; for k: acc[i, j] += left[i, k] * right[k, j]; store``
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr, index, upper
from pullback.ir.kernel import Stage
from pullback.ir.nest import Array, For, Guard, Load, Stmt, Var
from pullback.ir.node import walk
from pullback.lower.block import Block
from pullback.lower.context import (
    Context,
    Loop,
    ceil_div,
    name_value,
    nest,
    scratch_home,
    tile_extents,
)
from pullback.lower.depth import Depth, by_depth, in_blocks, pack
from pullback.lower.operands import (
    Panels,
    Problem,
    Side,
    evaluated,
    kept,
    pack_panel,
    panels,
    problem,
    rounded_up,
)
from pullback.lower.sweep import sweep
from pullback.lower.words import Packing, in_words, wordable
from pullback.schedule.contraction import register_tile
from pullback.schedule.large import TERMS
from pullback.schedule.linear import Linear, linear
from pullback.schedule.schedule import Product, Step, Way
from pullback.schedule.steps import lanes

# A panel set up to this many second-level caches is packed once and then streamed: rows of a tile
# use each panel often enough to hide the third level (probes/cpu/gemm.py, 1024^3).
PACK_CACHES = 4

# An evaluated left operand beyond this share of the second-level cache is computed in place.
LEFT_CACHES = 1

# Fewer rows do not pay for a copy of what can be read in place.
FEWEST_PACKED = 64

# Of `left`, this share of the second-level cache is read where it lies.
NEAR_SHARE = 4

# A block of it in k may take so much.
DEEP_CACHES = 4

# Vectors of a panel that is skipped where its block has no work: the finer, the more is skipped.
NARROW = 2

# With so few rows and panels an element of the left operand is used too seldom to be kept.
FEW_ROWS = 2
FEW_PANELS = 2


def tiles(context: Context, product: Product, stages: list[Stage], step: Step) -> list[Stmt]:
    """The loop nest of a contraction in one tile, and of the maps that follow on its blocks."""
    prob = problem(context, product, stages)
    column = prob.column
    if column is None or not prob.over:
        return plain_stages(context, stages)
    lanes_ = context.target.lanes(prob.kind.itemsize)
    rows = 1 if prob.row is None else prob.row.most
    most = NARROW if _oblique(prob, column) else None
    inner, held = step.inner, context.target.vectors
    height, vectors = register_tile(rows, column.most, lanes_, held, most, inner.vectors)
    if inner.rows is not None:
        height = max(1, min(inner.rows, rows, (held - 1 - vectors) // vectors))
    word = product.word if wordable(prob, product.word) else 1
    width = vectors * lanes_ if word > 1 else min(vectors * lanes_, column.most)
    before: list[Stmt] = []
    much = rows > FEW_ROWS or column.most > FEW_PANELS * width
    if step.terms is None and word == 1 and much:
        before, prob = _left_ready(context, prob, LEFT_CACHES)
    return before + _Tiles(context, prob, column, (height, width), step, word).nest()


def _oblique(prob: Problem, column: Loop) -> bool:
    """Whether what is skipped depends on the column and something else."""
    bounds = [*prob.work, *prob.needed]
    return any(b.form.of(column.var) != 0 and len(b.form.terms) > 1 for b in bounds)


def plain_stages(context: Context, stages: list[Stage]) -> list[Stmt]:
    """The same stages as a plain reduction and a sweep over what it leaves in scratch."""
    lead, rest = stages[0], stages[1:]
    if lead.target not in context.homes:
        shape = tile_extents(context, lead)
        array = context.panel("whole", lead.body.dtype, prod(shape))
        context.homes[lead.target] = scratch_home(context, lead, array, shape)
    statements = plain(context, lead)
    if rest:
        lane, _ = lanes(rest, context.target)
        statements += sweep(context, Step((0,), Way.SWEEP, 0, lane), rest)
    return statements


def plain(context: Context, stage: Stage) -> list[Stmt]:
    """The same stage as a plain reduction."""
    lane, _ = lanes([stage], context.target)
    return sweep(context, Step((0,), Way.SWEEP, 0, lane), [stage])


def _left_ready(context: Context, prob: Problem, caches: int) -> tuple[list[Stmt], Problem]:
    """`left` as one load: evaluated into scratch first if it is more."""
    if prob.left.plain:
        return [], prob
    loops = [*prob.shared, *prob.rest, *([] if prob.row is None else [prob.row]), *prob.over]
    loops = [loop for loop in loops if prob.left.uses(loop.var)]
    size = prob.kind.itemsize
    for loop in loops:
        size *= loop.most
    if not loops or (size > caches * context.target.l2 and not prob.left.checks):
        return [], prob
    before, left = evaluated(context, prob.left, loops, prob.kind)
    return before, replace(prob, left=left)


class _Tiles:
    """The nest over register tiles of `height` rows and `width` columns."""

    def __init__(
        self,
        context: Context,
        prob: Problem,
        column: Loop,
        size: tuple[int, int],
        step: Step,
        word: int,
    ) -> None:
        self.context = context
        self.prob = prob
        self.column = column
        self.height, self.width = size
        self.terms = step.terms
        self.packed = step.inner.packed
        self.word = word
        self.less: Array | None = None
        self.left: Panels | None = None
        self.right: Panels | None = None
        self.fill_one = False
        self.depth: Depth | None = None
        self.block: Array | None = None
        if prob.store is None:
            self.block = context.local("block", prob.stage.body.dtype, size[0] * size[1])

    def nest(self) -> list[Stmt]:
        """Loops over what `right` depends on, then panels, then rows."""
        prob, context = self.prob, self.context
        if wordable(prob, self.word):
            return self._in_words((self.terms or TERMS) * self.word)
        if self.terms and not prob.work and not prob.needed:
            return self._in_depth(self.terms)
        if prob.right.stride(self.column.var) == 1 and not self.packed:
            return nest(prob.shared, self._panel_loop())
        count = rounded_up(self.column.most, self.width)
        level = self._pack_level(count)
        side, kind = Side(prob.right, self.column), kept(prob.right, prob.kind)
        if level is None and self._is_deep(kind):
            return self._in_depth(TERMS)
        if level is None:
            self.right = panels(context, kind, self.width, 1, [], prob.over, lasting=False)
            self.fill_one = True
            return nest(prob.shared, self._panel_loop())
        self.right = panels(context, kind, self.width, count, prob.shared, prob.over, lasting=True)
        number = context.var("p", count)
        every = Loop((), number, ceil_div(self.column.extent, self.width), count)
        around = [*prob.shared, every]
        fill = pack_panel(context, side, prob.over, self.right, number, number, around)
        context.hoist(level, fill)
        return nest(prob.shared, self._panel_loop())

    def _in_depth(self, terms: int) -> list[Stmt]:
        """Blocks of k: panels of what is not contiguous along it, then all tiles."""
        shared, context = self.prob.shared, self.context
        self.depth = by_depth(context, self.prob, terms)
        if self.depth is not None:
            self.prob = self.depth.prob
        fill, self.prob = _left_ready(context, self.prob, DEEP_CACHES)
        prob, over, row = self.prob, self.prob.over, self.prob.row
        if row is not None and self._scattered(row):
            around = [loop for loop in prob.rest if prob.left.uses(loop.var)]
            count = rounded_up(row.most, self.height)
            kind = kept(prob.left, prob.kind)
            self.left = panels(context, kind, self.height, count, around, over, False)
            fill += nest(around, pack(context, Side(prob.left, row), over, self.left, count))
        if self._lies_well():
            self.depth = self._streamed()
        else:
            count = rounded_up(self.column.most, self.width)
            kind = kept(prob.right, prob.kind)
            self.right = panels(context, kind, self.width, count, [], over, False)
            fill += pack(context, Side(prob.right, self.column), over, self.right, count)
        body = fill + self._panel_loop()
        return nest(shared, body if self.depth is None else in_blocks(self.depth, body))

    def _in_words(self, terms: int) -> list[Stmt]:
        """Blocks of k in words: both sides where they do not lie so, then all tiles."""
        context, shared = self.context, self.prob.shared
        rest = self.prob.over[-1].most % self.word > 0
        self.depth = by_depth(context, self.prob, terms)
        if self.depth is not None:
            self.prob = self.depth.prob
        self.prob = in_words(context, self.prob, self.word, rest)
        packing = Packing(context, self.prob)
        fill, self.right, self.less = packing.right(self.column, self.width)
        more, self.prob, self.left = packing.left(self.prob.row, self.height)
        body = fill + more + self._panel_loop()
        return nest(shared, body if self.depth is None else in_blocks(self.depth, body))

    def _is_deep(self, kind: DType) -> bool:
        """Whether one panel of all of k leaves the second-level cache."""
        size = self.width * prod(o.most for o in self.prob.over) * kind.itemsize
        return size > self.context.target.l2 and not self.prob.work and not self.prob.needed

    def _scattered(self, row: Loop) -> bool:
        """Whether `left` is not contiguous along k, and more than stays near."""
        if not row.static and self._rows_of_tiles(row) is None:
            return False
        over = self.prob.over
        size = row.most * prod(o.most for o in over) * self.prob.kind.itemsize
        far = size > self.context.target.l2 // NEAR_SHARE
        return far and self.prob.left.stride(over[-1].var) not in (0, 1)

    def _lies_well(self) -> bool:
        """Whether `right` is read in place: whole vectors, from the second-level cache."""
        size = self.column.most * prod(o.most for o in self.prob.over) * self.prob.kind.itemsize
        row = self.prob.row
        few = row is None or row.most < FEWEST_PACKED
        near = size <= self.context.target.l2
        wanted = near or few if self.packed is None else not self.packed
        return wanted and self.prob.right.stride(self.column.var) == 1

    def _streamed(self) -> Depth | None:
        """The blocks of k, prefetched where few rows share an operand beyond the caches."""
        right, row = self.prob.right.value, self.prob.row
        few = row is None or row.most < FEWEST_PACKED
        if self.depth is None or not few or not isinstance(right, Load):
            return self.depth
        far = right.array.size * right.array.dtype.itemsize > self.context.target.l2
        return replace(self.depth, streams=far)

    def _pack_level(self, count: int) -> int | None:
        """The outermost loop level at which all panels can be packed; None: as they come."""
        prob, context = self.prob, self.context
        inner = {home.array for home in context.homes.values()}
        if any(isinstance(n, Load) and n.array in inner for n in walk(prob.right.value)):
            return None
        level = context.depth(prob.right.value)
        if context.turns == 1 or not any(start.terms for start in context.starts[level:]):
            return None
        size = count * self.width * prob.kind.itemsize
        for loop in [*prob.shared, *prob.over]:
            size *= loop.most
        return level if size <= PACK_CACHES * context.target.l2 else None

    def _panel_loop(self) -> list[Stmt]:
        """Whole panels, then the narrower last one."""
        column, width = self.column, self.width
        if column.static:
            whole, rest = divmod(column.most, width)
            found = self._whole_panels(whole, index(whole))
            return found + (self._panel(index(whole), rest) if rest else [])
        most = column.most // width
        count = Var(f"w{self.context.number()}", 0, most)
        narrow = linear(column.extent).plus(linear(count), -width).expr()
        body = self._whole_panels(most, count) + self._panel(count, narrow)
        value = linear(E.FloorDiv(column.extent, index(width))).expr()
        return [name_value(count, value, body)]

    def _whole_panels(self, most: int, count: Expr) -> list[Stmt]:
        if most == 0:
            return []
        if most == 1 and isinstance(count, E.Const):
            return self._panel(index(0), self.width)
        number = self.context.var("p", most)
        return [For(number, index(0), count, tuple(self._panel(number, self.width)))]

    def _panel(self, number: Expr, width: int | Expr) -> list[Stmt]:
        """All rows of one panel."""
        fill: list[Stmt] = []
        if self.fill_one and self.right is not None:
            side = Side(self.prob.right, self.column)
            fill = pack_panel(self.context, side, self.prob.over, self.right, index(0), number)
        return fill + nest(self.prob.rest, self._row_loop(number, width))

    def _row_loop(self, number: Expr, width: int | Expr) -> list[Stmt]:
        """Whole blocks of rows, then what is left of them."""
        row = self.prob.row
        if row is None:
            return self._block(1, Linear(), number, width)
        height = self.height
        found: list[Stmt] = []
        most = row.most // height
        if most == 1 and row.static:
            found = self._block(height, Linear(), number, width)
        elif most:
            block = self.context.var("m", most)
            body = self._block(height, Linear(0, {block: height}), number, width)
            count = linear(E.FloorDiv(row.extent, index(height))).expr()
            found = [For(block, index(0), count, tuple(body))]
        return found + self._last_rows(row, number, width)

    def _last_rows(self, row: Loop, number: Expr, width: int | Expr) -> list[Stmt]:
        """The rows after the last whole block: a smaller block, or one at a time."""
        height = self.height
        if height == 1:
            return []
        if row.static:
            rest = row.most % height
            start = Linear(row.most - rest)
            return self._block(rest, start, number, width) if rest else []
        done = linear(E.FloorDiv(row.extent, index(height))).times(height)
        known = self._rows_of_tiles(row)
        if known is None:
            single = self.context.var("m", row.most)
            body = self._block(1, Linear(0, {single: 1}), number, width)
            return [For(single, done.expr(), row.extent, tuple(body))]
        found: list[Stmt] = []
        for rows in known:
            rest = rows % height
            if rest:
                body = self._block(rest, Linear(rows - rest), number, width)
                found.append(Guard(E.Equal(row.extent, index(rows)), tuple(body)))
        return found

    def _rows_of_tiles(self, row: Loop) -> list[int] | None:
        """How many rows tiles have: those of a literal extent are whole, but for the last."""
        context = self.context
        for number, span in enumerate(context.spans):
            if span is row.extent and isinstance(context.kernel.outer[number], int):
                size, tile = upper(context.kernel.outer[number]), context.schedule.tile[number]
                return sorted({tile, size % tile})
        return None

    def _block(self, rows: int, first: Linear, number: Expr, width: int | Expr) -> list[Stmt]:
        block = Block(
            self.context,
            self.prob,
            self.column,
            (self.left, self.right),
            self.block,
            (self.height, self.width),
            self.depth,
            self.less,
        )
        base = linear(number).times(self.width)
        if isinstance(width, int):
            return block.whole(rows, first, number, base, width)
        return block.open(rows, first, number, base, width)
