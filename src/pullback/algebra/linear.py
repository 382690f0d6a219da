"""Index arithmetic as integer-linear forms: ``constant + sum of coefficient * atom``.

An atom is an axis, a loop variable, a run-time extent, or anything else (data, ``//``, ``%``).
``//`` and ``%`` by a literal are taken apart and put together again, so that the offset of a
reshape, ``(x // c) * c + x % c``, becomes ``x``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Self

from pullback.algebra.affine import LinearForm, factored, to_expr
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, Size, index
from pullback.ir.nest import Var
from pullback.ir.node import walk

Range = tuple[int, int]
UNKNOWN: Range = (-(2**63), 2**63 - 1)
_FAR = 2**60
ATOMS = (Axis, Var)


class Linear(LinearForm[Expr]):
    """A form whose quotients and remainders join again as they are added."""

    __slots__ = ()

    def __new__(cls, const: int = 0, terms: Mapping[Expr, int] | None = None) -> Self:
        kept = tuple([t for t in terms.items() if t[1]]) if terms else ()
        return tuple.__new__(cls, (kept, const))

    def joined(self) -> Self:
        """``(x // c) * c*f + (x % c) * f -> x * f``; chains of reshapes join step by step."""
        for atom, coefficient in self.terms if len(self.terms) > 1 else ():
            if not isinstance(atom, E.Mod) or not (divisor := E.divisor(atom)):
                continue
            wanted = coefficient * divisor
            quotient = E.FloorDiv(atom.left, atom.right)
            if self.of(quotient) == wanted:
                return self.without(atom).without(quotient).plus(linear(atom.left), coefficient)
            for other, factor in self.terms:
                outer = isinstance(other, E.Mod) and other.left is quotient
                if outer and factor == wanted and E.divisor(other):
                    both = E.Mod(atom.left, index(divisor * E.divisor(other)))
                    return self.without(atom).without(other).plus(Linear(0, {both: coefficient}))
        return self

    def hidden(self, atom: Expr) -> bool:
        """Whether `atom` occurs inside another atom, where no coefficient describes it."""
        return any(a.children and a is not atom and atom in walk(a) for a, _ in self.terms)

    def expr(self) -> Expr:
        """The form as a scalar expression, the constant last (it folds into an address)."""
        return to_expr(self)

    def range(self) -> Range:
        """Smallest and largest value, as far as the atoms' bounds tell."""
        lo = hi = self.const
        for atom, coefficient in self.terms:
            low, high = atom_range(atom)
            if low < -_FAR or high > _FAR:
                return UNKNOWN
            lo += coefficient * (low if coefficient > 0 else high)
            hi += coefficient * (high if coefficient > 0 else low)
        return lo, hi


@lru_cache(maxsize=4096)
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
            a = memo[left]
            b = memo[right]
            product = a.product(b)
            if product is not None:
                return product
        case E.FloorDiv(left, _) | E.Mod(left, _) if by := E.divisor(node):
            return divide(memo[left], by)[isinstance(node, E.Mod)]
    return Linear(0, {node: 1})


def divide(form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Quotient and remainder, floored. ``(8*a + b) // 4 -> 2*a, b`` for ``0 <= b < 4``"""
    if divisor == 1:
        return form, Linear()
    parts = factored(form, divisor, Linear.range)
    if parts is not None:
        step, high, low = parts
        quotient, rest = divide(high, divisor // step)
        return quotient, rest.times(step).plus(low)
    lo, hi = form.range()
    if lo >= 0 and hi < divisor:
        return Linear(), form
    by = index(divisor)
    whole = form.expr()
    quotient = Linear(0, {E.FloorDiv(whole, by): 1})
    return quotient, Linear(0, {E.Mod(whole, by): 1})


def stepped(form: Linear, at: Expr) -> tuple[int, int] | None:
    """How far a form goes from one value of `at` to the next, and in how many on end; None where
    an atom hides that.

    Example: ``64 * (i // 32) + i % 32 -> 1, 32``
    """
    step, run = form.of(at), _FAR
    for atom, coefficient in form.terms:
        if atom is at or at not in walk(atom):
            continue
        by = E.divisor(atom)
        if not isinstance(atom, E.FloorDiv | E.Mod) or not by:
            return None
        inner = stepped(linear(atom.left), at)
        if inner is None:
            return None
        own, length = inner
        whole = own % by == 0
        run = min(run, length if whole else by // abs(own))
        if isinstance(atom, E.Mod):
            step += 0 if whole else coefficient * own
        else:
            step += coefficient * (own // by) if whole else 0
    return step, run


def coarser(form: Linear) -> Linear | None:
    """`high` with ``form >= 0`` exactly where ``high >= 0``: the part that small terms cannot sway.

    Example: ``32*t + x - 32 -> t - 1`` for ``0 <= x < 32``
    """
    for step in sorted({abs(c) for _, c in form.terms}, reverse=True):
        if step == 1:
            break
        high, low = form.parted(step)
        lo, hi = low.range()
        if lo >= 0 and hi < step and high.terms:
            return high
    return None


def atom_range(atom: Expr) -> Range:
    """Bounds of an atom: its own, its divisor's or its type's."""
    match atom:
        case Axis(_, extent):
            return 0, max(0, E.upper(extent) - 1)
        case Var():
            return atom.lo, atom.hi
        case Size(dim):
            return dim.lo, dim.hi
        case E.Mod() if by := E.divisor(atom):
            return 0, by - 1
        case E.FloorDiv(left, _) if by := E.divisor(atom):
            lo, hi = linear(left).range()
            return UNKNOWN if lo < -_FAR or hi > _FAR else (lo // by, hi // by)
        case E.Cast(value, _) if value.dtype.is_integer and value.dtype.bits < 64:
            return value.dtype.range()
        case E.If(_, then, otherwise):
            a = linear(then).range()
            b = linear(otherwise).range()
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
