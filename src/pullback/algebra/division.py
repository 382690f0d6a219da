"""Quotients and remainders of linear forms by a positive constant.

These laws make index maps collapse: a reshape there and back is the identity. Each asks that the
form does not wrap, which its interval proves.
"""

from __future__ import annotations

from pullback.algebra.affine import Affine, affine, atom, constant, factored, make, to_expr
from pullback.algebra.bounds import DIVIDED, Intervals
from pullback.config import Pair
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.node import walk


def split(form: Affine, divisor: int) -> tuple[Affine, Affine]:
    """``form = divisor * whole + rest`` with small coefficients in the rest."""
    toward_zero = ((e, c // divisor if c > 0 else -(-c // divisor)) for e, c in form.terms)
    whole = make(toward_zero, form.const // divisor)
    return whole, form.minus(whole.times(divisor))


def divide(form: Affine, divisor: int, intervals: Intervals) -> Affine | None:
    """``form // divisor`` in canonical form; None where the form may wrap.

    ``(6*i + j) // 3 -> 2*i + j // 3``, ``(x // b) // c -> x // (b*c)``
    """
    if not intervals.exact(form):
        return None
    if divisor == 1:
        return form
    whole, rest = split(form, divisor)
    if not intervals.exact(rest):
        return None
    quotient = _quotient(rest, divisor, intervals)
    return None if quotient is None else whole.plus(quotient)


def _quotient(rest: Affine, divisor: int, intervals: Intervals) -> Affine | None:
    lo, hi = intervals.raw(rest)
    if lo // divisor == hi // divisor:
        return constant(lo // divisor)
    parts = factored(rest, divisor, intervals.raw)
    if parts is not None:
        return divide(parts[1], divisor // parts[0], intervals)
    plain = atom(E.FloorDiv(to_expr(rest), E.index(divisor)))
    for e, coefficient in rest.terms:
        if coefficient != 1:
            continue
        nested = _nested(e, rest.without(e), divisor, intervals)
        if nested is not None and (len(rest.terms) == 1 or _hard(nested) < _hard(plain)):
            return nested
    return plain


def _hard(form: Affine) -> int:
    """How many quotients and remainders a form needs."""
    atoms = walk(form.atoms)
    return sum(1 for node in atoms if isinstance(node, DIVIDED))


def _nested(e: Expr, others: Affine, divisor: int, intervals: Intervals) -> Affine | None:
    """``(x // b + y) // c -> (x + y*b) // (b*c)``, ``(x % (a*c)) // c -> (x // c) % a``"""
    by = E.divisor(e)
    if not by or not isinstance(e, DIVIDED):
        return None
    inner = affine(e.left, intervals.forms)
    if isinstance(e, E.FloorDiv):
        return divide(inner.plus(others.times(by)), by * divisor, intervals)
    if others.terms or others.const or by % divisor != 0:
        return None
    quotient = divide(inner, divisor, intervals)
    return None if quotient is None else remainder(quotient, by // divisor, intervals)


def remainder(form: Affine, divisor: int, intervals: Intervals) -> Affine | None:
    """``form % divisor`` in canonical form; None where the form may wrap.

    ``(5*i + j) % 5 -> j`` with 0 <= j < 5, ``(x % (a*c)) % c -> x % c``
    """
    if not intervals.exact(form):
        return None
    if divisor == 1:
        return constant(0)
    _, rest = split(form, divisor)
    rest = _without_inner(rest, divisor, intervals)
    lo, hi = intervals.raw(rest)
    if not intervals.exact(rest):
        return None
    if lo // divisor == hi // divisor:
        return rest.shifted(-(lo // divisor) * divisor)
    parts = factored(rest, divisor, intervals.raw)
    if parts is not None:
        g, many, few = parts
        outer = remainder(many, divisor // g, intervals)
        return None if outer is None else outer.times(g).plus(few)
    return atom(E.Mod(to_expr(rest), E.index(divisor)))


def _without_inner(rest: Affine, divisor: int, intervals: Intervals) -> Affine:
    """``(k*(x % m) + y) % c -> (k*x + y) % c`` where c divides m, as often as possible."""
    changed = True
    while changed:
        changed = False
        for e, coefficient in rest.terms:
            by = E.divisor(e)
            if not isinstance(e, E.Mod) or not by or by % divisor:
                continue
            inner = affine(e.left, intervals.forms).times(coefficient)
            _, opened = split(rest.without(e).plus(inner), divisor)
            if intervals.exact(opened):
                rest = opened
                changed = True
                break
    return rest


def rejoin(form: Affine, intervals: Intervals) -> Affine:
    """``(x // c)*c + x % c -> x``, at any common factor, as often as possible."""
    best = form
    while (shorter := _rejoined(best, intervals)) is not None:
        best = shorter
    return best


def _rejoined(form: Affine, intervals: Intervals) -> Affine | None:
    for e, coefficient in form.terms:
        by = E.divisor(e)
        if not isinstance(e, E.Mod) or not by:
            continue
        inner = affine(e.left, intervals.forms)
        quotient = divide(inner, by, intervals)
        if quotient is None:
            continue
        part = quotient.times(coefficient * by)
        joined = form.without(e).minus(part).plus(inner.times(coefficient))
        if _weight(joined) < _weight(form) and intervals.exact(joined):
            return joined
    return None


def _weight(form: Affine) -> Pair:
    """Quotients and remainders, then terms: what makes an index expensive."""
    hard = sum(1 for e, _ in form.terms if isinstance(e, DIVIDED))
    return hard, len(form.terms)
