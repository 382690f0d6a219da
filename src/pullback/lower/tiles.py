"""Contractions by register tiles: outer products of a column of `left` and a row of `right`.

``for panel: for row block: acc[8, 48] = 0; for k: acc[i, j] += left[i, k] * right[k, j]; store``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pullback.algebra.linear import Linear, linear
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index, upper
from pullback.ir.kernel import Stage
from pullback.ir.nest import For, Guard, Stmts, Var
from pullback.lower.block import Block
from pullback.lower.context import (
    Context,
    Nest,
    NestLoop,
    counted,
    floor_div,
    name_value,
    nest,
    rounded_up,
)
from pullback.lower.depth import by_depth, in_blocks, pack
from pullback.lower.operands import (
    Contraction,
    Panels,
    Side,
    evaluated,
    kept,
    pack_panel,
    panels,
    problem,
)
from pullback.lower.phases import phases, written_out
from pullback.lower.turned import Turned
from pullback.lower.words import Packing, in_words, wordable
from pullback.schedule.schedule import Left, Product, Right, TileLoops


def tiles(context: Context, product: Product, stages: list[Stage], loops: TileLoops) -> Stmts:
    """The loop nest of a contraction in one tile, and of the maps that follow on its blocks."""
    prob = problem(context, product, stages)
    column = prob.column
    if column is None or not prob.over:
        raise InvalidIR(f"no register tiles of {stages[0].target} by {loops}")
    if product.word > 1 and not wordable(prob, product.word):
        raise InvalidIR(f"no words of {product.word} terms in {stages[0].target}")
    if loops.terms is not None and (prob.work or prob.needed):
        raise InvalidIR(f"no blocks of k where guards bound the terms of {stages[0].target}")
    before: Stmts = []
    if loops.left is Left.EVALUATED:
        before, prob = left_evaluated(context, prob)
    if loops.left is Left.FRONT:
        prob = left_in_front(context, prob)
    made = _Tiles(context, prob, column, loops)
    if prob.store is None:
        made.near = context.draft.local("block", prob.stage.body.dtype, loops.rows * loops.columns)
    if loops.turned:
        made.turned = Turned(context, (loops.rows, loops.columns))
    return before + (made.in_words(product.word) if product.word > 1 else made.whole())


def left_loops(prob: Contraction) -> Nest:
    """The loops that the left operand changes with."""
    loops = [*prob.shared, *prob.rest, *prob.rows, *prob.over]
    return [loop for loop in loops if prob.left.uses(loop.var)]


def left_evaluated(context: Context, prob: Contraction) -> tuple[Stmts, Contraction]:
    """`left` computed into scratch before it is used."""
    if not left_loops(prob):
        raise InvalidIR(f"the left operand of {prob.stage.target} is one number")
    over, left = prob.in_front(prob.left, [*prob.shared, *prob.rest])
    before, left = evaluated(context, left, left_loops(replace(prob, over=over)), prob.kind)
    return before, replace(prob, left=left)


def left_level(context: Context, prob: Contraction) -> int:
    """How many outer loops the left operand changes with, or the loops that compute it do."""
    ends = [end for loop in left_loops(prob) for end in (loop.first, loop.extent)]
    return max(map(context.depth, (prob.left.value, *ends)))


def left_in_front(context: Context, prob: Contraction) -> Contraction:
    """All of `left` computed into scratch that is kept, whichever terms a tile has, in front of the
    loops that do not change it.
    """
    loops = left_loops(prob)
    if not loops or prob.left.checks:
        raise InvalidIR(f"the left operand of {prob.stage.target} is not computed in front")
    before, left = evaluated(context, prob.left, loops, prob.kind, lasting=True)
    context.draft.hoist(left_level(context, prob), before)
    return replace(prob, left=left)


@dataclass(slots=True)
class _Tiles(Block):
    """The nest over register tiles."""

    phases: Nest = field(default_factory=list)

    @property
    def around(self) -> Nest:
        """The loops that `right` changes with, but for phases: those read the same lines of it."""
        return [loop for loop in self.prob.shared if loop not in self.phases]

    def whole(self) -> Stmts:
        """Loops over what `right` depends on, then panels, their phases, then rows."""
        prob, context, loops = self.prob, self.context, self.loops
        if loops.terms is not None:
            return self._in_depth(loops.terms)
        self.phases = phases(prob.shared, prob.work)
        if loops.right is Right.IN_PLACE:
            return nest(self.around, self._panel_loop())
        side, kind = Side(prob.right, self.column), kept(prob.right, prob.kind)
        if loops.right is not Right.PANELS:
            self.right = panels(context, kind, loops.columns, 1, [], prob.over)
            return nest(self.around, self._panel_loop())
        if loops.level < context.depth(prob.right.value):
            what = f"panels of {prob.stage.target} change inside of {loops.level} loops"
            raise InvalidIR(what)
        self.right = self._panels(side, loops.columns, prob.shared, lasting=True)
        every = counted(context, self.column, loops.columns, "p")
        around = [*prob.shared, every]
        fill = pack_panel(context, side, prob.over, self.right, every.var, every.var, around)
        context.draft.hoist(loops.level, fill)
        return nest(self.around, self._panel_loop())

    def _panels(
        self,
        side: Side,
        width: int,
        around: Nest,
        lasting: bool = False,
    ) -> Panels:
        """Panels for all of a side."""
        kind, count = kept(side.operand, self.prob.kind), rounded_up(side.loop.most, width)
        return panels(self.context, kind, width, count, around, self.prob.over, lasting)

    def _in_depth(self, terms: int) -> Stmts:
        """Blocks of k: panels of what is not contiguous along it, then all tiles."""
        shared, context = self.prob.shared, self.context
        self.depth = by_depth(context, self.prob, terms)
        if self.depth is not None:
            self.prob = self.depth.prob
        fill: Stmts = []
        if self.loops.left is Left.BLOCKS:
            fill, self.prob = left_evaluated(context, self.prob)
        prob, over, row = self.prob, self.prob.over, self.prob.row
        if row is not None and self.loops.scattered:
            around = [loop for loop in prob.rest if prob.left.uses(loop.var)]
            side = Side(prob.left, row)
            self.left = self._panels(side, self.loops.rows, around)
            fill += nest(around, pack(context, side, over, self.left))
        if self.loops.right is Right.IN_PLACE:
            if self.depth is not None:
                self.depth = replace(self.depth, streams=self.loops.ahead)
        else:
            side = Side(prob.right, self.column)
            self.right = self._panels(side, self.loops.columns, [])
            fill += pack(context, side, over, self.right)
        body = fill + self._panel_loop()
        return nest(shared, body if self.depth is None else in_blocks(self.depth, body))

    def in_words(self, word: int) -> Stmts:
        """Blocks of k in words: both sides where they do not lie so, then all tiles."""
        context, shared, terms = self.context, self.prob.shared, self.loops.terms
        rest = self.prob.over[-1].most % word > 0
        self.depth = None if terms is None else by_depth(context, self.prob, terms)
        if self.depth is not None:
            self.prob = self.depth.prob
        self.prob = in_words(context, self.prob, word, rest)
        packing = Packing(context, self.prob)
        fill, self.right, self.less = packing.right(self.column, self.loops.columns)
        more, self.prob, self.left = packing.left(self.prob.row, self.loops.rows)
        body = fill + more + self._panel_loop()
        return nest(shared, body if self.depth is None else in_blocks(self.depth, body))

    def _panel_loop(self) -> Stmts:
        """Whole panels, then the narrower last one."""
        column, width = self.column, self.loops.columns
        if column.static:
            whole, rest = divmod(column.most, width)
            statements = self._whole("p", whole, index(whole), self._whole_panel)
            return statements + (self._panel(index(whole), index(rest)) if rest else [])
        most = column.most // width
        count = Var(f"w{self.context.draft.number()}", 0, most)
        narrow = linear(column.extent).plus(linear(count), -width).expr()
        body = self._whole("p", most, count, self._whole_panel) + self._panel(count, narrow)
        return [name_value(count, floor_div(column.extent, width), body)]

    def _whole(
        self,
        name: str,
        most: int,
        count: Expr,
        body: Callable[[Expr], Stmts],
    ) -> Stmts:
        """`body` of each of `count` whole blocks, in a loop where there may be several."""
        if most == 0:
            return []
        if most == 1 and isinstance(count, E.Const):
            return body(index(0))
        number = self.context.var(name, most)
        return [For(number, index(0), count, tuple(body(number)))]

    def _whole_panel(self, number: Expr) -> Stmts:
        return self._panel(number, index(self.loops.columns))

    def _panel(self, number: Expr, width: Expr) -> Stmts:
        """All rows of one panel."""
        fill: Stmts = []
        if self.right is not None and self.loops.right is Right.ONE:
            over, right = self.prob.in_front(self.prob.right, self.prob.rest)
            side = Side(right, self.column)
            fill = pack_panel(self.context, side, over, self.right, index(0), number)
        return written_out(self.phases, fill + nest(self.prob.rest, self._row_loop(number, width)))

    def _row_loop(self, number: Expr, width: Expr) -> Stmts:
        """Whole blocks of rows, then what is left of them."""
        row = self.prob.row
        if row is None:
            return self.tile(1, Linear(), number, width)
        height = self.loops.rows

        def whole(block: Expr) -> Stmts:
            return self.tile(height, linear(block).times(height), number, width)

        count = floor_div(row.extent, height)
        statements = self._whole("m", row.most // height, count, whole)
        return statements + self._last_rows(row, number, width)

    def _last_rows(self, row: NestLoop, number: Expr, width: Expr) -> Stmts:
        """The rows after the last whole block: a smaller block, or one at a time."""
        height = self.loops.rows
        if height == 1:
            return []
        if row.static:
            rest = row.most % height
            start = Linear(row.most - rest)
            return self.tile(rest, start, number, width) if rest else []
        done = linear(floor_div(row.extent, height)).times(height)
        known = rows_of_tiles(self.context, row)
        if known is None:
            single = self.context.var("m", row.most)
            body = self.tile(1, linear(single), number, width)
            return [For(single, done.expr(), row.extent, tuple(body))]
        statements: Stmts = []
        for rows in known:
            rest = rows % height
            if rest:
                body = self.tile(rest, Linear(rows - rest), number, width)
                statements.append(Guard(E.Equal(row.extent, index(rows)), tuple(body)))
        return statements


def rows_of_tiles(context: Context, row: NestLoop) -> list[int] | None:
    """How many rows tiles have: those of a literal extent are whole, but for the last."""
    for number, span in enumerate(context.spans):
        if span is row.extent and isinstance(context.kernel.outer[number], int):
            size, tile = upper(context.kernel.outer[number]), context.schedule.tile[number]
            return sorted({tile, size % tile})
    return None
