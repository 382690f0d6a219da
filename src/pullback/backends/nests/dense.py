"""Arrays of symbolic sizes as callers have them: rows that follow one another.

    x[i*1024 + j], 0 <= j < N <= 1024  ->  x[i*N + j]

Lowering lays arrays out by the largest sizes. An offset there is a row and a column in one way
alone, so where the column is shown to be inside, both are known, and the row's stride may be
another. Where one offset is not shown to be so, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import prod

from pullback.algebra.affine import Affine, affine, to_expr
from pullback.algebra.bounds import Prover, bounds
from pullback.errors import UnsupportedError
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent, Shape, extent_expr, index, upper
from pullback.ir.kernel import Kernel
from pullback.ir.nest import (
    Array,
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Mark,
    Prefetch,
    Routine,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import Node

Facts = tuple[Expr, ...]  # what holds where a statement stands


class ApartError(UnsupportedError):
    """Rows of an array have to lie as far apart as at the largest size."""


def apart(shape: Shape) -> bool:
    """Whether rows lie further apart at the largest sizes than they need to."""
    return any(isinstance(e, Dim) for e in shape[1:])


def dense(routine: Routine, kernel: Kernel) -> Routine:
    """The routine over arrays without gaps. Raises: ApartError."""
    pairs = zip(routine.arguments, kernel.arguments, strict=True)
    shapes = {array: v.shape for array, v in pairs if apart(v.shape)}
    if not shapes:
        return routine
    own = _Dense(shapes, {v.name: v for v in routine.sizes})
    body = own.block(routine.body, ())
    return replace(routine, body=body, finish=own.block(routine.finish, ()))


@dataclass(slots=True)
class _Dense:
    """Rewrites statements."""

    shapes: Mapping[Array, Shape]
    sizes: Mapping[str, Var]
    provers: dict[Facts, Prover] = field(default_factory=dict)
    offsets: dict[tuple[Array, Expr, Facts], Expr] = field(default_factory=dict)
    values: dict[tuple[Expr, Facts], Expr] = field(default_factory=dict)
    turned: int = 0  # panels that were copied by one statement

    def block(self, body: tuple[Stmt, ...], facts: Facts) -> tuple[Stmt, ...]:
        return tuple([self.statement(s, facts) for s in body])

    def statement(self, s: Stmt, facts: Facts) -> Stmt:
        """Raises: ApartError."""
        of: Callable[[Expr], Expr] = partial(self.value, facts=facts)
        match s:
            case For():
                least = E.logical_not(E.Less(s.var, s.lo))
                inner = (*facts, least, E.Less(s.var, s.hi))
                return replace(s, lo=of(s.lo), hi=of(s.hi), body=self.block(s.body, inner))
            case Guard():
                body = self.block(s.body, (*facts, s.condition))
                return replace(s, condition=of(s.condition), body=body)
            case Declare():
                return replace(s, init=of(s.init))
            case Set():
                return Set(s.register, tuple(map(of, s.indices)), of(s.value))
            case Combine():
                return Combine(s.register, tuple(map(of, s.indices)), s.combiner, of(s.value))
            case Store():
                return Store(s.array, self.offset(s.array, s.offset, facts), of(s.value))
            case StoreCombine():
                to = self.offset(s.array, s.offset, facts)
                return StoreCombine(s.array, to, s.combiner, of(s.value))
            case Check():
                return replace(s, index=of(s.index), extent=of(s.extent))
            case Transpose():
                return self.transposed(s, facts)
            case Prefetch():
                return s if s.array not in self.shapes else Mark(())
            case Mark():
                return s

    def transposed(self, s: Transpose, facts: Facts) -> Stmt:
        """As it is, or as loops where rows of the source lie as sizes say. Raises: ApartError."""
        if s.source not in self.shapes and s.target not in self.shapes:
            return replace(
                s,
                target_offset=self.value(s.target_offset, facts),
                source_offset=self.value(s.source_offset, facts),
                rows=self.value(s.rows, facts),
                columns=self.value(s.columns, facts),
            )
        self.turned += 1
        ends = s.columns, s.rows, index(s.word)
        c, r, u = (
            Var(f"{name}_turned{self.turned}", 0, max(0, bounds(end)[1] - 1))
            for name, end in zip("cru", ends, strict=True)
        )
        part = [(u, 1)] if s.word > 1 else []
        to = _sum(s.target_offset, (c, s.target_row), (r, s.word), *part)
        out = _sum(s.source_offset, (r, s.source_row), (c, s.word), *part)
        body: Stmt = Store(s.target, to, Load(s.source, out))
        if s.word > 1:
            body = For(u, index(0), ends[2], (body,), LoopKind.UNROLL)
        kind = LoopKind.VECTOR if s.word == 1 else LoopKind.SEQ
        inner = For(r, index(0), ends[1], (body,), kind)
        return self.statement(For(c, index(0), ends[0], (inner,)), facts)

    def value(self, e: Expr, facts: Facts) -> Expr:
        """An expression with its reads; each side of a choice under its condition."""
        key = e, facts
        if key not in self.values:
            self.values[key] = self._value(e, facts)
        return self.values[key]

    def _value(self, e: Expr, facts: Facts) -> Expr:
        if isinstance(e, Load):
            return Load(e.array, self.offset(e.array, e.offset, facts))
        if isinstance(e, E.If):
            then = self.value(e.then, (*facts, e.condition))
            other = self.value(e.otherwise, (*facts, E.logical_not(e.condition)))
            return E.If(self.value(e.condition, facts), then, other)
        kids = tuple([self.value(k, facts) for k in e.children if isinstance(k, Expr)])
        made = e if kids == e.children else e.with_children(kids)
        assert isinstance(made, Expr)
        return made

    def offset(self, array: Array, offset: Expr, facts: Facts) -> Expr:
        """Raises: ApartError."""
        plain = self.value(offset, facts)
        shape = self.shapes.get(array)
        if shape is None:
            return plain
        key = array, plain, facts
        if key not in self.offsets:
            made = self.placed(affine(plain), shape, facts)
            if made is None:
                raise ApartError(f"a column of {array} is not shown to be in its row")
            self.offsets[key] = made
        return self.offsets[key]

    def placed(self, form: Affine, shape: Shape, facts: Facts) -> Expr | None:
        """Rows by the sizes at hand; None where the column is not shown to be inside."""
        place = next((n for n, e in enumerate(shape) if n and isinstance(e, Dim)), None)
        if place is None:
            return to_expr(form)
        inner = shape[place:]
        far = prod(map(upper, inner))
        row, column = _nearest(form, far)
        if not self.prover(facts).inside(to_expr(column), far):
            return None
        rest = self.placed(column, inner, facts)
        if rest is None:
            return None
        stride: Expr = reduce(E.Mul, map(self.size, inner))
        total = rest
        for atom, times in row.terms:
            total = E.Add(total, E.Mul(E.Mul(atom, stride), index(times)))
        return E.Add(total, E.Mul(stride, index(row.const))) if row.const else total

    def size(self, extent: Extent) -> Expr:
        """An extent at run time."""
        return E.rewritten(extent_expr(extent), self._size)

    def _size(self, node: Node) -> Node | None:
        return self.sizes[node.dim.name] if isinstance(node, E.Size) else None

    def prover(self, facts: Facts) -> Prover:
        if facts not in self.provers:
            self.provers[facts] = Prover(facts)
        return self.provers[facts]


def _sum(start: Expr, *steps: tuple[Expr, int]) -> Expr:
    """``start + var * step + ..``"""
    total = start
    for var, step in steps:
        total = E.Add(total, E.Mul(var, index(step)))
    return total


def _nearest(form: Affine, far: int) -> tuple[Affine, Affine]:
    """``far * row + column``, the coefficients of the column as small as they can be."""
    half = far // 2
    rows = [(a, (c + half) // far) for a, c in form.terms]
    row = form.made(tuple([t for t in rows if t[1]]), (form.const + half) // far)
    return row, form.minus(row.times(far))
