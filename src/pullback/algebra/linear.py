"""Index arithmetic as integer-linear forms: ``constant + sum of coefficient * atom``.

An atom is an axis, a loop variable, a run-time extent, or anything else (data, ``//``, ``%``).
``//`` and ``%`` by a literal are taken apart and put together again, so that the offset of a
reshape, ``(x // c) * c + x % c``, becomes ``x``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, Size, index
from pullback.ir.nest import Var
from pullback.ir.node import walk

Range = tuple[int, int]
UNKNOWN: Range = (-(2**63), 2**63 - 1)
_FAR = 2**60
ATOMS = (Axis, Var)


class Linear:
    """``constant + sum(coefficient * atom)``; atoms keep the order of their first appearance."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int = 0, terms: Mapping[Expr, int] | None = None) -> None:
        self.constant = constant
        self.terms: dict[Expr, int] = {a: c for a, c in terms.items() if c} if terms else {}

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """``self + factor * other``"""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        joined = Linear(self.constant + factor * other.constant, terms)
        return _join_quotients(joined) if len(joined.terms) > 1 else joined

    def times(self, factor: int) -> Linear:
        """``factor * self``"""
        return Linear(self.constant * factor, {a: c * factor for a, c in self.terms.items()})

    def of(self, atom: Expr) -> int:
        """The coefficient of `atom`."""
        return self.terms.get(atom, 0)

    def hidden(self, atom: Expr) -> bool:
        """Whether `atom` occurs inside another atom, where no coefficient describes it."""
        return any(a is not atom and atom in set(walk(a)) for a in self.terms)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def expr(self) -> Expr:
        """The form as a scalar expression, the constant last (it folds into an address)."""
        total: Expr | None = None
        for atom, coefficient in self.terms.items():
            term = atom if coefficient == 1 else E.Mul(atom, index(coefficient))
            total = term if total is None else E.Add(total, term)
        if total is None:
            return index(self.constant)
        return total if self.constant == 0 else E.Add(total, index(self.constant))

    def range(self) -> Range:
        """Smallest and largest value, as far as the atoms' bounds tell."""
        return _sum_range(self.terms.items(), self.constant)


def linear(root: Expr) -> Linear:
    """The linear form of an int64 expression.

    Example: ``(i*4 + j) // 4 -> i`` for ``0 <= j < 4``
    """
    if isinstance(root, ATOMS):
        return Linear(0, {root: 1})
    if isinstance(root, E.Const):
        return Linear(int(root.value))
    memo: dict[object, Linear] = {}
    for node in walk(root):
        if isinstance(node, Expr) and node.dtype is int64:
            memo[node] = _node(node, memo)
    return memo[root]


def _node(node: Expr, memo: dict[object, Linear]) -> Linear:
    match node:
        case E.Const(value):
            return Linear(int(value))
        case E.Add(left, right):
            return memo[left].plus(memo[right])
        case E.Mul(left, right):
            a, b = memo[left], memo[right]
            if a.is_constant:
                return b.times(a.constant)
            if b.is_constant:
                return a.times(b.constant)
        case E.FloorDiv(left, E.Const(value)) if int(value) > 0:
            return divide(memo[left], int(value))[0]
        case E.Mod(left, E.Const(value)) if int(value) > 0:
            return divide(memo[left], int(value))[1]
    return Linear(0, {node: 1})


def divide(form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Quotient and remainder, floored. ``(8*a + b) // 4 -> 2*a, b`` for ``0 <= b < 4``"""
    if divisor == 1:
        return form, Linear()
    steps = {gcd(divisor, c) for c in form.terms.values()} | {divisor}
    for step in sorted(steps, reverse=True):
        if step == 1:
            break
        split = _split(form, step)
        if split is None:
            continue
        high, low = split
        if step == divisor:
            return high, low
        quotient, rest = divide(high, divisor // step)
        return quotient, rest.times(step).plus(low)
    lo, hi = form.range()
    if lo >= 0 and hi < divisor:
        return Linear(), form
    by = index(divisor)
    whole = form.expr()
    return Linear(0, {E.FloorDiv(whole, by): 1}), Linear(0, {E.Mod(whole, by): 1})


def _split(form: Linear, step: int) -> tuple[Linear, Linear] | None:
    """``form = step * high + low`` with ``0 <= low < step``, or None."""
    low = {a: c for a, c in form.terms.items() if c % step}
    high = {a: c // step for a, c in form.terms.items() if c % step == 0}
    quotient, remainder = divmod(form.constant, step)
    lo, hi = _sum_range(low.items(), remainder)
    if lo < 0 or hi >= step:
        return None
    return Linear(quotient, high), Linear(remainder, low)


def coarser(form: Linear) -> Linear | None:
    """`high` with ``form >= 0`` exactly where ``high >= 0``: the part that small terms cannot sway.

    Example: ``32*t + x - 32 -> t - 1`` for ``0 <= x < 32``
    """
    for step in sorted({abs(c) for c in form.terms.values()}, reverse=True):
        if step == 1:
            break
        split = _split(form, step)
        if split is not None and split[0].terms:
            return split[0]
    return None


def _join_quotients(form: Linear) -> Linear:
    """``(x // c) * c*f + (x % c) * f -> x * f``; chains of reshapes join step by step."""
    for atom, coefficient in form.terms.items():
        if not (isinstance(atom, E.Mod) and isinstance(atom.right, E.Const)):
            continue
        divisor = int(atom.right.value)
        wanted = coefficient * divisor
        quotient = E.FloorDiv(atom.left, atom.right)
        if form.terms.get(quotient) == wanted:
            rest = {a: c for a, c in form.terms.items() if a is not atom and a is not quotient}
            return Linear(form.constant, rest).plus(linear(atom.left), coefficient)
        for other, factor in form.terms.items():
            if factor == wanted and (inner := _outer_digit(other, quotient)) is not None:
                rest = {a: c for a, c in form.terms.items() if a is not atom and a is not other}
                both = E.Mod(atom.left, index(divisor * inner))
                return Linear(form.constant, rest).plus(Linear(0, {both: coefficient}))
    return form


def _outer_digit(atom: Expr, quotient: Expr) -> int | None:
    """`n` where `atom` is ``quotient % n``."""
    if isinstance(atom, E.Mod) and atom.left is quotient and isinstance(atom.right, E.Const):
        return int(atom.right.value)
    return None


def _sum_range(terms: Iterable[tuple[Expr, int]], constant: int) -> Range:
    lo = hi = constant
    for atom, coefficient in terms:
        low, high = atom_range(atom)
        if low < -_FAR or high > _FAR:
            return UNKNOWN
        lo += coefficient * (low if coefficient > 0 else high)
        hi += coefficient * (high if coefficient > 0 else low)
    return lo, hi


def atom_range(atom: Expr) -> Range:
    """Bounds of an atom: its own, its divisor's or its type's."""
    match atom:
        case Axis(_, extent):
            return 0, max(0, E.upper(extent) - 1)
        case Var():
            return atom.lo, atom.hi
        case Size(dim):
            return dim.lo, dim.hi
        case E.Mod(_, E.Const(value)) if int(value) > 0:
            return 0, int(value) - 1
        case E.FloorDiv(left, E.Const(value)) if int(value) > 0:
            lo, hi = linear(left).range()
            return UNKNOWN if lo < -_FAR or hi > _FAR else (lo // int(value), hi // int(value))
        case E.Cast(value, _) if value.dtype.is_integer and value.dtype.bits < 64:
            return value.dtype.range()
        case E.If(_, then, otherwise):
            a, b = linear(then).range(), linear(otherwise).range()
            return min(a[0], b[0]), max(a[1], b[1])
    return UNKNOWN


def row_major(shape: Iterable[int]) -> tuple[int, ...]:
    """Strides of a contiguous array, elements. ``(2, 3, 4) -> (12, 4, 1)``"""
    strides: list[int] = []
    size = 1
    for extent in reversed(tuple(shape)):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


def offset(indices: Iterable[Expr], strides: Iterable[int]) -> Linear:
    """``sum(index * stride)`` as one form."""
    total = Linear()
    for at, stride in zip(indices, strides, strict=True):
        total = total.plus(linear(at), stride)
    return total
