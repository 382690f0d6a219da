"""A stream of numbers for each element of a draw, and what parameters have to be.

Everything is computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.errors import DTypeError, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.dtype import float64, uint32
from pullback.ir.expr import Cast, Expr
from pullback.ir.graph import Keep, Value, read
from pullback.tensor.face.tensor import Tensor, check_device, operand, shape_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library import random as R
from pullback.tensor.library import steady
from pullback.tensor.library.scalars import applied
from pullback.tensor.library.threefry import threefry, word
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.rules import Rule

LIFT = 1 << 30  # numbers of the stream beyond those of trials
LEAST = -53  # a uniform number is at least 2^LEAST


class Draws:
    """A stream of uniform numbers for each element of a shape."""

    def __init__(self, shape: Sequence[Any], key: Tensor | None) -> None:
        source = R.Source(key)
        self.shape = tuple(shape)
        a, b = threefry(R._key_words(source.key), (source.draw, word(R.WORD - 2)))
        body = E.If(E.Equal(E.Axis(0, 2), E.index(0)), a, b)
        self.key: Value = W.make("key", (2,), body, stop=True, keep=Keep.ALWAYS)

    def uniform(self, number: Tensor | int = 0) -> Tensor:
        """Number `number` of the stream, in (0, 1]: 53 random bits."""
        place = V.linear(list(zip(W.axes_of(self.shape), self.shape, strict=True)))
        turn: Expr = word(number) if isinstance(number, int) else Cast(read(number.value), uint32)
        words = threefry(R._key_words(self.key), (Cast(place, uint32), turn))
        unit = R._unit(*words, float64)
        body = E.subtract(E.const(1.0, float64), unit)
        return Tensor(W.make("uniform", self.shape, body, stop=True))

    def normal(self, number: Tensor | int = 0) -> Tensor:
        """A normal number of two uniform ones: ``sqrt(-2 log u) cos(2 pi v)``."""
        first, second = self.uniform(number * 2), self.uniform(number * 2 + 1)
        size = M.sqrt(log_of(first, LEAST) * -2.0)
        return O.stop_gradient(size * applied(Rule("cosine", steady.cosine), second))


def log_of(x: Any, low: int, high: int = 0) -> Tensor:
    """``log x`` of ``2^low <= x <= 2^high``, the same on every backend and without a gradient."""
    logarithm = applied(Rule("log", lambda e: steady.log(e, low, high)), x)
    return finished(O.stop_gradient(logarithm), float64)


def exp_of(x: Tensor) -> Tensor:
    """``exp x``, the same on every backend; its derivative is itself."""
    value: Tensor = O.stop_gradient(applied(Rule("exp", steady.exp), x))
    return finished(value * M.exp(x - O.stop_gradient(x)), float64)


def parameters(
    shape: Any, key: Tensor | None, dtype: Any, device: Any, *given: Any
) -> tuple[Draws, D.DType, list[Any]]:
    """The stream, the type of the result, and parameters in float64 of the shape of the draw.

    Raises: DTypeError for a result of truths.
    """
    check_device(device)
    kind = D.dtype(dtype)
    if not kind.is_float and not kind.is_integer:
        raise DTypeError(f"random numbers of {kind}", code="E141")
    operands = [operand(x) for x in given]
    common = W.broadcast_shapes([W.operand_shape(o) for o in operands])
    extents = common if shape is None else shape_of(shape)
    if W.broadcast_shapes([common, extents]) != tuple(extents):
        told = f"parameters of {W.show(common)} for numbers of {W.show(extents)}"
        raise ShapeError(told, code="E175")
    axes = W.axes_of(extents)
    spread = [
        Tensor(W.make("parameter", extents, W.lifted(o, float64, extents, axes))) for o in operands
    ]
    return Draws(extents, key), kind, spread


def finished(x: Any, kind: D.DType) -> Tensor:
    cast: Tensor = O.astype(x, kind)
    return cast


def unit_exponential(draws: Draws, number: int = 0) -> Tensor:
    """``-log u``, never 0."""
    drawn: Tensor = O.stop_gradient(M.maximum(-M.log(draws.uniform(number)), 2.0**-54))
    return drawn


def first_turn() -> Tensor:
    """The number of a trial, to begin with."""
    return Tensor(W.full((), 0, D.int64))
