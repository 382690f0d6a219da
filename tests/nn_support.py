"""What the tests of layers share: arrays, finite differences, the primitives of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pullback as pb
from pullback.conformance import table as primitives
from pullback.grad.reverse import gradients
from pullback.ir.expr import Expr, Size
from pullback.ir.graph import topological
from pullback.ir.node import walk
from pullback.tensor.face.tensor import Tensor

Array = np.ndarray[Any, Any]
ALLOWED = {p.cls for p in primitives.PRIMITIVES} | {Size}
MAPS = {"Map"}


def draws(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normal numbers, float64."""
    return np.random.default_rng(seed).normal(0.0, scale, shape)


def analytic(function: Callable[..., Tensor], arrays: Sequence[Array], head: Array) -> list[Array]:
    """Gradients of ``sum(function(*arrays) * head)``."""
    tensors = [pb.tensor(a) for a in arrays]
    loss = (function(*tensors) * pb.tensor(head)).sum()
    return [g.numpy() for g in pb.grad(loss, tensors)]


def numeric(
    function: Callable[..., Tensor], arrays: Sequence[Array], head: Array, step: float = 1e-6
) -> list[Array]:
    """The same by central differences."""

    def loss(values: Sequence[Array]) -> float:
        return float((function(*map(pb.tensor, values)).numpy() * head).sum())

    found = []
    for place, array in enumerate(arrays):
        slope = np.zeros_like(array)
        for index in np.ndindex(*array.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = array.copy()
                moved[index] += sign * step
                ends.append(loss([*arrays[:place], moved, *arrays[place + 1 :]]))
            slope[index] = (ends[0] - ends[1]) / (2.0 * step)
        found.append(slope)
    return found


def check_gradients(function: Callable[..., Tensor], *arrays: Array) -> None:
    """Analytic gradients equal central differences, weighted by a random head."""
    head = draws(*function(*map(pb.tensor, arrays)).shape, seed=99)
    pairs = zip(analytic(function, arrays, head), numeric(function, arrays, head), strict=True)
    for exact, close in pairs:
        np.testing.assert_allclose(exact, close, rtol=2e-5, atol=2e-7)


def strangers(*tensors: Tensor, wrt: Sequence[Tensor] = ()) -> set[str]:
    """Names of node and form kinds that are no primitive, in the definitions and gradients."""
    values = [t.value for t in tensors]
    for value in list(values):
        if wrt and value.dtype.is_float and value.shape == ():
            values += gradients(value, [w.value for w in wrt])
    found: set[str] = set()
    for definition in topological(values):
        kinds = {type(n) for n in walk(definition.roots) if isinstance(n, Expr)}
        found |= {k.__name__ for k in kinds - ALLOWED}
        form = type(definition.form)
        if form not in ALLOWED and form.__name__ not in MAPS:
            found.add(form.__name__)
    return found
