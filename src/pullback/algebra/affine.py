"""Integer-linear forms of index expressions.

``2*i + 3*(j // 4) + 7`` is ``Affine(((i, 2), (j // 4, 3)), 7)``. Everything that is not a sum or a
product with a constant is an atom: axes, sizes, loop variables, quotients, remainders, data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import gcd
from typing import Any, Generic, NamedTuple, Self, TypeVar

from pullback.config import Pair
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Expr
from pullback.ir.nest import Var
from pullback.ir.node import Node, walk

LINEAR = (E.Add, E.Mul)
WORD = 1 << 64
HALF = 1 << 63
A = TypeVar("A", bound=Hashable)


def wrap(value: int) -> int:
    """`value` as int64 arithmetic would hold it."""
    return (value + HALF) % WORD - HALF


class LinearForm(NamedTuple, Generic[A]):
    """``sum of coefficient * atom + const`` over exact integers, immutable.

    No atom stands twice, none with a coefficient of 0. Atoms keep the order of their first
    appearance; a kind of forms that wants more of a sum says it in `joined`.
    """

    terms: tuple[tuple[A, int], ...] = ()
    const: int = 0

    def made(self, terms: tuple[tuple[A, int], ...], const: int) -> Self:
        """A form of the same kind."""
        return tuple.__new__(type(self), (terms, const))

    def joined(self) -> Self:
        """A sum as this kind of forms writes it."""
        return self

    def of(self, atom: A) -> int:
        """The coefficient of `atom`, 0 where it does not occur."""
        for known, coefficient in self.terms:
            if known == atom:
                return coefficient
        return 0

    def without(self, atom: A) -> Self:
        """The form less its term in `atom`."""
        return self.made(tuple([t for t in self.terms if t[0] != atom]), self.const)

    @property
    def atoms(self) -> tuple[A, ...]:
        return tuple([a for a, _ in self.terms])

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def single(self) -> A | None:
        """The atom of a form that is just one atom."""
        if len(self.terms) == 1 and self.const == 0 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def plus(self, other: LinearForm[A], factor: int = 1) -> Self:
        """``self + factor * other``"""
        if not other.terms:
            return self.shifted(factor * other.const).joined()
        coefficients = dict(self.terms)
        for atom, coefficient in other.terms:
            coefficients[atom] = coefficients.get(atom, 0) + factor * coefficient
        kept = tuple([term for term in coefficients.items() if term[1]])
        return self.made(kept, self.const + factor * other.const).joined()

    def minus(self, other: LinearForm[A]) -> Self:
        """``self - other``"""
        return self.plus(other, -1)

    def times(self, factor: int) -> Self:
        """``self * factor``"""
        if factor == 0:
            return self.made((), 0)
        return self.made(tuple([(a, c * factor) for a, c in self.terms]), self.const * factor)

    def product(self, other: LinearForm[A]) -> Self | None:
        """``self * other`` where one of them is a constant."""
        if other.is_constant:
            return self.times(other.const)
        return self.made(other.terms, other.const).times(self.const) if self.is_constant else None

    def over(self, divisor: int) -> Self:
        """``self // divisor`` of coefficients that it divides; the constant is floored."""
        terms = tuple([(a, c // divisor) for a, c in self.terms])
        return self.made(terms, self.const // divisor)

    def shifted(self, offset: int) -> Self:
        """``self + offset``"""
        return self.made(self.terms, self.const + offset)

    def select(self, keep: Callable[[int], object]) -> Self:
        """The terms whose coefficient passes `keep`, without the constant."""
        return self.made(tuple([t for t in self.terms if keep(t[1])]), 0)

    def parted(self, step: int) -> tuple[Self, Self]:
        """``step * high + low``, each term on one side, the constant of `low` below `step`."""
        quotient, remainder = divmod(self.const, step)
        high = tuple([(a, c // step) for a, c in self.terms if c % step == 0])
        low = tuple([term for term in self.terms if term[1] % step])
        return self.made(high, quotient), self.made(low, remainder)

    def multiples(self, other: LinearForm[A]) -> list[int]:
        """Each `n` but 0 such that ``self - n * other`` lacks a term of `other`."""
        shares = (divmod(self.of(atom), coefficient) for atom, coefficient in other.terms)
        return list(dict.fromkeys(n for n, rest in shares if n and not rest))

    def replaced(self, atom: A, by: LinearForm[A]) -> Self:
        """The form with `atom` replaced by another form."""
        coefficient = self.of(atom)
        return self.without(atom).plus(by, coefficient) if coefficient else self


class Affine(LinearForm[Expr]):
    """Terms in canonical order: equal forms are equal tuples."""

    __slots__ = ()

    def joined(self) -> Self:
        if len(self.terms) < 2:
            return self
        return self.made(tuple(sorted(self.terms, key=_place)), self.const)


F = TypeVar("F", bound=LinearForm[Any])


def make(terms: Iterable[tuple[Expr, int]], const: int) -> Affine:
    """A form with equal atoms merged, zero terms dropped, atoms in canonical order."""
    return Affine().plus(LinearForm(tuple(terms), const))


def constant(value: int) -> Affine:
    """``value``"""
    return Affine((), value)


def atom(e: Expr) -> Affine:
    """`e` taken as one indivisible term."""
    return Affine(((e, 1),), 0)


def _place(term: tuple[Expr, int]) -> tuple[Any, ...]:
    return _order(term[0])


def _order(e: Expr) -> tuple[Any, ...]:
    """Axes first, by number; then sizes, variables, quotients and remainders, the rest."""
    if isinstance(e, E.Axis):
        return (0, (e.number,), "", 0)
    if isinstance(e, E.Size):
        return (1, (), e.dim.name, 0)
    if isinstance(e, Var):
        return (2, (), e.name, 0)
    return (3, tuple(sorted(e.axes)), type(e).__name__, -E.divisor(e))


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
    left = _known(node.left, known)
    right = _known(node.right, known)
    if isinstance(node, E.Add):
        return wrapped(left.plus(right))
    product = left.product(right)
    if product is None and _places((*left.atoms, *right.atoms)):
        product = _distributed(left, right)
    return atom(node) if product is None else wrapped(product)


def _places(atoms: tuple[Expr, ...]) -> bool:
    """Whether all are axes and sizes, one of them an axis."""
    some = any(isinstance(a, E.Axis) for a in atoms)
    return some and all(isinstance(a, E.Axis | E.Size) for a in atoms)


def _distributed(left: Affine, right: Affine) -> Affine:
    """A product with an axis term by term: ``(m - 1 - i) n  ->  m n - n - i n``"""
    pairs = [(E.Mul(a, b), c * d) for a, c in left.terms for b, d in right.terms]
    sides = (*left.times(right.const).terms, *right.times(left.const).terms)
    return make((*pairs, *sides), left.const * right.const)


def factored(
    form: F,
    divisor: int,
    bounds: Callable[[F], Pair],
) -> tuple[int, F, F] | None:
    """``form = g * high + low`` with ``0 <= low < g``, as far as `bounds` prove it.

    g > 1 is the largest such factor of `divisor` that a coefficient has too, or all of it.
    """
    factors = {gcd(divisor, c) for _, c in form.terms} | {divisor}
    for g in sorted(factors - {1}, reverse=True):
        high, low = form.parted(g)
        lo, hi = bounds(low)
        if lo >= 0 and hi < g:
            return g, high, low
    return None


def wrapped(form: F) -> F:
    """Coefficients as int64 holds them; the same value modulo 2**64."""
    if abs(form.const) < HALF and all(abs(c) < HALF for _, c in form.terms):
        return form
    terms = ((a, wrap(c)) for a, c in form.terms)
    return form.made(tuple(term for term in terms if term[1]), wrap(form.const))


def to_expr(form: LinearForm[Expr]) -> Expr:
    """The expression: terms in order, the constant last, no unit factors."""
    terms, const = wrapped(form)
    total: Expr | None = None
    for e, coefficient in terms:
        term = e if coefficient == 1 else E.Mul(e, E.index(coefficient))
        total = term if total is None else E.Add(total, term)
    if total is None:
        return E.index(const)
    return E.Add(total, E.index(const)) if const else total


def flat(e: Expr, kind: type[E.Binary]) -> list[Expr]:
    """The operands of a chain of one operation. ``(a + b) + c -> [a, b, c]``"""
    operands: list[Expr] = []
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, kind):
            stack += node.right, node.left
        else:
            operands.append(node)
    return operands


def factors(body: Expr) -> list[Expr]:
    """The operands of a product, flattened."""
    return flat(body, E.Mul)
