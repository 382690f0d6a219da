"""Contractions of few rows by dot products: the reduced axis in lanes, a few sums at a time.

``for j in 4: for i in 2: acc[i, j] = sum[k in lanes] left[i, k] * right[j, k]``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pullback.algebra.linear import Linear, linear
from pullback.config import frozen
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.kernel import Stage
from pullback.ir.nest import (
    Combine,
    Declare,
    For,
    Load,
    LoopKind,
    Peek,
    Prefetch,
    Register,
    Set,
    Stmt,
    Stmts,
    Var,
)
from pullback.lower.bounds import guarded
from pullback.lower.context import Context, NestLoop, cast, floor_div, nest, unrolled, vector
from pullback.lower.guards import Values, replaced
from pullback.lower.merge import merged
from pullback.lower.operands import Contraction, Operand, evaluated, problem, scaled, stores
from pullback.schedule.schedule import DotLoops, Product

Body = Callable[[int, Linear], Stmts]


def dots(context: Context, product: Product, stage: Stage, loops: DotLoops) -> Stmts:
    """The loop nest of a contraction by dot products."""
    prob = problem(context, product, [stage])
    column = prob.column
    if not dottable(prob) or column is None:
        raise InvalidIR(f"no dot products of {stage.target} by {loops}")
    before: Stmts = []
    if loops.pitch is not None:
        over = [*prob.rows, *prob.over]
        if loops.pitch < over[-1].most:
            raise InvalidIR(f"rows of {loops.pitch} elements hold no {over[-1].most}")
        before, left = evaluated(context, prob.left, over, prob.kind, loops.pitch)
        prob = replace(prob, left=left)
    prob = _joined(context, prob)
    body = _Dots(context, prob, column, loops.ahead).blocks(loops.rows, loops.columns)
    return nest([*prob.shared, *prob.rest], before + body)


def dottable(prob: Contraction) -> bool:
    """Whether a contraction has dot products: columns, terms, and a right operand as it lies."""
    columns = prob.column is not None and prob.store is not None
    return columns and bool(prob.over) and prob.right.plain


def _joined(context: Context, prob: Contraction) -> Contraction:
    """Loops over terms that lie as one now are one: lanes are added up once, not every turn.

    ``for h in 4: for e in lanes 16: s[h*16 + e] * w[j*64 + h*16 + e]  ->  for k in lanes 64: ..``
    """
    left, right = prob.left, prob.right
    roots = [left.value, right.value, *(b.form.expr() for b in prob.work)]
    over, values = merged(context, prob.over, [0] * len(prob.over), roots, [])
    left, right = (Operand(replaced(o.value, values), o.checks) for o in (left, right))
    return replace(prob, left=left, right=right, over=over)


@frozen
class _Dots:
    """Blocks of dot products. `ahead`: the next columns are fetched meanwhile."""

    context: Context
    prob: Contraction
    column: NestLoop
    ahead: bool

    def blocks(self, rows: int, columns: int) -> Stmts:
        """Blocks of columns around blocks of rows."""
        row = self.prob.row

        def inner(count: int, first: Linear) -> Stmts:
            if row is None:
                return self._block(1, Linear(), count, first)
            return self._blocked(row, rows, lambda n, at: self._block(n, at, count, first))

        return self._blocked(self.column, columns, inner)

    def _blocked(self, loop: NestLoop, size: int, body: Body) -> Stmts:
        """Whole blocks of `size`, then single ones."""
        size = min(size, loop.most)
        whole = floor_div(loop.extent, size)
        block = self.context.var("m", max(1, loop.most // size))
        statements: Stmts = [
            For(block, index(0), whole, tuple(body(size, Linear(0, {block: size}))))
        ]
        if loop.static:
            rest = loop.most % size
            return statements + (body(rest, Linear(loop.most - rest)) if rest else [])
        if size == 1:
            return statements
        single = self.context.var("m", loop.most)
        done = linear(whole).times(size).expr()
        statements.append(For(single, done, loop.extent, tuple(body(1, linear(single)))))
        return statements

    def _block(self, rows: int, row0: Linear, columns: int, column0: Linear) -> Stmts:
        prob = self.prob
        kind = prob.kind
        sums = self.context.register("acc", kind, (rows, columns))
        rights = self.context.register("b", kind, (columns,))
        one = self.context.register("a", kind)
        i = self.context.var("i", rows)
        j = self.context.var("j", columns)
        values = prob.at(row0, i, column0, j)
        zero = E.const(0, kind)

        def added(to: Register, value: Expr) -> Stmt:
            return unrolled(j, columns, Combine(to, (i, j), SUM, value))

        def products(to: Register, at: Values) -> Stmts:
            """Those at one place of the sum, each added to its own."""
            left, right = (replaced(o.value, at) for o in (prob.left, prob.right))
            read = Set(rights, (j,), cast(right, kind))
            return [
                Declare(rights, zero),
                unrolled(j, columns, read, *self._ahead(right, j, columns)),
                unrolled(i, rows, Declare(one, cast(left, kind)), added(to, product)),
            ]

        product = E.Mul(Peek(one, ()), Peek(rights, (j,)))
        spans = prob.spans(row0, rows, column0, index(columns))
        body: Stmts = [Declare(sums, zero)]
        *outside, last = prob.over
        width = self.context.lanes(kind.itemsize)
        whole, rest = divmod(last.most, width)
        if prob.work or not outside or not last.static:
            body += prob.terms(spans, products(sums, values), lanes=True)
            whole = rest = 0
        # Each lane adds up all of its terms: lanes are added up once, not once a row of terms.
        for first, count, lanes in (0, whole, width), (whole * width, 1, rest):
            if not count * lanes:
                continue
            block = self.context.var("b", count)
            lane = self.context.var("k", lanes)
            part = self.context.register("p", kind, sums.shape)
            at = values | {last.var: Linear(first, {block: width, lane: 1}).expr()}
            over = [*outside, NestLoop((), block, index(count), count)]
            total = unrolled(i, rows, added(sums, Peek(part, (i, j))))
            terms = [Declare(part, zero), *nest(over, products(part, at)), total]
            body.append(vector(NestLoop((), lane, index(lanes), lanes), 1, terms))
        return guarded(prob.needed, spans, [*body, self._finish(values, sums, i, column0)])

    def _ahead(self, right: Expr, j: Var, columns: int) -> Stmts:
        """What the next columns read here, where they come from memory."""
        if not self.ahead:
            return []
        following = replaced(right, {j: Linear(columns, {j: 1}).expr()})
        assert isinstance(following, Load)
        return [Prefetch(following.array, following.offset)]

    def _finish(self, values: Values, sums: Register, i: Var, column0: Linear) -> Stmt:
        """The sums of a block go where they live: in lanes where columns lie side by side."""
        rows, columns = sums.shape
        j = self.context.var("j", columns)
        values = values | {self.column.var: column0.plus(linear(j)).expr()}
        checks, value = scaled(self.prob, Peek(sums, (i, j)), values)
        body = unrolled(i, rows, *checks, *stores(self.context, self.prob, value, values))
        store = self.prob.store or Linear()
        beside = store.of(self.column.var) == 1 and not store.hidden(self.column.var)
        kind = LoopKind.VECTOR if beside and columns > 1 else LoopKind.UNROLL
        return For(j, index(0), index(columns), (body,), kind)
