"""Branches that are not taken, through sums: no partial is evaluated where no term is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.grad.reverse import gradients
from pullback.ir.graph import ANY, Reduce, Variable, topological
from pullback.tensor.face.tensor import Tensor
from test_reductions import run

X = np.array([0.0, 4.0, 9.0, 0.0])
C = np.array([[0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]], bool)
TAKEN, HEAD = pb.tensor(C), pb.tensor(np.arange(12.0).reshape(3, 4) + 1)


def chain(x: Any) -> Any:
    wide = pb.broadcast_to(pb.sqrt(x), (3, 4)) * 2.0
    return pb.where(TAKEN, wide, 0.0) * HEAD


def sums(x: Any) -> Any:
    s, c = pb.sqrt(x)[None, :], TAKEN
    return pb.sum(pb.where(c, s, 0.0) * HEAD, axis=0) + pb.sum(pb.where(c, s, 0.0), axis=0)


def many(x: Any) -> Any:
    s, total = pb.sqrt(x), pb.zeros_like(x)
    for n in range(40):
        total = total + pb.where(pb.abs(x - 0.01 * n) > 1.0, s, float(n))
    return total


def triangle(x: Any) -> Any:
    s, k = pb.sqrt(x), pb.axis(4)
    return pb.compute((3,), lambda i: pb.sum(pb.where((k > i) & (k < 3), s[k], 0.0), over=k))


def inner(x: Any) -> Any:
    s, c, k = pb.log(x), TAKEN, pb.axis(4)
    return pb.compute((3,), lambda i: pb.sum(pb.where(c[i, k], s[k], 0.0), over=k))


def twice(x: Any) -> Any:
    """The adjoint of the root is the sum of a sum."""
    s = pb.broadcast_to(pb.broadcast_to(pb.sqrt(x), (3, 4)), (2, 3, 4))
    return pb.where(TAKEN, s, 1.0)


GUARDED: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "a column without terms": (
        lambda x: pb.where(TAKEN, pb.sqrt(x), 0.0) * HEAD,
        [0, 8 / 4, 18 / 6, 0],
    ),
    "a mask free of the sum": (
        lambda x: pb.where(x < 1, x, pb.sqrt(x)) * HEAD,
        [15, 18 / 4, 21 / 6, 24],
    ),
    "a copy on the way": (chain, [0, 16 / 4, 36 / 6, 0]),
    "two sums": (sums, [0, 10 / 4, 20 / 6, 0]),
    "two summands": (
        lambda x: pb.where(x > 1, pb.sqrt(x), 0.0) + pb.where(x > 5, pb.sqrt(x), 1.0),
        [0, 1 / 4, 2 / 6, 0],
    ),
    "many summands": (many, [0, 40 / 4, 40 / 6, 0]),
    "a triangle": (triangle, [0, 1 / 4, 2 / 6, 0]),
    "inside a reduction": (inner, [0, 2 / 4, 2 / 9, 0]),
    "a sum of a sum": (twice, [0, 4 / 4, 4 / 6, 0]),
}


@pytest.mark.parametrize("name", GUARDED)
def test_what_no_term_reads_has_gradient_zero(name: str) -> None:
    f, wanted = GUARDED[name]
    (found,) = run(pb.grad(lambda x: pb.sum(f(x))), X)
    assert np.allclose(found, wanted)


def test_what_a_term_reads_keeps_its_infinite_slope() -> None:
    c = C.copy()
    c[1, 0] = True
    taken = pb.tensor(c)
    (found,) = run(pb.grad(lambda x: pb.sum(pb.where(taken, pb.sqrt(x), 0.0))), X)
    assert np.array_equal(found, [np.inf, 0.5, 1 / 3, 0])


def test_contractions_are_not_asked() -> None:
    """Behind a product of matrices no condition is looked at again: its data are large."""
    x, w = Variable("x", (8, 16), pb.float32), Variable("w", (32, 16), pb.float32)
    size = pb.sum(Tensor(x) ** 2, axis=1, keepdims=True)
    y = pb.relu((Tensor(x) / pb.sqrt(size)) @ Tensor(w).T)
    (dx,) = gradients(pb.sum(y).value, [x])
    forms = [d.form for d in topological([dx])]
    assert not [f for f in forms if isinstance(f, Reduce) and f.combiner is ANY]
