"""Forward and reverse mode and their nestings: differences, dot products, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import GradientError

Array = np.ndarray[Any, Any]


def draw(seed: int, *shape: int, low: float = -1, high: float = 1) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape)


def dot(a: Any, b: Any) -> float:
    return float(np.sum(a.numpy() * b.numpy()))


def check_modes(f: Callable[[Any], Any], at: Array, tolerance: float = 1e-7) -> None:
    """``<J v, u> == <v, J' u>`` exactly, and ``J v`` equals central differences."""
    x = pb.tensor(at)
    v = pb.tensor(draw(5, *at.shape))
    out, tangent = pb.jvp(f, (x,), (v,))
    assert (tangent.shape, tangent.dtype) == (out.shape, out.dtype)
    u = pb.tensor(draw(6, *out.shape))
    same, back = pb.vjp(f, x)
    assert np.array_equal(out.numpy(), same.numpy())
    (adjoint,) = back(u)
    left, right = dot(tangent, u), dot(v, adjoint)
    assert left == pytest.approx(right, rel=1e-10, abs=1e-12)
    step = 1e-6
    ends = [f(pb.tensor(at + s * v.numpy())).numpy() for s in (step, -step)]
    difference = (ends[0] - ends[1]) / (2 * step)
    assert np.allclose(tangent.numpy(), difference, rtol=tolerance * 10, atol=tolerance)


def row(x: Any) -> Any:
    k = pb.axis(5)
    return pb.compute((4,), lambda i: pb.sum(x[i, k] * x[i, 4 - k], over=k))


def windows(x: Any) -> Any:
    a, b = pb.axis(2), pb.axis(2)
    return pb.compute((2, 2), lambda i, j: pb.max(x[i * 2 + a, j * 2 + b], over=(a, b)))


INDEX = np.array([3, 0, 0, 2, 1, 3])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: pb.sin(x) * x + pb.exp(x) / (x + 3.0),
    "sum": row,
    "max windows": windows,
    "matmul": lambda x: x @ x.mT,
    "softmax": lambda x: pb.softmax(x, 1),
    "logsumexp": lambda x: pb.logsumexp(x, 0),
    "prod": lambda x: pb.prod(x, axis=1),
    "prod of all": pb.prod,
    "max": lambda x: pb.max(x, axis=0) * pb.min(x, axis=0),
    "cumulative sum": lambda x: pb.cumulative_sum(x, axis=1),
    "cumulative prod": lambda x: pb.cumulative_prod(x, axis=0),
    "cumulative max": lambda x: pb.cumulative_max(x, axis=1),
    "where": lambda x: pb.where(x > 0, pb.sqrt(x + 1.1), x * x * x),
    "take": lambda x: pb.take(x, pb.tensor(INDEX), axis=0) ** 2,
    "roll and pad": lambda x: pb.roll(x, 2, axis=1) * pb.flip(x, axis=0),
    "var": lambda x: pb.var(x, axis=1),
    "second": lambda x: pb.grad(lambda z: pb.sum(z * z * z))(x),
    "scatter": lambda x: pb.grad(
        lambda z: pb.sum(pb.sin(pb.take(z, pb.tensor(INDEX), axis=0)))
    )(x),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_modes_agree(name: str) -> None:
    check_modes(FUNCTIONS[name], draw(1, 4, 5))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nested_modes_agree(name: str) -> None:
    """Forward over reverse, reverse over forward and reverse over reverse are one Hessian."""
    f = FUNCTIONS[name]

    def loss(x: Any) -> Any:
        y = f(x)
        return pb.sum(y * y * y)

    x, v = pb.tensor(draw(2, 4, 5)), pb.tensor(draw(3, 4, 5))
    forward = pb.hvp(loss, x, v).numpy()
    inside = pb.grad(lambda z: pb.jvp(loss, (z,), (v,))[1])(x).numpy()
    twice = pb.grad(lambda z: pb.sum(pb.grad(loss)(z) * v))(x).numpy()
    assert np.allclose(forward, inside, rtol=1e-10, atol=1e-12)
    assert np.allclose(forward, twice, rtol=1e-10, atol=1e-12)


def test_of_tensors() -> None:
    x, w = pb.tensor(draw(1, 3)), pb.tensor(draw(2, 3))
    y = pb.sum(x * x * w)
    assert pb.jvp(y, x, w).numpy() == pytest.approx(np.sum(2 * x.numpy() * w.numpy() ** 2))
    both = pb.jvp([y, x * w], [x, w], [w, x])
    assert np.allclose(both[1].numpy(), w.numpy() ** 2 + x.numpy() ** 2)
    _, back = pb.vjp(y, x, w)
    dx, dw = back(pb.tensor(2.0, dtype=pb.float64))
    assert np.allclose(dx.numpy(), 4 * x.numpy() * w.numpy())
    assert np.allclose(dw.numpy(), 2 * x.numpy() ** 2)
    assert np.allclose(pb.hvp(y, x, w).numpy(), 2 * w.numpy() ** 2)


def test_trees_and_results_already_computed() -> None:
    x = pb.tensor(draw(1, 3))
    z = x * 2.0
    z.numpy()
    y = pb.sum(z * z)
    assert np.allclose(pb.jvp(y, z, x).numpy(), np.sum(4 * x.numpy() ** 2))
    out, tangent = pb.jvp(
        lambda p: {"a": p["w"] * 2.0, "b": pb.sum(p["w"])}, ({"w": x},), ({"w": z},)
    )
    assert set(out) == {"a", "b"}
    assert np.allclose(tangent["a"].numpy(), 4 * x.numpy())
    _, back = pb.vjp(lambda p: p["w"] * p["v"], {"w": x, "v": z})
    (found,) = back(pb.ones_like(x))
    assert np.allclose(found["v"].numpy(), x.numpy())


def test_inside_a_jitted_function() -> None:
    x = pb.tensor(draw(1, 4))

    @pb.jit
    def both(z: Any, v: Any) -> Any:
        out, tangent = pb.jvp(pb.tanh, (z,), (v,))
        return out, tangent, pb.vjp(pb.tanh, z)[1](v)[0]

    out, tangent, adjoint = (t.numpy() for t in both(x, x))
    assert np.allclose(out, np.tanh(x.numpy()))
    assert np.allclose(tangent, (1 - out**2) * x.numpy())
    assert np.allclose(adjoint, tangent)


def test_refusals() -> None:
    whole = pb.tensor(np.arange(3))
    x = pb.tensor(draw(1, 3))
    with pytest.raises(GradientError, match="int64"):
        pb.jvp(lambda z: z * 2.0, (whole,), (whole,))
    with pytest.raises(GradientError, match="int64"):
        pb.vjp(lambda z: z * 2.0, whole)
    with pytest.raises(GradientError, match="tangent is float64"):
        pb.jvp(lambda z: z * 2.0, (x,), (x[:2],))
    with pytest.raises(GradientError, match="structure"):
        pb.jvp(lambda z: z * 2.0, (x,), (x, x))
    with pytest.raises(GradientError, match="adjoint"):
        pb.vjp(pb.sum, x)[1](x)
