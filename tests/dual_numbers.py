"""Dual numbers on NumPy: exact derivatives of any order, with nothing of the library in them.

    (a, da) * (b, db) = (a b, a db + da b)        sin (a, da) = (sin a, cos a da)

A dual number has a level: what is inside of it may be one of a lower level, so that derivatives of
derivatives do not meet. Control flow is Python's own, unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Number = Any  # an Array or a Dual


@dataclass(frozen=True, slots=True)
class Dual:
    """`value` and how it moves along the direction of `level`."""

    level: int
    value: Number
    tangent: Number


def plain(x: Number) -> Array:
    """The value without any tangent."""
    while isinstance(x, Dual):
        x = x.value
    return np.asarray(x)


def level(*xs: Number) -> int:
    return max((x.level for x in xs if isinstance(x, Dual)), default=0)


def split(x: Number, at: int) -> tuple[Number, Number]:
    """Value and tangent at a level; None where it does not move there."""
    return (x.value, x.tangent) if isinstance(x, Dual) and x.level == at else (x, None)


def made(at: int, value: Number, *tangents: Number) -> Number:
    """The value with the sum of those tangents that are there."""
    moving = [t for t in tangents if t is not None]
    if not moving:
        return value
    total = moving[0]
    for tangent in moving[1:]:
        total = add(total, tangent)
    return Dual(at, value, wide(total, plain(value).shape))


def linear(function: Callable[[Array], Array], x: Number) -> Number:
    if not isinstance(x, Dual):
        return function(np.asarray(x))
    return Dual(x.level, linear(function, x.value), linear(function, x.tangent))


def wide(x: Number, shape: tuple[int, ...]) -> Number:
    return linear(lambda a: np.broadcast_to(a, shape), x)


def add(a: Number, b: Number) -> Number:
    if not (at := level(a, b)):
        return np.asarray(a) + np.asarray(b)
    (av, at_), (bv, bt) = split(a, at), split(b, at)
    return made(at, add(av, bv), at_, bt)


def mul(a: Number, b: Number) -> Number:
    if not (at := level(a, b)):
        return np.asarray(a) * np.asarray(b)
    (av, da), (bv, db) = split(a, at), split(b, at)
    left = None if da is None else mul(da, bv)
    right = None if db is None else mul(av, db)
    return made(at, mul(av, bv), left, right)


def unary(value: Callable[[Array], Array], slope: Callable[[Number], Number], x: Number) -> Number:
    """`value`, whose derivative is `slope`, at `x`."""
    if not isinstance(x, Dual):
        return value(np.asarray(x))
    return Dual(x.level, unary(value, slope, x.value), mul(slope(x.value), x.tangent))


def where(condition: Array, a: Number, b: Number) -> Number:
    if not (at := level(a, b)):
        return np.where(condition, a, b)
    (av, da), (bv, db) = split(a, at), split(b, at)
    zero = np.zeros(())
    moved = where(condition, zero if da is None else da, zero if db is None else db)
    return made(at, where(condition, av, bv), moved)


def stack(xs: Sequence[Number]) -> Number:
    if not (at := level(*xs)):
        return np.stack(xs)
    pairs = [split(x, at) for x in xs]
    tangents = [np.zeros(plain(v).shape) if t is None else t for v, t in pairs]
    return Dual(at, stack([v for v, _ in pairs]), stack(tangents))


def still(x: Number) -> Number:
    """`x`, which moves nowhere."""
    return plain(x)


def sin(x: Number) -> Number:
    return unary(np.sin, cos, x)


def cos(x: Number) -> Number:
    return unary(np.cos, lambda a: mul(-1.0, sin(a)), x)


def tanh(x: Number) -> Number:
    return unary(np.tanh, lambda a: add(1.0, mul(-1.0, mul(tanh(a), tanh(a)))), x)


def sigmoid(x: Number) -> Number:
    def slope(a: Number) -> Number:
        s = sigmoid(a)
        return mul(s, add(1.0, mul(-1.0, s)))

    return unary(lambda a: 1.0 / (1.0 + np.exp(-a)), slope, x)


def directional(
    f: Callable[..., Number], xs: Sequence[Number], along: Sequence[Number], at: int
) -> Number:
    """The derivative of ``f(*xs)`` along a direction. `at`: a level of its own."""
    pairs = zip(xs, along, strict=True)
    found = f(*(Dual(at, x, np.broadcast_to(v, plain(x).shape)) for x, v in pairs))
    value, tangent = split(found, at)
    return np.zeros(plain(value).shape) if tangent is None else tangent


def gradients(f: Callable[..., Number], xs: Sequence[Number], at: int) -> list[Number]:
    """The gradient of a scalar by each of `xs`, one direction after the other."""
    found = []
    for n, x in enumerate(xs):
        shape = plain(x).shape
        parts = []
        for place in range(int(np.prod(shape))):
            along = [np.zeros(plain(o).shape) for o in xs]
            along[n] = np.zeros(shape)
            along[n].flat[place] = 1.0
            parts.append(directional(f, xs, along, at))
        whole = stack(parts) if parts else np.zeros(0)
        found.append(linear(lambda a, s=shape: a.reshape(s), whole))
    return found
