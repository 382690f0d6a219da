"""Arrays of symbolic sizes as callers have them: rows that follow one another.

    x[i*2^20 + j], as if each row had 2^20 elements  ->  x[i*N + j]

Lowering lays arrays out by the largest sizes. It is told one size that nothing reaches, so that the
coefficient of each part of an offset says how many rows and how many columns it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod

from pullback.algebra.affine import Affine, affine, to_expr
from pullback.algebra.bounds import bounds
from pullback.backends.host.lying import ApartError, apart
from pullback.backends.nests.ranges import ranged
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent, Shape, extent_expr, index
from pullback.ir.kernel import Kernel
from pullback.ir.nest import (
    Array,
    For,
    Guard,
    Load,
    LoopKind,
    Prefetch,
    Routine,
    Stmt,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import Node, rebuild
from pullback.ir.statements import with_roots
from pullback.lower.kernel import lower
from pullback.schedule.schedule import Schedule

FAR = 1 << 20  # elements of a row
NEAR = 1 << 18  # a column's coefficients and constants stay below it
MOST = 3  # of such axes behind the first one: offsets are of 64 bits


def dense(kernel: Kernel, schedule: Schedule, marks: bool = False) -> Routine:
    """The nest of a kernel over arrays without gaps. Raises: ApartError."""
    shapes = [v.shape for v in kernel.arguments]
    longest = max((sum(isinstance(e, Dim) for e in s[1:]) for s in shapes), default=0)
    if longest > MOST:
        raise ApartError(f"{longest} symbolic axes behind the first one")
    far = FAR if longest else 0
    routine = ranged(lower(kernel, schedule, marks=marks, far=far))
    own = {a: s for a, s in zip(routine.arguments, shapes, strict=True) if apart(s)}
    if not own:
        return routine
    made = _Dense(own, {v.name: v for v in routine.sizes})
    body = tuple(map(made.statement, routine.body))
    return replace(routine, body=body, finish=tuple(map(made.statement, routine.finish)))


@dataclass(slots=True)
class _Dense:
    """Rewrites statements."""

    shapes: Mapping[Array, Shape]
    sizes: Mapping[str, Var]
    memo: dict[Node, Node] = field(default_factory=dict)
    turned: int = 0  # panels that were copied by one statement

    def statement(self, s: Stmt) -> Stmt:
        """Raises: ApartError."""
        if isinstance(s, Transpose) and self.shapes.keys() & {s.source, s.target}:
            return self.statement(self.loops(s))
        made = with_roots(s, self.value)
        if isinstance(made, For | Guard):
            return replace(made, body=tuple(map(self.statement, made.body)))
        if isinstance(made, Store | StoreCombine | Prefetch):
            return replace(made, offset=self.offset(made.array, made.offset))
        return made

    def loops(self, s: Transpose) -> Stmt:
        """A copy of a panel by loops."""
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
        return For(c, index(0), ends[0], (inner,))

    def value(self, e: Expr) -> Expr:
        """An expression with its reads."""
        made = rebuild(e, self._read, self.memo)
        assert isinstance(made, Expr)
        return made

    def _read(self, node: Node) -> Node | None:
        if not isinstance(node, Load):
            return None
        return Load(node.array, self.offset(node.array, node.offset))

    def offset(self, array: Array, offset: Expr) -> Expr:
        """Raises: ApartError for a column that may be taken for a row."""
        shape = self.shapes.get(array)
        return offset if shape is None else self.placed(affine(offset), shape)

    def placed(self, form: Affine, shape: Shape) -> Expr:
        """Rows by the sizes at hand."""
        place = next((n for n, e in enumerate(shape) if n and isinstance(e, Dim)), None)
        if place is None:
            return to_expr(form)
        inner = shape[place:]
        far = prod(FAR if isinstance(e, Dim) else e for e in inner)
        row, column = _parted(form, far)
        most = max(abs(c) for c in (column.const, *(c for _, c in column.terms)))
        if most > far // FAR * NEAR:
            raise ApartError(f"a column of {shape} that is no column")
        stride: Expr = reduce(E.Mul, map(self.size, inner))
        total = self.placed(column, inner)
        for atom, times in row.terms:
            total = E.Add(total, E.Mul(E.Mul(atom, stride), index(times)))
        return E.Add(total, E.Mul(stride, index(row.const))) if row.const else total

    def size(self, extent: Extent) -> Expr:
        """An extent at run time."""
        return E.rewritten(extent_expr(extent), self._size)

    def _size(self, node: Node) -> Node | None:
        return self.sizes[node.dim.name] if isinstance(node, E.Size) else None


def _sum(start: Expr, *steps: tuple[Expr, int]) -> Expr:
    """``start + var * step + ..``"""
    total = start
    for var, step in steps:
        total = E.Add(total, E.Mul(var, index(step)))
    return total


def _parted(form: Affine, far: int) -> tuple[Affine, Affine]:
    """``far * row + column``, the coefficients of the column as small as they can be."""
    half = far // 2
    rows = [(a, (c + half) // far) for a, c in form.terms]
    row = form.made(tuple([t for t in rows if t[1]]), (form.const + half) // far)
    return row, form.minus(row.times(far))
