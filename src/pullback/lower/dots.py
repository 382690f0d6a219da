"""Contractions of few rows by dot products: the reduced axis in lanes, a few sums at a time.

``for j in 4: for i in 2: acc[i, j] = sum[k in lanes] left[i, k] * right[j, k]``
"""

from __future__ import annotations

from collections.abc import Callable

from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.kernel import Stage
from pullback.ir.nest import (
    Combine,
    Declare,
    For,
    LoopKind,
    Peek,
    Register,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Var,
)
from pullback.lower.bounds import guarded, narrowed, outer
from pullback.lower.context import Context, Loop, cast, nest, vector
from pullback.lower.operands import Problem, moved, problem, replaced
from pullback.lower.tiles import plain
from pullback.schedule.contraction import balanced
from pullback.schedule.linear import Linear, linear
from pullback.schedule.schedule import Product

# Sums in flight: columns times rows. Eight hide the latency of a multiply-add on one or two ports.
COLUMNS = 4
ROWS = 4

Body = Callable[[int, Linear], list[Stmt]]


def dots(context: Context, product: Product, stage: Stage) -> list[Stmt]:
    """The loop nest of a contraction by dot products."""
    prob = problem(context, product, [stage])
    if (
        prob.column is None
        or prob.store is None
        or not prob.over
        or not (prob.left.plain and prob.right.plain)
    ):
        return plain(context, stage)
    rows = 1 if prob.row is None else prob.row.most
    work = _Dots(context, prob, prob.column)
    columns = COLUMNS if rows > 1 else 2 * COLUMNS
    body = work.blocks(prob.row, balanced(rows, ROWS), columns)
    return nest([*prob.shared, *prob.rest], body)


class _Dots:
    def __init__(self, context: Context, prob: Problem, column: Loop) -> None:
        self.context = context
        self.prob = prob
        self.column = column

    def blocks(self, row: Loop | None, rows: int, columns: int) -> list[Stmt]:
        """Blocks of columns around blocks of rows."""

        def inner(count: int, first: Linear) -> list[Stmt]:
            if row is None:
                return self._block(1, Linear(), count, first)
            return self._blocked(row, rows, lambda n, at: self._block(n, at, count, first))

        return self._blocked(self.column, columns, inner)

    def _blocked(self, loop: Loop, size: int, body: Body) -> list[Stmt]:
        """Whole blocks of `size`, then single ones."""
        size = min(size, loop.most)
        whole = linear(E.FloorDiv(loop.extent, index(size))).expr()
        block = self.context.var("m", max(1, loop.most // size))
        found: list[Stmt] = [
            For(block, index(0), whole, tuple(body(size, Linear(0, {block: size}))))
        ]
        if loop.static:
            rest = loop.most % size
            return found + (body(rest, Linear(loop.most - rest)) if rest else [])
        if size == 1:
            return found
        single = self.context.var("m", loop.most)
        done = linear(whole).times(size).expr()
        found.append(For(single, done, loop.extent, tuple(body(1, Linear(0, {single: 1})))))
        return found

    def _block(self, rows: int, row0: Linear, columns: int, column0: Linear) -> list[Stmt]:
        prob, kind = self.prob, self.prob.kind
        sums = self.context.register("acc", kind, (rows, columns))
        lefts = self.context.register("a", kind, (rows,))
        one = self.context.register("b", kind)
        i, j = self.context.var("i", rows), self.context.var("j", columns)
        values: dict[Expr, Expr] = {self.column.var: column0.plus(Linear(0, {j: 1})).expr()}
        if prob.row is not None:
            values[prob.row.var] = row0.plus(Linear(0, {i: 1})).expr()
        left = cast(replaced(prob.left.value, values), kind)
        right = cast(replaced(prob.right.value, values), kind)
        zero = E.const(0, kind)
        product = E.Mul(Peek(lefts, (i,)), Peek(one, ()))
        add = _unrolled(i, rows, Combine(sums, (i, j), SUM, product))
        inside: list[Stmt] = [
            Declare(lefts, zero),
            _unrolled(i, rows, Set(lefts, (i,), left)),
            _unrolled(j, columns, Declare(one, right), add),
        ]
        spans: dict[Expr, tuple[Linear, Linear]] = {
            self.column.var: (column0, column0.plus(Linear(columns - 1)))
        }
        if prob.row is not None:
            spans[prob.row.var] = (row0, row0.plus(Linear(rows - 1)))
        over = [b.loop for b in narrowed(prob.over, prob.work, spans)]
        lane = vector(over[-1], 1, inside)
        store = self._store(values, sums, i, j)
        finish = _unrolled(j, columns, _unrolled(i, rows, *store))
        inner = guarded(outer(prob.work, prob.over), spans, nest(over[:-1], [lane]))
        body = [Declare(sums, zero), *inner, finish]
        return guarded(prob.needed, spans, body)

    def _store(self, values: dict[Expr, Expr], sums: Register, i: Var, j: Var) -> list[Stmt]:
        prob = self.prob
        value: Expr = Peek(sums, (i, j))
        if prob.scale is not None:
            value = E.Mul(value, cast(replaced(prob.scale, values), prob.kind))
        array = self.context.home(prob.stage).array
        offset = moved(prob.store or Linear(), values)
        value = cast(value, array.dtype)
        if prob.stage.partial:
            return [*prob.scale_checks, StoreCombine(array, offset, SUM, value)]
        return [*prob.scale_checks, Store(array, offset, value)]


def _unrolled(var: Var, count: int, *body: Stmt) -> Stmt:
    return For(var, index(0), index(count), body, LoopKind.UNROLL)
