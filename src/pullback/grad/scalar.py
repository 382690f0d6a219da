"""Partial derivatives of the scalar primitives, one table, and the reverse sweep over a body."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from pullback.errors import InvalidIR
from pullback.grad import fold
from pullback.grad.composites import Shares, slopes
from pullback.grad.fold import Term
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Expr, If, Take
from pullback.ir.node import walk
from pullback.simplify import guards as G

Partial = Callable[[Any, Expr], Shares]
"""(node, adjoint g of the node) -> (operand, its share of the adjoint) pairs."""


def _none(node: Expr, g: Expr) -> Shares:
    """No gradient passes: integers, booleans, literals, and reads (the sweep ends there)."""
    return ()


def _add(node: E.Add, g: Expr) -> Shares:
    """``a + b -> g, g``."""
    return ((node.left, g), (node.right, g))


def _mul(node: E.Mul, g: Expr) -> Shares:
    """``a * b -> g b, g a``."""
    left = fold.mul(g, node.right)
    right = fold.mul(g, node.left)
    return ((node.left, left), (node.right, right))


def _div(node: E.Div, g: Expr) -> Shares:
    """``y = a / b -> g / b, -g y / b``; of ``1 / b`` the second is ``-g y y``.

    ``y = 1 / (1 + e^z)`` passes ``g y (y - 1)`` straight to `z`: e^z may overflow where y is 0.
    """
    exponent = logistic_exponent(node)
    if exponent is not None:
        slope = fold.mul(node, E.Add(node, E.const(-1, node.dtype)))
        return ((exponent, fold.mul(g, slope)),)
    inverse = E.is_const(node.left, 1)
    slope = E.Mul(node, node) if inverse else E.Div(node, node.right)
    share = fold.negate(fold.mul(g, slope))
    return ((node.left, fold.div(g, node.right)), (node.right, share))


def logistic_exponent(node: Expr) -> Expr | None:
    """`z` of ``1 / (1 + exp(z))``, else None."""
    if not isinstance(node, E.Div) or not E.is_const(node.left, 1):
        return None
    below = node.right
    if not isinstance(below, E.Add):
        return None
    for unit, power in ((below.left, below.right), (below.right, below.left)):
        if E.is_const(unit, 1) and isinstance(power, E.Exp):
            return power.value
    return None


def _mod(node: E.Mod, g: Expr) -> Shares:
    """``a - floor(a / b) b -> g, -g floor(a / b)``, the jumps left out."""
    floor = E.FloorDiv(node.left, node.right)
    return ((node.left, g), (node.right, fold.negate(fold.mul(g, floor))))


def _exp(node: E.Exp, g: Expr) -> Shares:
    """``y = e^a -> g y``."""
    return ((node.value, fold.mul(g, node)),)


def _log(node: E.Log, g: Expr) -> Shares:
    """``ln a -> g / a``."""
    return ((node.value, fold.div(g, node.value)),)


def _sqrt(node: E.Sqrt, g: Expr) -> Shares:
    """``y = sqrt a -> g / y / 2``."""
    half = E.const(0.5, node.dtype)
    return ((node.value, fold.div(fold.mul(g, half), node)),)


def _sin(node: E.Sin, g: Expr) -> Shares:
    """``sin a -> g cos a``."""
    return ((node.value, fold.mul(g, F.cos(node.value))),)


def _cast(node: E.Cast, g: Expr) -> Shares:
    """``cast(a) -> cast(g)`` between floats."""
    return ((node.value, fold.cast(g, node.value.dtype)),)


FLAT = (
    E.Const, E.Axis, E.Size, E.Take, E.FloorDiv, E.Less, E.Equal, E.And, E.Or, E.Xor,
)  # fmt: skip
PARTIALS: dict[type[Expr], Partial] = {
    **dict.fromkeys(FLAT, _none),
    E.Add: _add,
    E.Mul: _mul,
    E.Div: _div,
    E.Mod: _mod,
    E.Exp: _exp,
    E.Log: _log,
    E.Sqrt: _sqrt,
    E.Sin: _sin,
    E.Cast: _cast,
}


def sweep(body: Expr, seed: Expr, wanted: Container[object]) -> dict[Take, Term]:
    """The adjoint of every float read of a wanted source, given that of `body`; one pass.

    ``x[i] * w[k], g -> {x[i]: g w[k], w[k]: g x[i]}``. A select guards the adjoint of its
    branches (``c ? g : 0``), so nothing is evaluated where its branch is not taken.
    """
    order = _active(body, wanted)
    terms: dict[Expr, Term] = {body: Term((), seed)}
    adjoints: dict[Take, Term] = {}
    for node in reversed(order):
        term = terms.pop(node, None)
        if term is None or fold.is_zero(term.value):
            continue
        if isinstance(node, Take):
            adjoints[node] = term
            continue
        for operand, share in _shares(node, term):
            if operand in order:
                old = terms.get(operand)
                terms[operand] = share if old is None else fold.sum_of(old, share)
    return dict(reversed(adjoints.items()))


def _active(body: Expr, wanted: Container[object]) -> dict[Expr, None]:
    """The float nodes that depend on a float read of a wanted source, children first."""
    moving: dict[Expr, None] = {}
    for node in walk(body):
        if not isinstance(node, Expr) or not node.dtype.is_float:
            continue
        own = isinstance(node, Take) and node.source in wanted
        if own or (not isinstance(node, Take) and any(c in moving for c in node.children)):
            moving[node] = None
    return moving


def _shares(node: Expr, term: Term) -> tuple[tuple[Expr, Term], ...]:
    known = slopes(node)
    if known is not None:
        return tuple((x, Term(term.guards, fold.chain(term.value, d))) for x, d in known)
    if isinstance(node, If):
        untaken = G.negated(node.condition)
        return ((node.then, term.under(node.condition)), (node.otherwise, term.under(untaken)))
    rule = PARTIALS.get(type(node))
    if rule is None:
        raise InvalidIR(f"no derivative of {type(node).__name__}")
    return tuple((operand, Term(term.guards, g)) for operand, g in rule(node, term.value))


def push(body: Expr, along: Callable[[Take], Expr], moving: Container[object]) -> Expr:
    """The tangent of `body`, given that of every read of a moving source; one pass.

    ``x[i] * w[k] -> along(x[i]) * w[k] + x[i] * along(w[k])``; a select selects tangents too.
    """
    tangents: dict[Expr, Expr] = {}
    none = fold.zero(body.dtype)
    for node in _active(body, moving):
        if isinstance(node, Take):
            tangents[node] = along(node)
        elif isinstance(node, If):
            zero = fold.zero(node.dtype)
            tangents[node] = fold.select(
                node.condition, tangents.get(node.then, zero), tangents.get(node.otherwise, zero)
            )
        else:
            tangents[node] = _pushed(node, tangents)
    return tangents.get(body, none)


def _pushed(node: Expr, known: dict[Expr, Expr]) -> Expr:
    """The sum over operands of tangent times slope."""
    total: Expr = fold.zero(node.dtype)
    one = Term((), fold.one(node.dtype))
    for operand, slope in _shares(node, one):
        if operand in known:
            moved = fold.cast(known[operand], node.dtype)
            total = fold.add(total, fold.chain(moved, fold.cast(slope.value, node.dtype)))
    return total
