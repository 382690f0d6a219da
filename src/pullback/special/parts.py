"""What special functions are built of, and how one becomes a function of tensors.

Everything is computed in float64 and rounded once: float32 and 16-bit floats lose nothing inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float32, float64
from pullback.ir.expr import Add, Cast, Div, Expr, If, Less, Mul
from pullback.ir.graph import Rule, Value
from pullback.special.tables import Ratio
from pullback.tensor.face import handles
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import Tensor, operand
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import rules
from pullback.tensor.values.answers import answering

WIDEST = 40.0  # exp(-x^2) is 0 beyond


def horner(t: Expr, coefficients: Sequence[float]) -> Expr:
    """A polynomial, highest power first."""
    value: Expr = F.like(coefficients[0], t)
    for c in coefficients[1:]:
        value = Add(Mul(value, t), F.like(c, t))
    return value


def ratio(x: Expr, table: Ratio) -> Expr:
    """``p(t) / q(t)``, ``t = x - center``"""
    return Div(*_sides(x, table))


def _sides(x: Expr, table: Ratio) -> tuple[Expr, Expr]:
    """``p(t)`` and ``q(t)``"""
    center, top, bottom = table
    t = Add(x, F.like(-center, x))
    return horner(t, top), horner(t, bottom)


def pieces(
    x: Expr, tables: Sequence[Ratio], ends: Sequence[float], beyond: Expr | None = None
) -> Expr:
    """The rational of the piece that `x` lies in, one quotient; from the last end on `beyond`."""
    top, bottom = _sides(x, tables[-1])
    for table, end in reversed(list(zip(tables, ends, strict=True))[:-1]):
        inside = Less(x, F.like(end, x))
        own = _sides(x, table)
        top, bottom = If(inside, own[0], top), If(inside, own[1], bottom)
    value = Div(top, bottom)
    return value if beyond is None else If(Less(x, F.like(ends[-1], x)), value, beyond)


def bell(x: Expr, scale: float = 1.0) -> Expr:
    """``exp(-scale x^2)``, x taken apart so that the square is exact: ``h^2 + (x - h) (x + h)``."""
    x = E.minimum(F.absolute(x), F.like(WIDEST, x))
    high = Cast(Cast(x, float32), float64)
    rest = Mul(E.subtract(x, high), Add(x, high))
    first, second = (Mul(part, F.like(-scale, x)) for part in (F.square(high), rest))
    growth = Mul(second, horner(second, (1 / 6, 0.5)))
    near = E.Exp(first)
    small = Mul(second, Add(F.like(1, x), growth))  # exp(second) - 1, as |second| < 2e-4
    return Add(near, Mul(near, small))


def turned(x: Expr) -> Expr:
    """`x` less the nearest even number: in -1..1, exactly."""
    return E.subtract(x, Mul(F.rint(Mul(x, F.like(0.5, x))), F.like(2, x)))


def sinpi(x: Expr) -> Expr:
    """``sin(pi x)``, exactly 0 at whole numbers."""
    r = turned(x)
    low = If(Less(r, F.like(-0.5, x)), E.subtract(F.like(-1, x), r), r)
    inside = If(Less(F.like(0.5, x), r), E.subtract(F.like(1, x), r), low)
    return E.Sin(Mul(inside, F.like(math.pi, x)))


def cospi(x: Expr) -> Expr:
    """``cos(pi x)``, exactly 0 at odd halves."""
    near = E.subtract(F.like(0.5, x), F.absolute(turned(x)))
    return E.Sin(Mul(near, F.like(math.pi, x)))


def is_whole(x: Expr) -> Expr:
    """Whether `x` is a whole number."""
    return E.Equal(F.floor(x), x)


Slope = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Special:
    """A function of floats: `body` in float64, and `slopes`, its derivative by each argument.

    `single`: a body in float64 too, with as many digits as float32 has. A slope is given the
    arguments as tensors; without slopes the derivative is that of the body.
    """

    name: str
    body: Callable[..., Expr]
    slopes: tuple[Slope, ...] = ()
    single: Callable[..., Expr] | None = None

    def rounded(self, *args: Expr) -> Expr:
        """The body in float64, as the type of the arguments."""
        kind = args[0].dtype
        body = self.body if self.single is None or kind == float64 else self.single
        return W.cast(body(*(W.cast(a, float64) for a in args)), kind)

    def __call__(self, *given: Any) -> Any:
        stand_in = answering(given)
        if stand_in is not None:
            return stand_in.answer(self.name, given, {})
        rule = rules.Rule(self.name, self.rounded, "float")
        if any(isinstance(x, ScalarHandle) for x in given):
            lifted = [handles.lift(x) for x in given]
            kind = rule.dtype(lifted)
            typed = (
                W.literal(a, kind) if isinstance(a, W.Scalar) else W.cast(a, kind) for a in lifted
            )
            return handles.located(self.rounded(*typed))
        operands = [operand(x) for x in given]
        kind = rule.dtype(operands)
        if not self.slopes:
            return Tensor(W.elementwise(self.name, self.rounded, operands, kind))
        shape = W.broadcast_shapes([W.operand_shape(o) for o in operands])
        spread = [self._spread(o, kind, shape) for o in operands]
        result = W.copy(W.elementwise(self.name, self.rounded, spread, kind), self.name)
        result.rule = self._rule(result, spread)
        return Tensor(result)

    def _spread(self, given: W.Operand, kind: Any, shape: W.Shape) -> Value:
        """An argument as it meets the others: of their type and shape."""
        if isinstance(given, W.Scalar):
            return W.full(shape, given, kind)
        if given.shape == shape and given.dtype == kind:
            return given
        return W.make("argument", shape, W.lifted(given, kind, shape, W.axes_of(shape)))

    def _rule(self, result: Value, args: Sequence[Value]) -> Rule:
        tensors = [Tensor(a) for a in args]

        def slopes() -> list[Tensor]:
            return [slope(*tensors) for slope in self.slopes]

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            return [M.multiply(Tensor(heads[0]), s).value for s in slopes()]

        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            pairs = zip(slopes(), tangents, strict=True)
            parts = [M.multiply(s, Tensor(t)) for s, t in pairs]
            total = parts[0]
            for part in parts[1:]:
                total = M.add(total, part)
            return (total.value,)

        return Rule(self.name, (result,), tuple(args), pull, push)


def where_zero(x: Any, at_zero: float, other: Callable[[Any], Any]) -> Any:
    """``at_zero if x == 0 else other(x)``, the other never asked at 0."""
    still = M.equal(x, 0.0)
    return O.where(still, at_zero, other(O.where(still, 1.0, x)))
