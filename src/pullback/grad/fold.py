"""Local folding: the few algebraic steps that keep derivative expressions small.

Constants trail (``(c * x) * y -> (x * y) * c``), so that a product of reads stays a product of
reads. An adjoint is a `Term`: zero unless every guard holds, and never evaluated outside them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Add, Axis, Cast, Const, Div, Expr, Exprs, If, Mul, Or, Take, is_const
from pullback.ir.graph import Definition, Map, Value
from pullback.simplify.guards import conjuncts, every, guarded, negated
from pullback.simplify.product import scale


def is_zero(e: Expr) -> bool:
    return is_const(e, 0)


def zero(kind: DType) -> Const:
    return E.const(0, kind)


def one(kind: DType) -> Const:
    return E.const(1, kind)


def add(a: Expr, b: Expr) -> Expr:
    """``x + 0 -> x``, ``x * c + x * d -> x * (c + d)``; literals add."""
    if is_zero(a):
        return b
    if is_zero(b):
        return a
    x, c = _split(a)
    y, d = _split(b)
    return scale(x, c + d, a.dtype) if x is y else Add(a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """``x * 0 -> 0``, ``x * 1 -> x``, ``(x * c) * (y * d) -> (x * y) * (c d)``."""
    x, c = _split(a)
    y, d = _split(b)
    factor = c * d
    if factor == 0:
        return zero(a.dtype)
    if x is None or y is None:
        return scale(x if y is None else y, factor, a.dtype)
    return scale(Mul(x, y), factor, a.dtype)


def chain(seed: Expr, slope: Expr) -> Expr:
    """``seed * slope``; ``seed * (1 / y * c) -> seed / y * c``."""
    rest, c = _split(slope)
    if isinstance(rest, Div) and is_const(rest.left, 1):
        return mul(div(seed, rest.right), E.const(c, seed.dtype))
    return mul(seed, slope)


def div(a: Expr, b: Expr) -> Expr:
    """``0 / x -> 0``, ``x / 1 -> x``, ``(x * c) / y -> (x / y) * c``."""
    if is_zero(a) or is_const(b, 1):
        return a
    x, c = _split(a)
    if x is None:
        return Div(a, b)
    return scale(Div(x, b), c, a.dtype)


def scaled(e: Expr, by: Expr) -> Expr:
    """``e * by``; ``(c ? x : 0) * y -> c ? x * y : 0``."""
    term = opened(Term((), e))
    return guarded(term.guards, mul(term.value, by))


def negate(e: Expr) -> Expr:
    """``-(x * c) -> x * (-c)``."""
    return mul(e, E.const(-1, e.dtype))


def cast(e: Expr, to: DType) -> Expr:
    """``cast(c) -> c``; a cast to the same type is none."""
    if e.dtype == to:
        return e
    return E.const(e.value, to) if isinstance(e, Const) else Cast(e, to)


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """``c ? x : x -> x``."""
    return then if then is otherwise else If(condition, then, otherwise)


def read_of(value: Value, indices: Sequence[Expr], own: Container[Value]) -> Expr:
    """``value[indices]``; of a constant tensor the constant.

    Through axes moved or repeated: ``d[i, j] = e[j] -> e[indices[1]]``, free of the first index.
    Only those in `own` are looked through: others may yet be differentiated by.
    """
    indices = tuple(indices)
    while isinstance(value, Definition) and value in own and value.form == Map():
        body = value.body
        if isinstance(body, Const):
            return body
        if not isinstance(body, Take) or not all(isinstance(i, Axis) for i in body.indices):
            break
        indices = tuple(indices[i.number] for i in body.indices if isinstance(i, Axis))
        value = body.source
    return Take(value, indices)


def _split(e: Expr) -> tuple[Expr | None, float]:
    """A product as (rest, literal)."""
    if isinstance(e, Const):
        return None, e.value
    if isinstance(e, Mul) and isinstance(e.right, Const):
        return e.left, e.right.value
    if isinstance(e, Mul) and isinstance(e.left, Const):
        return e.right, e.left.value
    return e, 1


@frozen
class Term:
    """An adjoint: `value` where every guard holds, else 0 (and `value` is then not evaluated)."""

    guards: Exprs
    value: Expr

    def under(self, condition: Expr) -> Term:
        """The same, only where `condition` holds."""
        fresh = tuple(c for c in conjuncts(condition) if c not in self.guards)
        return Term(self.guards + fresh, self.value)

    def expression(self) -> Expr:
        return guarded(self.guards, self.value)


def sum_of(a: Term, b: Term) -> Term:
    """``a + b``: shared guards stay outside; of ``c ? x : 0`` and ``c ? 0 : y``, ``c ? x : y``.

    The sum keeps the guard "either", so that a later factor is not evaluated where neither holds.
    """
    shared = tuple(g for g in a.guards if g in b.guards)
    only_a = every(g for g in a.guards if g not in shared)
    only_b = every(g for g in b.guards if g not in shared)
    if only_a is None or only_b is None:
        left = guarded([] if only_a is None else [only_a], a.value)
        right = guarded([] if only_b is None else [only_b], b.value)
        return Term(shared, add(left, right))
    if only_a is negated(only_b):
        return Term(shared, If(only_a, a.value, b.value))
    if only_b is negated(only_a):
        return Term(shared, If(only_b, b.value, a.value))
    value = add(guarded([only_a], a.value), guarded([only_b], b.value))
    return Term((*shared, Or(only_a, only_b)), value)


def opened(term: Term) -> Term:
    """``(c ? x : 0)`` as a guard: it may be affine, or leave a sum."""
    while isinstance(term.value, If):
        select = term.value
        if is_zero(select.otherwise):
            term = Term(term.guards, select.then).under(select.condition)
        elif is_zero(select.then):
            term = Term(term.guards, select.otherwise).under(negated(select.condition))
        else:
            break
    return term
