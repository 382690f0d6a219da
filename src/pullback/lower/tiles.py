"""Contractions by register tiles: outer products of a column of `left` and a row of `right`.

``for panel: for row block: acc[8, 48] = 0; for k: acc[i, j] += left[i, k] * right[k, j]; store``
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index, upper
from pullback.ir.graph import SUM
from pullback.ir.kernel import Stage
from pullback.ir.nest import (
    Array,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Peek,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Var,
)
from pullback.ir.node import walk
from pullback.lower.bounds import Spans, guarded, narrowed, outer
from pullback.lower.context import (
    Context,
    Loop,
    cast,
    ceil_div,
    name_value,
    nest,
    scratch_home,
    tile_extents,
    vector,
)
from pullback.lower.hoist import hoisted
from pullback.lower.operands import (
    Panels,
    Problem,
    evaluated,
    moved,
    moved_check,
    pack_panel,
    panels,
    problem,
    replaced,
    rounded_up,
)
from pullback.lower.sweep import sweep
from pullback.schedule.contraction import register_tile
from pullback.schedule.linear import Linear, linear
from pullback.schedule.schedule import Product, Step, Way
from pullback.schedule.steps import lanes

# A panel set up to this many second-level caches is packed once and then streamed: rows of a tile
# use each panel often enough to hide the third level (probes/cpu/gemm.py, 1024^3).
PACK_CACHES = 4

# An evaluated left operand beyond this share of the second-level cache is computed in place.
LEFT_CACHES = 1

# Vectors of a panel that is skipped where its block has no work: the finer, the more is skipped.
NARROW = 2

# With so few rows and panels an element of the left operand is used too seldom to be kept.
FEW_ROWS = 2
FEW_PANELS = 2


def tiles(context: Context, product: Product, stages: list[Stage]) -> list[Stmt]:
    """The loop nest of a contraction in one tile, and of the maps that follow on its blocks."""
    prob = problem(context, product, stages)
    column = prob.column
    if column is None or not prob.over:
        return plain_stages(context, stages)
    lanes_ = context.target.lanes(prob.kind.itemsize)
    rows = 1 if prob.row is None else prob.row.most
    most = NARROW if _oblique(prob, column) else None
    height, vectors = register_tile(rows, column.most, lanes_, most)
    width = min(vectors * lanes_, column.most)
    before: list[Stmt] = []
    if rows > FEW_ROWS or column.most > FEW_PANELS * width:
        before, prob = _left_ready(context, prob)
    return before + _Tiles(context, prob, column, height, width).nest()


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


def _left_ready(context: Context, prob: Problem) -> tuple[list[Stmt], Problem]:
    """`left` as one load: evaluated into scratch first if it is more."""
    if prob.left.plain:
        return [], prob
    loops = [*prob.shared, *prob.rest, *([] if prob.row is None else [prob.row]), *prob.over]
    loops = [loop for loop in loops if prob.left.uses(loop.var)]
    size = prob.kind.itemsize
    for loop in loops:
        size *= loop.most
    if not loops or (size > LEFT_CACHES * context.target.l2 and not prob.left.checks):
        return [], prob
    before, left = evaluated(context, prob.left, loops, prob.kind)
    return before, replace(prob, left=left)


class _Tiles:
    """The nest over register tiles of `height` rows and `width` columns."""

    def __init__(
        self, context: Context, prob: Problem, column: Loop, height: int, width: int
    ) -> None:
        self.context = context
        self.prob = prob
        self.column = column
        self.height = height
        self.width = width
        self.panels: Panels | None = None
        self.in_place = False
        self.block: Array | None = None
        if prob.store is None:
            self.block = context.local("block", prob.stage.body.dtype, height * width)

    def nest(self) -> list[Stmt]:
        """Loops over what `right` depends on, then panels, then rows."""
        prob = self.prob
        if prob.right.stride(self.column.var) == 1:
            return nest(prob.shared, self._panel_loop())
        count = rounded_up(self.column.most, self.width)
        level = self._pack_level(count)
        if level is None:
            self.in_place = True
            self.panels = panels(
                self.context, prob.kind, self.width, 1, [], prob.over, lasting=False
            )
            return nest(prob.shared, self._panel_loop())
        self.panels = panels(
            self.context, prob.kind, self.width, count, prob.shared, prob.over, lasting=True
        )
        number = self.context.var("p", count)
        fill = pack_panel(self.context, prob, self.panels, number, number)
        every = For(number, index(0), ceil_div(self.column.extent, self.width), tuple(fill))
        self.context.hoist(level, nest(prob.shared, [every]))
        return nest(prob.shared, self._panel_loop())

    def _pack_level(self, count: int) -> int | None:
        """The outermost loop level at which all panels can be packed; None: as they come."""
        prob, context = self.prob, self.context
        inner = {home.array for home in context.homes.values()}
        if any(isinstance(n, Load) and n.array in inner for n in walk(prob.right.value)):
            return None
        level = context.depth(prob.right.value)
        if not any(start.terms for start in context.starts[level:]):
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
        if self.in_place and self.panels is not None:
            fill = pack_panel(self.context, self.prob, self.panels, index(0), number)
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
            self.context, self.prob, self.column, self.panels, self.in_place, self.block, self.width
        )
        base = linear(number).times(self.width)
        if isinstance(width, int):
            found = block.whole(rows, first, number, base, width)
            return found + block.tail(rows, first, base, index(width))
        found = block.open(rows, first, number, base, width)
        return found + block.tail(rows, first, base, width)


@dataclass(frozen=True, slots=True)
class Block:
    """One register tile: sums over all of k, then the stores."""

    context: Context
    prob: Problem
    column: Loop
    panels: Panels | None
    in_place: bool
    near: Array | None
    stride: int

    def _spans(self, rows: int, first: Linear, base: Linear, width: Expr) -> Spans:
        """The rows and columns of the block."""
        last = base.plus(linear(width)).plus(Linear(-1))
        found: dict[Expr, tuple[Linear, Linear]] = {self.column.var: (base, last)}
        if self.prob.row is not None:
            found[self.prob.row.var] = (first, first.plus(Linear(rows - 1)))
        return found

    def _terms(self, spans: Spans, step: list[Stmt]) -> list[Stmt]:
        """`step` for every term that the block has."""
        over, work = self.prob.over, self.prob.work
        body = nest([b.loop for b in narrowed(over, work, spans)], step)
        return guarded(outer(work, over), spans, body)

    def whole(self, rows: int, first: Linear, number: Expr, base: Linear, width: int) -> list[Stmt]:
        """A tile of literal width: the sums are an array of registers."""
        kind = self.prob.kind
        sums = self.context.register("acc", kind, (rows, width))
        line = self.context.register("b", kind, (width,))
        one = self.context.register("a", kind)
        i, j = self.context.var("i", rows), self.context.var("j", width)
        b = self._right(number, base, j)
        a = self._left(first, i)
        zero = E.const(0, kind)
        product = E.Mul(Peek(one, ()), Peek(line, (j,)))
        step: list[Stmt] = [
            Declare(line, zero),
            _lanes(j, width, Set(line, (j,), b)),
            _unrolled(
                i,
                rows,
                Declare(one, a),
                _lanes(j, width, Combine(sums, (i, j), SUM, product)),
            ),
        ]
        store = self._store(first, i, base, j, Peek(sums, (i, j)))
        finish = _unrolled(i, rows, _lanes(j, width, *store))
        spans = self._spans(rows, first, base, index(width))
        body = [Declare(sums, zero), *self._terms(spans, step), finish]
        return guarded(self.prob.needed, spans, body)

    def open(self, rows: int, first: Linear, number: Expr, base: Linear, width: Expr) -> list[Stmt]:
        """A tile of run-time width: one sum a row and lane."""
        kind = self.prob.kind
        sums = self.context.register("acc", kind, (rows,))
        one = self.context.register("b", kind)
        i, j = self.context.var("i", rows), self.context.var("j", self.column.most)
        b = self._right(number, base, j)
        a = self._left(first, i)
        zero = E.const(0, kind)
        add = Combine(sums, (i,), SUM, E.Mul(a, Peek(one, ())))
        step: list[Stmt] = [Declare(one, b), _unrolled(i, rows, add)]
        store = self._store(first, i, base, j, Peek(sums, (i,)))
        spans = self._spans(rows, first, base, width)
        body = [Declare(sums, zero), *self._terms(spans, step), _unrolled(i, rows, *store)]
        lane = For(j, index(0), width, tuple(body), LoopKind.VECTOR, 1, 1)
        return guarded(self.prob.needed, spans, [lane])

    def _left(self, first: Linear, i: Var) -> Expr:
        values: dict[Expr, Expr] = {}
        if self.prob.row is not None:
            values[self.prob.row.var] = first.plus(Linear(0, {i: 1})).expr()
        return cast(replaced(self.prob.left.value, values), self.prob.kind)

    def _right(self, number: Expr, base: Linear, j: Var) -> Expr:
        if self.panels is not None:
            return self.panels.at(index(0) if self.in_place else number, j)
        at = base.plus(Linear(0, {j: 1})).expr()
        return cast(replaced(self.prob.right.value, {self.column.var: at}), self.prob.kind)

    def _store(self, first: Linear, i: Var, base: Linear, j: Var, value: Expr) -> list[Stmt]:
        prob = self.prob
        values: dict[Expr, Expr] = {self.column.var: base.plus(Linear(0, {j: 1})).expr()}
        if prob.row is not None:
            values[prob.row.var] = first.plus(Linear(0, {i: 1})).expr()
        if prob.scale is not None:
            value = E.Mul(value, cast(replaced(prob.scale, values), prob.kind))
        checks = [moved_check(c, values) for c in prob.scale_checks]
        if self.near is not None or prob.store is None:
            return [*checks, self._store_near(i, j, value)]
        array = self.context.home(prob.stage).array
        value = cast(value, array.dtype)
        offset = moved(prob.store, values)
        if prob.stage.partial:
            return [*checks, StoreCombine(array, offset, SUM, value)]
        return [*checks, Store(array, offset, value)]

    def _store_near(self, i: Var, j: Var, value: Expr) -> Stmt:
        if self.near is None:
            raise InvalidIR(f"{self.prob.stage.target} has no place")
        at = Linear(0, {i: self.stride, j: 1}).expr()
        return Store(self.near, at, cast(value, self.near.dtype))

    def tail(self, rows: int, first: Linear, base: Linear, width: Expr) -> list[Stmt]:
        """The maps that follow, over one block."""
        prob, maps = self.prob, self.prob.tail
        if not maps.stages:
            return []
        i, j = self.context.var("i", rows), self.context.var("j", self.stride)
        values: dict[Expr, Expr] = {self.column.var: base.plus(Linear(0, {j: 1})).expr()}
        if prob.row is not None:
            values[prob.row.var] = first.plus(Linear(0, {i: 1})).expr()
        body: list[Stmt] = [
            Declare(maps.values.registers[prob.stage.target], self._sum(i, j, values))
        ]
        for number, stage in enumerate(maps.stages):
            register = maps.values.registers[stage.target]
            value = replaced(maps.values.bodies[number], values)
            body.append(Declare(register, value))
            store = maps.stores[number]
            if store is not None:
                array = self.context.home(stage).array
                body.append(Store(array, moved(store, values), Peek(register, ())))
        lane = Loop(self.column.axes, j, width, self.stride)
        # Written out: a loop of two turns inside costs more than the maps (1024x512x128 with GELU:
        # 2.5 ms rolled, 1.4 ms written out).
        whole = rounded_up(self.stride, self.context.target.lanes(prob.kind.itemsize))
        inner = hoisted(self.context, vector(lane, whole, body))
        return nest([Loop((), i, index(rows), rows)], inner)

    def _sum(self, i: Var, j: Var, values: dict[Expr, Expr]) -> Expr:
        """The contraction's value where the block just left it."""
        if self.near is not None:
            return Load(self.near, Linear(0, {i: self.stride, j: 1}).expr())
        array = self.context.home(self.prob.stage).array
        return Load(array, moved(self.prob.store or Linear(), values))


def _lanes(var: Var, width: int, *body: Stmt) -> Stmt:
    return For(var, index(0), index(width), body, LoopKind.VECTOR, 1, 1)


def _unrolled(var: Var, count: int, *body: Stmt) -> Stmt:
    return For(var, index(0), index(count), body, LoopKind.UNROLL)
