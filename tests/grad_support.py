"""What the gradient tests share: index arithmetic with operators, finite differences, counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pullback.backends.reference.definitions import evaluate_values
from pullback.grad.reverse import gradients
from pullback.grad.system import Form
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, float64
from pullback.ir.expr import Axis, Expr, upper
from pullback.ir.graph import (
    SUM,
    Accumulate,
    Combiner,
    Definition,
    Reduce,
    Value,
    Variable,
    topological,
)
from pullback.tensor.values.functions import UNARY, UNARY_ANY


@dataclass(frozen=True)
class S:
    """A scalar expression with Python's operators."""

    e: Expr

    def lift(self, other: Any) -> Expr:
        return other.e if isinstance(other, S) else E.const(other, self.e.dtype)

    def __add__(self, other: Any) -> S:
        return S(E.Add(self.e, self.lift(other)))

    def __radd__(self, other: Any) -> S:
        return S(E.Add(self.lift(other), self.e))

    def __sub__(self, other: Any) -> S:
        return S(E.subtract(self.e, self.lift(other)))

    def __rsub__(self, other: Any) -> S:
        return S(E.subtract(self.lift(other), self.e))

    def __mul__(self, other: Any) -> S:
        return S(E.Mul(self.e, self.lift(other)))

    __rmul__ = __mul__

    def __neg__(self) -> S:
        return S(E.negate(self.e))

    def __truediv__(self, other: Any) -> S:
        return S(E.Div(self.e, self.lift(other)))

    def __rtruediv__(self, other: Any) -> S:
        return S(E.Div(self.lift(other), self.e))

    def __floordiv__(self, other: Any) -> S:
        return S(E.FloorDiv(self.e, self.lift(other)))

    def __mod__(self, other: Any) -> S:
        return S(E.Mod(self.e, self.lift(other)))

    def __lt__(self, other: Any) -> S:
        return S(E.Less(self.e, self.lift(other)))

    def __gt__(self, other: Any) -> S:
        return S(E.Less(self.lift(other), self.e))

    def __le__(self, other: Any) -> S:
        return S(E.logical_not(E.Less(self.lift(other), self.e)))

    def __ge__(self, other: Any) -> S:
        return S(E.logical_not(E.Less(self.e, self.lift(other))))

    def eq(self, other: Any) -> S:
        return S(E.Equal(self.e, self.lift(other)))

    def __and__(self, other: S) -> S:
        return S(E.And(self.e, other.e))

    def __or__(self, other: S) -> S:
        return S(E.Or(self.e, other.e))


@dataclass(frozen=True)
class T:
    """A value that is read with brackets."""

    value: Value

    def __getitem__(self, indices: Any) -> S:
        indices = indices if isinstance(indices, tuple) else (indices,)
        return S(E.Take(self.value, tuple(lifted(i) for i in indices)))


ONE = -1


def form(terms: Mapping[int, int]) -> Form:
    """A form over variables by number; its constant is under `ONE`."""
    return Form(tuple((v, c) for v, c in terms.items() if v != ONE and c), terms.get(ONE, 0))


def lifted(i: Any) -> Expr:
    return i.e if isinstance(i, S) else E.index(i)


def where(condition: S, then: Any, otherwise: Any) -> S:
    some = then if isinstance(then, S) else otherwise
    return S(E.If(condition.e, some.lift(then), some.lift(otherwise)))


def cast(s: S, to: DType) -> S:
    return S(E.Cast(s.e, to))


def exp(s: S) -> S:
    return S(E.Exp(s.e))


def log(s: S) -> S:
    return S(E.Log(s.e))


def sqrt(s: S) -> S:
    return S(E.Sqrt(s.e))


def sin(s: S) -> S:
    return S(E.Sin(s.e))


def sigmoid(s: S) -> S:
    return 1.0 / (exp(-s) + 1.0)


def tanh(s: S) -> S:
    return 2.0 * sigmoid(2.0 * s) - 1.0


def call(name: str, *args: S) -> S:
    """A named scalar function."""
    table = {**UNARY, **UNARY_ANY, "pow": F.power}
    return S(table[name](*(a.e for a in args)))


def clamp(s: S, low: int, high: int) -> S:
    return S(E.minimum(E.maximum(s.e, E.index(low)), E.index(high)))


def var(name: str, *shape: Any, kind: DType = float64) -> Variable:
    return Variable(name, tuple(shape), kind)


def fn(
    name: str,
    shape: Sequence[Any],
    body: Callable[..., S],
    over: Sequence[Any] = (),
    combiner: Combiner = SUM,
    **marks: Any,
) -> Definition:
    """A definition whose body is built with operators."""
    axes = [S(Axis(n, e)) for n, e in enumerate((*shape, *over))]
    if over:
        marks["form"] = Reduce(combiner, tuple(over))
    return Definition(name, tuple(shape), body(*axes).e, **marks)


Values = Mapping[Variable, np.ndarray[Any, Any]]


def evaluate(wanted: Sequence[Value], values: Values) -> list[np.ndarray[Any, Any]]:
    with np.errstate(all="ignore"):
        return evaluate_values(wanted, values)


def draw(variables: Sequence[Variable], low: float = -1, high: float = 1) -> dict[Variable, Any]:
    """Random float64 arrays, the same for the same variables in order."""
    rng = np.random.default_rng(7)
    return {v: rng.uniform(low, high, [upper(e) for e in v.shape]) for v in variables}


def check_gradient(
    output: Value, inputs: Sequence[Variable], values: Values, tolerance: float = 1e-6
) -> list[Value]:
    """``<J v, u> == <v, J' u>`` with J v by central differences: random v, then single elements."""
    rng = np.random.default_rng(3)
    head = Variable("head", output.shape, output.dtype)
    (out,) = evaluate([output], values)
    u = np.asarray(rng.normal(size=out.shape))
    found = gradients(output, inputs, head)
    arrays = evaluate(found, {**values, head: u})
    step = 1e-5
    for x, adjoint, array in zip(inputs, found, arrays, strict=True):
        assert adjoint.shape == x.shape
        assert adjoint.dtype == x.dtype
        assert np.isfinite(array).all()
        directions = [rng.normal(size=array.shape) for _ in range(2)]
        for n in rng.permutation(array.size)[:6]:
            unit = np.zeros(array.size)
            unit[n] = 1
            directions.append(unit.reshape(array.shape))
        for v in directions:
            ends = [evaluate([output], {**values, x: values[x] + s * v})[0] for s in (step, -step)]
            difference = np.sum((ends[0] - ends[1]) * u) / (2 * step)
            expected = np.sum(array * v)
            scale = 1 + np.sum(np.abs(array * v)) + abs(difference)
            assert abs(difference - expected) < tolerance * scale, (x, difference, expected)
    return found


def new_definitions(adjoints: Sequence[Value], output: Value) -> list[Definition]:
    """The definitions that differentiation made."""
    forward = set(topological([output]))
    return [d for d in topological(adjoints) if d not in forward]


def iterations(definition: Definition) -> int:
    """Points of the definition's box."""
    return prod(upper(e) for e in definition.extents)


def work(adjoints: Sequence[Value], output: Value) -> int:
    """Points visited by everything that differentiation made; writes clear their result too."""
    total = 0
    for d in new_definitions(adjoints, output):
        total += iterations(d)
        if isinstance(d.form, Accumulate):
            total += prod(upper(e) for e in d.shape)
    return total
