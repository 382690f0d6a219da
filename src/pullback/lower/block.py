"""One register tile of a contraction: sums over k, what follows on them, and the stores.

``acc[8, 48] = 0; for k: acc[i, j] += left[i, k] * right[k, j]; y[i, j] = f(acc[i, j])``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pullback.algebra.linear import Linear, divide, linear
from pullback.errors import InvalidIR
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
    Store,
    StoreCombine,
    Var,
)
from pullback.lower.blocked import blocked_tile
from pullback.lower.bounds import Spans, guarded, narrowed, outer
from pullback.lower.context import Lowering, NestLoop, cast, nest, unrolled, vector
from pullback.lower.depth import Depth
from pullback.lower.hoist import hoisted
from pullback.lower.operands import (
    Contraction,
    Panels,
    moved,
    moved_check,
    replaced,
    rounded_up,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One register tile: sums over all of k, then the stores."""

    context: Lowering
    prob: Contraction
    column: NestLoop
    packed: tuple[Panels | None, Panels | None]
    near: Array | None
    size: tuple[int, int]
    depth: Depth | None
    less: Array | None
    exact: int

    def _spans(self, rows: int, first: Linear, base: Linear, width: Expr) -> Spans:
        """The rows and columns of the block."""
        last = base.plus(linear(width)).shifted(-1)
        spans: dict[Expr, tuple[Linear, Linear]] = {self.column.var: (base, last)}
        if self.prob.row is not None:
            spans[self.prob.row.var] = (first, first.plus(Linear(rows - 1)))
        return spans

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

        def each(*done: Stmt) -> Stmt:
            return unrolled(i, rows, _lanes(j, width, *done))

        step: list[Stmt] = [
            Declare(line, zero),
            _lanes(j, width, Set(line, (j,), b), *self._ahead(base, j)),
            unrolled(
                i,
                rows,
                Declare(one, a),
                _lanes(j, width, Combine(sums, (i, j), SUM, product)),
            ),
        ]
        if self.prob.word is not None:
            step = [each(self._word(sums, (i, j), a, b))]
        spans = self._spans(rows, first, base, index(width))
        stores = self._joined(sums, (i, j), self._at(first, i, base, j), each)
        begin = [Declare(sums, zero), *(each(s) for s in self._less(sums, (i, j), number))]
        terms = self._exactly(sums, (i, j), rows * width, self._terms(spans, step), each)
        body = [*begin, *terms, *stores]
        statements = guarded(self.prob.needed, spans, body)
        return statements + self._last(self.tail(rows, first, base, index(width)))

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
        step: list[Stmt] = [
            Declare(one, b),
            *self._ahead(base, j),
            unrolled(i, rows, add),
        ]
        if self.prob.word is not None:
            step = [unrolled(i, rows, self._word(sums, (i,), a, b))]
        spans = self._spans(rows, first, base, width)

        def each(*done: Stmt) -> Stmt:
            return unrolled(i, rows, *done)

        stores = self._joined(sums, (i, j), self._at(first, i, base, j), each)
        begin = [Declare(sums, zero), *(each(s) for s in self._less(sums, (i, j), number))]
        lanes = self.context.lanes(kind.itemsize)
        terms = self._exactly(sums, (i,), rows * lanes, self._terms(spans, step), each)
        body = [*begin, *terms, *stores]
        lane = For(j, index(0), width, tuple(body), LoopKind.VECTOR, 1, 1)
        statements = guarded(self.prob.needed, spans, [lane])
        return statements + self._last(self.tail(rows, first, base, width))

    def _exactly(
        self,
        sums: Register,
        at: tuple[Expr, ...],
        elements: int,
        terms: list[Stmt],
        each: Callable[..., Stmt],
    ) -> list[Stmt]:
        """`terms`, long ones in blocks where registers are left for what blocks lose."""
        if elements > self.exact or self.depth is not None or self.prob.word is not None:
            return terms
        return blocked_tile(self.context, sums, at, terms, each)

    def _word(self, sums: Register, at: tuple[Expr, ...], a: Expr, b: Expr) -> Stmt:
        """The products of one word, added to a sum: one instruction where the target has it."""
        word = self.prob.word
        if word is None:
            raise InvalidIR(f"{self.prob.stage.target} is not in words")
        add = Combine(sums, at, SUM, E.Mul(a, b))
        return unrolled(word.var, word.size, add)

    def _less(self, sums: Register, at: tuple[Var, Var], number: Expr) -> list[Stmt]:
        """Sums begin at what a shifted side adds to them too much."""
        if self.less is None:
            return []
        place = linear(number).times(self.size[1]).plus(linear(at[1])).expr()
        return [Combine(sums, at[: len(sums.shape)], SUM, Load(self.less, place))]

    def _at(self, first: Linear, i: Var, base: Linear, j: Var) -> dict[Expr, Expr]:
        """The row and column of one element."""
        values: dict[Expr, Expr] = {self.column.var: base.plus(Linear(0, {j: 1})).expr()}
        if self.prob.row is not None:
            values[self.prob.row.var] = first.plus(Linear(0, {i: 1})).expr()
        return values

    def _left(self, first: Linear, i: Var) -> Expr:
        panels = self.packed[0]
        if panels is not None:
            element = panels.at(divide(first, self.size[0])[0].expr(), self._place(i))
            return cast(element, self.prob.kind)
        values: dict[Expr, Expr] = {}
        if self.prob.row is not None:
            values[self.prob.row.var] = first.plus(Linear(0, {i: 1})).expr()
        return cast(replaced(self.prob.left.value, values), self.prob.kind)

    def _right(self, number: Expr, base: Linear, j: Var) -> Expr:
        panels = self.packed[1]
        if panels is not None:
            return cast(panels.at(number, self._place(j)), self.prob.kind)
        at = base.plus(Linear(0, {j: 1})).expr()
        return cast(replaced(self.prob.right.value, {self.column.var: at}), self.prob.kind)

    def _place(self, at: Var) -> Expr:
        """Where a row or column lies in a row of its panel."""
        word = self.prob.word
        return at if word is None else Linear(0, {at: word.size, word.var: 1}).expr()

    def _ahead(self, base: Linear, j: Var) -> list[Stmt]:
        """What the next block of k reads here of a `right` that comes from memory."""
        depth = self.depth
        if depth is None or not depth.streams:
            return []
        following = Linear(1, {depth.loop.var: 1}).expr()
        place = base.plus(Linear(0, {j: 1})).expr()
        load = replaced(self.prob.right.value, {self.column.var: place, depth.loop.var: following})
        return [Prefetch(load.array, load.offset)] if isinstance(load, Load) else []

    def _joined(
        self,
        sums: Register,
        place: tuple[Expr, Expr],
        at: dict[Expr, Expr],
        each: Callable[..., Stmt],
    ) -> list[Stmt]:
        """The stores of a tile, with what blocks of k before have left."""
        depth = self.depth
        element = place[: len(sums.shape)]
        finish = each(*self._store(place, at, Peek(sums, element)))
        if depth is None or self.prob.stage.partial:
            return [finish]
        wait = moved(depth.place, at)
        more = each(Combine(sums, element, SUM, Load(depth.array, wait)))
        before = Guard(depth.later, (more,))
        if depth.home and self.prob.scale is None:
            return [before, finish]
        keep = each(Store(depth.array, wait, Peek(sums, element)))
        return [before, Guard(depth.early, (keep,)), Guard(depth.last, (finish,))]

    def _last(self, body: list[Stmt]) -> list[Stmt]:
        """`body` once all blocks of k are in."""
        if self.depth is None or not body:
            return body
        return [Guard(self.depth.last, tuple(body))]

    def _store(self, place: tuple[Expr, Expr], values: dict[Expr, Expr], value: Expr) -> list[Stmt]:
        prob = self.prob
        if prob.scale is not None:
            value = E.Mul(value, cast(replaced(prob.scale, values), prob.kind))
        checks = [moved_check(c, values) for c in prob.scale_checks]
        if self.near is not None or prob.store is None:
            return [*checks, self._store_near(place, value)]
        array = self.context.home(prob.stage).array
        value = cast(value, array.dtype)
        offset = moved(prob.store, values)
        if prob.stage.partial:
            return [*checks, StoreCombine(array, offset, SUM, value)]
        return [*checks, Store(array, offset, value)]

    def _store_near(self, at: tuple[Expr, Expr], value: Expr) -> Stmt:
        if self.near is None:
            raise InvalidIR(f"{self.prob.stage.target} has no place")
        i, j = at
        place = linear(i).times(self.size[1]).plus(linear(j)).expr()
        return Store(self.near, place, cast(value, self.near.dtype))

    def tail(self, rows: int, first: Linear, base: Linear, width: Expr) -> list[Stmt]:
        """The maps that follow, over one block."""
        prob, maps = self.prob, self.prob.tail
        if not maps.stages:
            return []
        i, j = self.context.var("i", rows), self.context.var("j", self.size[1])
        values = self._at(first, i, base, j)
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
        lane = NestLoop(self.column.axes, j, width, self.size[1])
        # Written out: a loop of two turns inside costs more than the maps (1024x512x128 with GELU:
        # 2.5 ms rolled, 1.4 ms written out).
        whole = rounded_up(self.size[1], self.context.lanes(prob.kind.itemsize))
        inner = hoisted(self.context, vector(lane, whole, body))
        return nest([NestLoop((), i, index(rows), rows)], inner)

    def _sum(self, i: Var, j: Var, values: dict[Expr, Expr]) -> Expr:
        """The contraction's value where the block just left it."""
        if self.near is not None:
            return Load(self.near, Linear(0, {i: self.size[1], j: 1}).expr())
        array = self.context.home(self.prob.stage).array
        return Load(array, moved(self.prob.store or Linear(), values))


def _lanes(var: Var, width: int, *body: Stmt) -> Stmt:
    return For(var, index(0), index(width), body, LoopKind.VECTOR, 1, 1)
