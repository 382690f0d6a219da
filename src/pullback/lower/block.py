"""One register tile of a contraction: sums over k, what follows on them, and the stores.

``acc[8, 48] = 0; for k: acc[i, j] += left[i, k] * right[k, j]; y[i, j] = f(acc[i, j])``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback.algebra.linear import Linear, divide, linear
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.nest import (
    Array,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Peek,
    Prefetch,
    Register,
    Set,
    Stmt,
    Stmts,
    Store,
    Var,
)
from pullback.lower.blocked import blocked_tile
from pullback.lower.bounds import guarded
from pullback.lower.context import Context, NestLoop, cast, nest, rounded_up, unrolled, vector
from pullback.lower.depth import Depth
from pullback.lower.guards import Values, moved, replaced
from pullback.lower.hoist import hoisted
from pullback.lower.operands import LINE, Contraction, Panels, scaled, stores
from pullback.lower.turned import Turned
from pullback.schedule.schedule import TileLoops


@dataclass(slots=True)
class Block:
    """One register tile: sums over all of k, then the stores.

    `left` and `right`: panels of the sides that are packed. `near`: where the sums of a tile go
    that live nowhere. `less`: what a shifted side adds to sums too much.
    """

    context: Context
    prob: Contraction
    column: NestLoop
    loops: TileLoops
    left: Panels | None = None
    right: Panels | None = None
    near: Array | None = None
    less: Array | None = None
    depth: Depth | None = None
    turned: Turned | None = None

    def tile(
        self,
        rows: int,
        first: Linear,
        number: Expr,
        width: Expr,
    ) -> Stmts:
        """A tile of literal width, whose sums are an array of registers; of a run-time width each
        lane has one a row.
        """
        prob, context, kind = self.prob, self.context, self.prob.kind
        base = linear(number).times(self.loops.columns)
        wide = [int(width.value)] if isinstance(width, E.Const) else []
        sums = context.register("acc", kind, (rows, *wide))
        line = context.register("b", kind, tuple(wide))
        one = context.register("a", kind) if wide else None
        i, j = context.var("i", rows), context.var("j", *wide or [self.column.most])
        at, place = prob.at(first, i, base, j), (i, j)[: len(sums.shape)]
        spans = prob.spans(first, rows, base, width)
        terms_at = {**at, **prob.holding(spans)}
        a, b = self._left(first, i, terms_at), self._right(number, terms_at, j)
        zero = E.const(0, kind)

        def lanes(*body: Stmt) -> Stmt:
            return For(j, index(0), width, body, LoopKind.VECTOR, 1, 1)

        def each(*body: Stmt) -> Stmt:
            return unrolled(i, rows, *([lanes(*body)] if wide else body))

        if prob.word is not None:
            add: Stmt = Combine(sums, place, SUM, E.Mul(a, b))
            step = [each(unrolled(prob.word.var, prob.word.size, add))]
        elif one is None:
            add = Combine(sums, place, SUM, E.Mul(a, Peek(line, ())))
            step = [Declare(line, b), *self._ahead(base, j), unrolled(i, rows, add)]
        else:
            add = Combine(sums, place, SUM, E.Mul(Peek(one, ()), Peek(line, (j,))))
            fill = lanes(Set(line, (j,), b), *self._ahead(base, j))
            step = [Declare(line, zero), fill, unrolled(i, rows, Declare(one, a), lanes(add))]
        stores = self._joined(sums, (i, j), at, each, wide)
        terms = prob.terms(spans, step)
        vector = context.lanes(kind.itemsize)
        elements = rows * (-(-wide[0] // vector) if wide else 1) * vector
        exact = elements <= self.loops.exact and self.depth is None and prob.word is None
        terms = blocked_tile(context, sums, place, terms, each, exact)
        begin = [Declare(sums, zero), *(each(s) for s in self._less(sums, (i, j), base))]
        nearer = self._nearer(first, rows, base, wide[0]) if wide else []
        body = [*begin, *nearer, *terms, *stores]
        if prob.stage.partial:  # what is added to is there already
            body = prob.worked(spans, body)
        statements = guarded(prob.needed, spans, body if wide else [lanes(*body)])
        return statements + self._last(self.tail(rows, first, base, width))

    def _less(self, sums: Register, at: tuple[Var, Var], base: Linear) -> Stmts:
        """Sums begin at what a shifted side adds to them too much."""
        if self.less is None:
            return []
        place = base.plus(linear(at[1])).expr()
        return [Combine(sums, at[: len(sums.shape)], SUM, Load(self.less, place))]

    def _left(self, first: Linear, i: Var, at: Values) -> Expr:
        panels = self.left
        if panels is None:
            return cast(replaced(self.prob.left.value, at), self.prob.kind)
        element = panels.at(divide(first, self.loops.rows)[0].expr(), self._place(i))
        return cast(element, self.prob.kind)

    def _right(self, number: Expr, at: Values, j: Var) -> Expr:
        panels = self.right
        if panels is None:
            return cast(replaced(self.prob.right.value, at), self.prob.kind)
        return cast(panels.at(number, self._place(j)), self.prob.kind)

    def _place(self, at: Var) -> Expr:
        """Where a row or column lies in a row of its panel."""
        word = self.prob.word
        return at if word is None else Linear(0, {at: word.size, word.var: 1}).expr()

    def _ahead(self, base: Linear, j: Var) -> Stmts:
        """What the next block of k reads here of a `right` that comes from memory."""
        depth = self.depth
        if depth is None or not depth.streams:
            return []
        following = Linear(1, {depth.loop.var: 1}).expr()
        place = base.plus(linear(j)).expr()
        load = replaced(self.prob.right.value, {self.column.var: place, depth.loop.var: following})
        return [Prefetch(load.array, load.offset)] if isinstance(load, Load) else []

    def _joined(
        self,
        sums: Register,
        place: tuple[Var, Var],
        at: Values,
        each: Callable[..., Stmt],
        wide: Sequence[int],
    ) -> Stmts:
        """The stores of a tile, with what blocks of k before have left."""
        depth = self.depth
        element = place[: len(sums.shape)]
        made, copies = self._store(place, at, Peek(sums, element)), Stmts()
        if self.turned is not None and wide:
            made, copies = self.turned.stores(made, *place, sums.shape[0], index(wide[0]))
        finish = [each(*made), *copies]
        if depth is None or self.prob.stage.partial:
            return finish
        wait = moved(depth.place, at)
        more = each(Combine(sums, element, SUM, Load(depth.array, wait)))
        before = Guard(depth.later, (more,))
        if depth.home and self.prob.scale is None:
            return [before, *finish]
        keep = each(Store(depth.array, wait, Peek(sums, element)))
        return [before, Guard(depth.early, (keep,)), Guard(depth.last, tuple(finish))]

    def _nearer(self, first: Linear, rows: int, base: Linear, width: int) -> Stmts:
        """Sums of blocks of k before come nearer while terms are added up."""
        depth = self.depth
        if depth is None or self.prob.stage.partial:
            return []
        step = LINE // depth.array.dtype.itemsize
        i, line = self.context.var("i", rows), self.context.var("l", -(-width // step))
        at = self.prob.at(first, i, base, Linear(0, {line: step}).expr())
        hint = Prefetch(depth.array, moved(depth.place, at))
        return [unrolled(i, rows, unrolled(line, line.hi + 1, hint))]

    def _last(self, body: Stmts) -> Stmts:
        """`body` once all blocks of k are in."""
        if self.depth is None or not body:
            return body
        return [Guard(self.depth.last, tuple(body))]

    def _store(self, place: tuple[Expr, Expr], values: Values, value: Expr) -> Stmts:
        prob = self.prob
        checks, value = scaled(prob, value, values)
        if self.near is None:
            return [*checks, *stores(self.context, prob, value, values)]
        i, j = place
        near = linear(i).times(self.loops.columns).plus(linear(j)).expr()
        return [*checks, Store(self.near, near, cast(value, self.near.dtype))]

    def tail(
        self,
        rows: int,
        first: Linear,
        base: Linear,
        width: Expr,
    ) -> Stmts:
        """The maps that follow, over one block."""
        prob, maps = self.prob, self.prob.tail
        if not maps.stages:
            return []
        i, j = self.context.var("i", rows), self.context.var("j", self.loops.columns)
        values = prob.at(first, i, base, j)
        body: Stmts = [Declare(maps.values.registers[prob.stage.target], self._sum(i, j, values))]
        for number, stage in enumerate(maps.stages):
            register = maps.values.registers[stage.target]
            value = replaced(maps.values.bodies[number], values)
            body.append(Declare(register, value))
            store = maps.stores[number]
            if store is not None:
                array = self.context.home(stage).array
                body.append(Store(array, moved(store, values), Peek(register, ())))
        lane = NestLoop(self.column.axes, j, width, self.loops.columns)
        # Written out: a loop of two turns inside costs more than the maps (1024x512x128 with GELU:
        # 2.5 ms rolled, 1.4 ms written out).
        whole = rounded_up(self.loops.columns, self.context.lanes(prob.kind.itemsize))
        copies = Stmts()
        if self.turned is not None:
            body, copies = self.turned.stores(body, i, j, rows, width)
        inner = hoisted(self.context, vector(lane, whole, body))
        return [*nest([NestLoop((), i, index(rows), rows)], inner), *copies]

    def _sum(self, i: Var, j: Var, values: Values) -> Expr:
        """The contraction's value where the block just left it."""
        if self.near is not None:
            return Load(self.near, Linear(0, {i: self.loops.columns, j: 1}).expr())
        array = self.context.home(self.prob.stage).array
        return Load(array, moved(self.prob.store or Linear(), values))
