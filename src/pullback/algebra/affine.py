"""Integer-linear forms of index expressions.

``2*i + 3*(j // 4) + 7`` is ``Affine(((i, 2), (j // 4, 3)), 7)``. Everything that is not a sum or a
product with a constant is an atom: axes, sizes, loop variables, quotients, remainders, data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Expr
from pullback.ir.nest import Var
from pullback.ir.node import Node, walk

LINEAR = (E.Add, E.Mul)
WORD = 1 << 64
HALF = 1 << 63


def wrap(value: int) -> int:
    """`value` as int64 arithmetic would hold it."""
    return (value + HALF) % WORD - HALF


class Affine(NamedTuple):
    """``sum of coefficient * atom + const`` over exact integers; terms in canonical order."""

    terms: tuple[tuple[Expr, int], ...]
    const: int

    def coefficient(self, atom: Expr) -> int:
        """The factor of `atom`, 0 where it does not occur."""
        return next((c for a, c in self.terms if a is atom), 0)

    def without(self, atom: Expr) -> Affine:
        """The form less its term in `atom`."""
        return Affine(tuple(t for t in self.terms if t[0] is not atom), self.const)

    @property
    def atoms(self) -> tuple[Expr, ...]:
        return tuple([a for a, _ in self.terms])

    @property
    def single(self) -> Expr | None:
        """The atom of a form that is just one atom."""
        if len(self.terms) == 1 and self.const == 0 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def plus(self, other: Affine) -> Affine:
        """``self + other``"""
        return make([*self.terms, *other.terms], self.const + other.const)

    def minus(self, other: Affine) -> Affine:
        """``self - other``"""
        return self.plus(other.scaled(-1))

    def scaled(self, factor: int) -> Affine:
        """``self * factor``"""
        if factor == 0:
            return Affine((), 0)
        return Affine(tuple([(a, c * factor) for a, c in self.terms]), self.const * factor)

    def shifted(self, offset: int) -> Affine:
        """``self + offset``"""
        return Affine(self.terms, self.const + offset)

    def select(self, keep: Callable[[int], bool]) -> Affine:
        """The terms whose coefficient passes `keep`, without the constant."""
        return Affine(tuple(t for t in self.terms if keep(t[1])), 0)


def make(terms: Iterable[tuple[Expr, int]], const: int) -> Affine:
    """A form with equal atoms merged, zero terms dropped, atoms in canonical order."""
    coefficients: dict[Expr, int] = {}
    for atom, coefficient in terms:
        coefficients[atom] = coefficients.get(atom, 0) + coefficient
    kept = [(a, c) for a, c in coefficients.items() if c != 0]
    if len(kept) > 1:
        kept.sort(key=lambda term: _order(term[0]))
    return Affine(tuple(kept), const)


def constant(value: int) -> Affine:
    """``value``"""
    return Affine((), value)


def atom(e: Expr) -> Affine:
    """`e` taken as one indivisible term."""
    return Affine(((e, 1),), 0)


def _order(e: Expr) -> tuple[Any, ...]:
    """Axes first, by number; then sizes, variables, quotients and remainders, the rest."""
    if isinstance(e, E.Axis):
        return (0, (e.number,), "", 0)
    if isinstance(e, E.Size):
        return (1, (), e.dim.name, 0)
    if isinstance(e, Var):
        return (2, (), e.name, 0)
    divisor = 0
    if isinstance(e, E.FloorDiv | E.Mod) and isinstance(e.right, E.Const):
        divisor = -int(e.right.value)
    return (3, tuple(sorted(e.axes)), type(e).__name__, divisor)


def is_linear(node: object) -> bool:
    """Whether a node is a sum or product of int64, not an atom."""
    return isinstance(node, LINEAR) and node.dtype is int64


class _Boundary:
    """Says where the linear part of an expression ends (or is known already)."""

    def __init__(self, known: dict[Expr, Affine]) -> None:
        self.known = known

    def __contains__(self, node: object) -> bool:
        return not is_linear(node) or node in self.known


def affine(e: Expr, known: dict[Expr, Affine] | None = None) -> Affine:
    """The integer-linear form of an int64 expression, equal to it modulo 2**64.

    The axis of a unit extent counts as 0. `known` keeps results between calls.
    """
    known = {} if known is None else known
    if is_linear(e) and e not in known:
        for node in walk(e, skip=_Boundary(known)):
            known[node] = _combine(node, known)  # type: ignore[index]  # only expressions pass
    return _known(e, known)


def _known(e: Node, known: dict[Expr, Affine]) -> Affine:
    assert isinstance(e, Expr)
    if e in known:
        return known[e]
    if isinstance(e, E.Const) and e.dtype == int64:
        return constant(int(e.value))
    if isinstance(e, E.Axis) and e.extent == 1:
        return constant(0)
    return atom(e)


def _combine(node: Node, known: dict[Expr, Affine]) -> Affine:
    assert isinstance(node, LINEAR)
    left, right = _known(node.left, known), _known(node.right, known)
    if isinstance(node, E.Add):
        return wrapped(left.plus(right))
    if not right.terms:
        return wrapped(left.scaled(right.const))
    if not left.terms:
        return wrapped(right.scaled(left.const))
    return atom(node)


def wrapped(form: Affine) -> Affine:
    """Coefficients as int64 holds them; the same value modulo 2**64."""
    if abs(form.const) < HALF and all(abs(c) < HALF for _, c in form.terms):
        return form
    return make([(a, wrap(c)) for a, c in form.terms], wrap(form.const))


def to_expr(form: Affine) -> Expr:
    """The canonical expression: terms in order, the constant last, no unit factors."""
    total: Expr | None = None
    for e, coefficient in wrapped(form).terms:
        term = e if coefficient == 1 else E.Mul(e, E.index(coefficient))
        total = term if total is None else E.Add(total, term)
    last = E.index(wrap(form.const))
    if total is None:
        return last
    return total if last.value == 0 else E.Add(total, last)
