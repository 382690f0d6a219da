"""Forward and reverse mode and their nestings: differences, dot products, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.errors import CapturedArrayError, GradientError, ShapeError, UnsupportedError

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


def with_more(w: Any, x: Any) -> Any:
    y = x @ w
    return pb.sum(y * y), {"y": y, "count": 3}


@pytest.mark.parametrize("given", ["arrays", "tensors"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_what_comes_with_a_loss_is_passed_on(given: str, compiled: bool) -> None:
    w, x = draw(1, 3, 2), draw(2, 4, 3)
    args = (w, x) if given == "arrays" else (pb.tensor(w), pb.tensor(x))
    kind = np.ndarray if given == "arrays" else pb.Tensor
    both = pb.value_and_grad(with_more, (0, 1), has_aux=True)
    (loss, more), slopes = (pb.jit(both) if compiled else both)(*args)
    wanted = x @ w
    assert isinstance(more["y"], kind)
    assert more["count"] == 3
    np.testing.assert_allclose(np.asarray(more["y"]), wanted, rtol=1e-12)
    np.testing.assert_allclose(float(loss), (wanted**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(slopes[0]), 2 * x.T @ wanted, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(slopes[1]), 2 * wanted @ w.T, rtol=1e-12)
    alone = pb.grad(with_more, 0, has_aux=True)
    slope, more = (pb.jit(alone) if compiled else alone)(*args)
    np.testing.assert_allclose(np.asarray(slope), np.asarray(slopes[0]), rtol=1e-12)
    out, back, more = pb.vjp(with_more, *args, has_aux=True)
    assert isinstance(more["y"], kind)
    pulled = back(np.float64(1.0) if given == "arrays" else pb.tensor(1.0, "float64"))
    np.testing.assert_allclose(np.asarray(pulled[1]), np.asarray(slopes[1]), rtol=1e-12)
    np.testing.assert_allclose(float(out), float(loss), rtol=1e-12)


def test_has_aux_is_refused_where_nothing_comes_with_a_value() -> None:
    x = pb.tensor(draw(1, 3))
    for call in (pb.grad, pb.value_and_grad):
        with pytest.raises(GradientError, match="E213"):
            call(lambda t: pb.sum(t), has_aux=True)(x)
        with pytest.raises(GradientError, match="E219"):
            call(pb.sum(x), x, has_aux=True)
        with pytest.raises(GradientError, match="E219"):
            call(pb.sum, 0, 1)
    with pytest.raises(GradientError, match="E213"):
        pb.vjp(pb.sum, x, has_aux=True)


def test_hessians() -> None:
    x, w = draw(1, 3), draw(2, 3)

    def cubes(a: Any, b: Any) -> Any:
        return pb.sum(a**3 * b)

    np.testing.assert_allclose(pb.hessian(cubes)(x, w), np.diag(6 * x * w), rtol=1e-12)
    np.testing.assert_allclose(pb.hessian(cubes, argnums=1)(x, w), np.zeros((3, 3)), atol=1e-12)
    a = pb.tensor(x)
    of_tensor = pb.hessian(pb.sum(a**4), a).numpy()
    np.testing.assert_allclose(of_tensor, np.diag(12 * x**2), rtol=1e-12)
    compiled = pb.jit(pb.hessian(lambda t: pb.sum(pb.sin(t)) ** 2))(x)
    slope = np.cos(x)
    wanted = 2 * np.outer(slope, slope) - 2 * np.sin(x).sum() * np.diag(np.sin(x))
    np.testing.assert_allclose(compiled, wanted, rtol=1e-11)


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


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_modes_agree(name: str) -> None:
    check_modes(FUNCTIONS[name], draw(1, 4, 5))


@pytest.mark.sampled(4)
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


# --- vmap ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_equals_a_loop_over_samples(name: str) -> None:
    f = FUNCTIONS[name]
    rows = draw(4, 3, 4, 5)
    whole = pb.vmap(f)(pb.tensor(rows)).numpy()
    for sample, found in zip(rows, whole, strict=True):
        assert np.allclose(f(pb.tensor(sample)).numpy(), found, rtol=1e-12, atol=1e-14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_per_sample_gradients(name: str) -> None:
    """vmap of grad, and grad of the sum of vmap."""
    f = FUNCTIONS[name]

    def loss(x: Any) -> Any:
        return pb.sum(pb.sin(f(x)))

    rows = draw(4, 3, 4, 5)
    whole = pb.vmap(pb.grad(loss))(pb.tensor(rows)).numpy()
    outside = pb.grad(lambda x: pb.sum(pb.vmap(loss)(x)))(pb.tensor(rows)).numpy()
    for sample, inner, outer in zip(rows, whole, outside, strict=True):
        expected = pb.grad(loss)(pb.tensor(sample)).numpy()
        assert np.allclose(inner, expected, rtol=1e-11, atol=1e-13)
        assert np.allclose(outer, expected, rtol=1e-11, atol=1e-13)


def test_axes_and_nesting_of_vmap() -> None:
    x, w = draw(1, 3, 4), draw(2, 5, 3)

    def f(a: Any, b: Any) -> Any:
        return pb.sum(a * b)

    inner = pb.vmap(f, in_axes=(1, None))
    outer = pb.vmap(inner, in_axes=(None, 0), out_axes=1)
    assert np.allclose(outer(pb.tensor(x), pb.tensor(w)).numpy(), (w @ x).T)
    both = pb.vmap(lambda a: (a, pb.sum(a), 7 * pb.ones(2)), out_axes=(1, 0, None))
    columns, sums, constant = both(pb.tensor(x))
    assert np.array_equal(columns.numpy(), x.T)
    assert np.allclose(sums.numpy(), x.sum(1))
    assert constant.shape == (2,)
    trees = pb.vmap(lambda p, n: {"y": p["a"] * p["b"] * n}, in_axes=(0, None))
    found = trees({"a": pb.tensor(x), "b": pb.tensor(2 * x)}, 3.0)
    assert np.allclose(found["y"].numpy(), 6 * x * x)
    same = pb.vmap(lambda a: pb.arange(3))(pb.tensor(x))
    assert np.array_equal(same.numpy(), [[0, 1, 2]] * 3)


def test_vmap_inside_a_jitted_function() -> None:
    x, w = draw(1, 6, 4), draw(2, 4)

    @pb.jit
    def per_sample(x: Any, w: Any) -> Any:
        return pb.vmap(pb.grad(lambda w, r: pb.sum(r * w) ** 2), in_axes=(None, 0))(w, x)

    found = per_sample(pb.tensor(x), pb.tensor(w)).numpy()
    assert np.allclose(found, 2 * (x @ w)[:, None] * x)


def test_what_vmap_refuses() -> None:
    x = pb.tensor(draw(1, 3, 4))
    with pytest.raises(ShapeError, match=r"extents \[3, 4\]"):
        pb.vmap(lambda a, b: a, in_axes=(0, 1))(x, x)
    with pytest.raises(ShapeError, match="in_axes has 1"):
        pb.vmap(lambda a, b: a, in_axes=(0,))(x, x)
    with pytest.raises(ShapeError, match="out_axes=None"):
        pb.vmap(lambda a: a, out_axes=None)(x)
    seen = nn.Parameter(pb.zeros((4,), dtype="float64"))

    def assigns(a: Any) -> Any:
        seen.assign(a)
        return a

    with pytest.raises(UnsupportedError, match="vmap of an assignment"):
        pb.jit(pb.vmap(assigns))(x)
    with pytest.raises(UnsupportedError, match="has no value"):
        pb.vmap(lambda a: a.numpy())(x)


# --- derivatives by hand -------------------------------------------------------------------------


def by_hand() -> Any:
    @pb.custom_vjp
    def f(x: Any, n: int, w: Any) -> Any:
        return pb.sin(x) * w * n

    def bwd(saved: Any, g: Any) -> Any:
        x, n, w = saved
        return g * pb.cos(x) * w * n * 10.0, None, pb.sum(g * pb.sin(x) * n) * 10.0

    f.defvjp(lambda x, n, w: (pb.sin(x) * w * n, (x, n, w)), bwd)
    return f


def test_custom_vjp_is_used_and_transposed_for_forward_mode() -> None:
    f = by_hand()
    x, w = pb.tensor(draw(1, 4)), pb.tensor(draw(2))
    dx, dw = pb.grad(lambda x, w: pb.sum(f(x, 3, w) * 2.0), argnums=(0, 1))(x, w)
    assert np.allclose(f(x, 3, w).numpy(), 3 * np.sin(x.numpy()) * w.numpy())
    assert np.allclose(dx.numpy(), 60 * np.cos(x.numpy()) * w.numpy())
    assert np.allclose(dw.numpy(), 60 * np.sin(x.numpy()).sum())
    tangent = pb.jvp(lambda x, w: f(x, 3, w), (x, w), (x, 2.0 * w))[1]
    sine, cosine = np.sin(x.numpy()), np.cos(x.numpy())
    assert np.allclose(tangent.numpy(), 30 * w.numpy() * (cosine * x.numpy() + 2 * sine))
    twice = pb.grad(lambda x: pb.sum(pb.grad(lambda z: pb.sum(f(z, 3, w)))(x)))(x)
    assert np.allclose(twice.numpy(), -30 * np.sin(x.numpy()) * w.numpy())


@pytest.mark.parametrize("name", ["clip", "round", "square", "sign"])
def test_a_backward_that_is_not_linear_has_no_forward_mode(name: str) -> None:
    how: dict[str, Callable[[Any], Any]] = {
        "clip": lambda g: pb.clip(g, -0.1, 0.1),
        "round": pb.round,
        "square": lambda g: g * g,
        "sign": pb.sign,
    }
    f = pb.custom_vjp(lambda t: t * 1.0)
    f.defvjp(lambda t: (t * 1.0, None), lambda kept, g: (how[name](g),))
    x = pb.tensor(draw(1, 4))
    with pytest.raises(GradientError, match="custom_jvp"):
        pb.jvp(f, (x,), (x,))
    through = pb.jit(lambda x: pb.jvp(lambda t: pb.loop(2, lambda i, c: f(c), t), (x,), (x,))[1])
    with pytest.raises(GradientError, match="not linear"):
        through(x)


def test_forward_mode_through_overrides() -> None:
    """What an override or `fdiff` gives is differentiated like anything else."""
    x, v = pb.tensor(draw(1, 4)), pb.tensor(draw(2, 4))

    def by_override(x: Any) -> Any:
        y = pb.sin(x)
        table = {y: ([x], lambda out, deps, head: [head * deps[0] ** 2])}
        return pb.differentiate(pb.sum(y * y), [x], override=table)[0]

    def by_fdiff(x: Any) -> Any:
        given = pb.ones_like(x)
        return pb.differentiate(pb.sin(x), [x], given, fdiff=lambda o, i, h: h * o * i)[0]

    s, c, a, t = np.sin(x.numpy()), np.cos(x.numpy()), x.numpy(), v.numpy()
    for run in (lambda f: f, pb.jit):
        found = run(lambda x, v: pb.jvp(by_override, (x,), (v,))[1])(x, v)
        assert np.allclose(found.numpy(), t * 2 * (c * a * a + s * 2 * a))
        found = run(lambda x, v: pb.jvp(by_fdiff, (x,), (v,))[1])(x, v)
        assert np.allclose(found.numpy(), t * (c * a + s))


def test_custom_vjp_under_vmap_and_vmap_under_grad() -> None:
    f = by_hand()
    x, w = draw(1, 5, 4), draw(2)

    def loss(x: Any, w: Any) -> Any:
        return pb.sum(f(x, 2, w))

    each = pb.vmap(pb.grad(loss, argnums=(0, 1)), in_axes=(0, None))(pb.tensor(x), pb.tensor(w))
    whole = pb.grad(
        lambda x, w: pb.sum(pb.vmap(loss, in_axes=(0, None))(x, w)), argnums=(0, 1)
    )(pb.tensor(x), pb.tensor(w))  # fmt: skip
    assert np.allclose(each[0].numpy(), 20 * np.cos(x) * w)
    assert np.allclose(whole[0].numpy(), 20 * np.cos(x) * w)
    assert np.allclose(each[1].numpy(), 20 * np.sin(x).sum(1))
    assert np.allclose(whole[1].numpy(), 20 * np.sin(x).sum())


def test_custom_vjp_with_several_results() -> None:
    @pb.custom_vjp
    def f(x: Any) -> Any:
        return x * 2.0, {"s": pb.sum(x), "i": pb.argmax(x, 0)}

    def bwd(saved: Any, g: Any) -> Any:
        first, rest = g
        return (first * 5.0 + rest["s"],)

    f.defvjp(lambda x: (f(x), None), bwd)
    x = pb.tensor(draw(1, 3))
    assert np.allclose(pb.grad(lambda x: pb.sum(f(x)[0]))(x).numpy(), 5)
    assert np.allclose(pb.grad(lambda x: f(x)[1]["s"])(x).numpy(), 1)
    both = pb.grad(lambda x: pb.sum(f(x)[0]) + f(x)[1]["s"])
    assert np.allclose(both(x).numpy(), 6)
    assert np.allclose(pb.vmap(both)(pb.tensor(draw(1, 2, 3))).numpy(), 6)
    assert f(x)[1]["i"].dtype == pb.int64


def test_custom_jvp_goes_both_ways() -> None:
    @pb.custom_jvp
    def f(x: Any, w: Any) -> Any:
        return x * x * w

    @f.defjvp
    def along(primals: Any, tangents: Any) -> Any:
        (x, w), (dx, dw) = primals, tangents
        return f(x, w), 7.0 * x * w * dx + x * x * dw

    x, w = pb.tensor(draw(1, 4)), pb.tensor(draw(2, 4))
    out, tangent = pb.jvp(f, (x, w), (w, x))
    assert np.allclose(out.numpy(), x.numpy() ** 2 * w.numpy())
    assert np.allclose(tangent.numpy(), 7 * x.numpy() * w.numpy() ** 2 + x.numpy() ** 3)
    dx = pb.grad(lambda x: pb.sum(f(x, w)))
    assert np.allclose(dx(x).numpy(), 7 * x.numpy() * w.numpy())
    assert np.allclose(pb.hvp(lambda x: pb.sum(f(x, w)), x, x).numpy(), dx(x).numpy())
    rows = pb.tensor(draw(3, 2, 4))
    assert np.allclose(pb.vmap(dx)(rows).numpy(), 7 * rows.numpy() * w.numpy())
    many = pb.vmap(lambda r: pb.jvp(f, (r, w), (r, w))[1])(rows).numpy()
    assert np.allclose(many, 8 * rows.numpy() ** 2 * w.numpy())
    through = pb.jvp(lambda r: pb.vmap(lambda a: f(a, w))(r), (rows,), (rows,))[1]
    assert np.allclose(through.numpy(), 7 * rows.numpy() ** 2 * w.numpy())
    jitted = pb.jit(lambda x: dx(x))(x)
    assert np.allclose(jitted.numpy(), 7 * x.numpy() * w.numpy())


def test_wrong_hand_rules_are_named() -> None:
    x = pb.tensor(draw(1, 3))

    @pb.custom_vjp
    def f(x: Any) -> Any:
        return x * 2.0

    with pytest.raises(GradientError, match=r"f has no derivative yet: call \.defvjp"):
        pb.grad(lambda x: pb.sum(f(x)))(x)
    f.defvjp(lambda x: (x, None), lambda saved, g: (g, g))
    with pytest.raises(GradientError, match="2 adjoints for 1"):
        pb.grad(lambda x: pb.sum(f(x)))(x)
    f.defvjp(lambda x: (x, None), lambda saved, g: (g[:2],))
    with pytest.raises(GradientError, match="custom_vjp of f gave"):
        pb.grad(lambda x: pb.sum(f(x)))(x)

    @pb.custom_jvp
    def h(x: Any) -> Any:
        return x * x

    h.defjvp(lambda primals, tangents: (h(primals[0]), tangents[0] * tangents[0]))
    with pytest.raises(GradientError, match="not linear"):
        pb.grad(lambda x: pb.sum(h(x)))(x)


def test_stop_gradient() -> None:
    x = pb.tensor(draw(1, 3))
    found = pb.grad(lambda x: pb.sum(pb.stop_gradient(x) * x))(x)
    assert np.array_equal(found.numpy(), x.numpy())
    moved = pb.jvp(lambda x: pb.stop_gradient(x) * x, (x,), (pb.ones_like(x),))[1]
    assert np.array_equal(moved.numpy(), x.numpy())


def test_heads_keep_their_identity() -> None:
    """A constant or copied head may itself be differentiated by."""
    x = pb.tensor(draw(1, 3))
    for head in (pb.ones(3, dtype=pb.float64), x * 1.0, pb.broadcast_to(x[0], (3,))):
        y = x * x
        dx = pb.grad(y, x, head=head)
        assert np.allclose(pb.grad(pb.sum(dx), head).numpy(), 2 * x.numpy())
        tangent = pb.jvp(y, x, head)
        assert np.allclose(pb.grad(pb.sum(tangent), head).numpy(), 2 * x.numpy())


def test_jitted_functions_are_transformed_as_they_are_written() -> None:
    x = pb.tensor(draw(1, 3))
    f = pb.jit(lambda z: pb.sum(z * z))
    f(x)
    assert np.allclose(pb.grad(f)(x).numpy(), 2 * x.numpy())
    assert np.allclose(pb.grad(lambda z: f(z) * 3.0)(x).numpy(), 6 * x.numpy())
    assert np.allclose(pb.jvp(f, x, x)[1].numpy(), 2 * np.sum(x.numpy() ** 2))
    rows = pb.tensor(draw(1, 2, 3))
    assert np.allclose(pb.vmap(f)(rows).numpy(), np.sum(rows.numpy() ** 2, axis=1))
    assert np.allclose(pb.hvp(f, x, x).numpy(), 2 * x.numpy())
    assert f.traces == 1


def test_custom_rules_with_static_arguments() -> None:
    def scaled(n: int, x: Any) -> Any:
        return x * float(n)

    back = pb.custom_vjp(scaled, nondiff_argnums=(0,))
    back.defvjp(lambda n, x: (scaled(n, x), None), lambda n, saved, g: (g * float(n + 1),))
    along = pb.custom_jvp(scaled, nondiff_argnums=(0,))
    along.defjvp(lambda n, primals, tangents: (along(n, *primals), tangents[0] * float(n + 1)))
    x = pb.tensor(draw(1, 3))
    for f in (back, along):
        assert np.allclose(f(2, x).numpy(), 2 * x.numpy())
        assert np.allclose(pb.grad(lambda x, f=f: pb.sum(f(2, x)))(x).numpy(), 3)


@pytest.mark.slow
def test_long_chains() -> None:
    def f(x: Any) -> Any:
        for _ in range(2000):  # beyond Python's recursion limit of 1000
            x = x * 1.0001
        return x

    x = pb.tensor(draw(1, 2))
    assert pb.jvp(f, x, x)[1].shape == (2,)
    assert pb.vmap(f)(x[:, None]).shape == (2, 1)


def test_arrays_stand_for_tensors_everywhere() -> None:
    x, v = draw(1, 3), draw(2, 3)

    def f(t: Any) -> Any:
        return pb.sum(t * t * t)

    one = np.ones(())
    assert np.allclose(pb.grad(f)(x), 3 * x**2)
    assert np.allclose(pb.jvp(f, x, v)[1], (3 * x**2 * v).sum())
    assert np.allclose(pb.vjp(f, x)[1](one)[0], 3 * x**2)
    assert np.allclose(pb.hvp(f, x, v), 6 * x * v)
    assert np.allclose(pb.jacobian(lambda t: t * t, x), np.diag(2 * x))
    assert np.allclose(pb.vmap(lambda t: t * t)(x).numpy(), x * x)
    t = pb.tensor(x)
    assert np.allclose(pb.differentiate(t * t, [t], v)[0].numpy(), 2 * x * v)
    value, slope = pb.value_and_grad(t * t, t, head=v)
    assert np.allclose(value.numpy(), x * x) and np.allclose(slope.numpy(), 2 * x * v)
    assert pb.scan(lambda c, u: (c + u, c), np.zeros(()), x)[1].shape == (3,)
    assert pb.cond(np.bool_(True), lambda: 1, lambda: 2) == 1


def test_a_function_takes_its_arguments_by_number_and_no_head() -> None:
    x = pb.tensor(draw(1, 3))
    for given in ({"wrt": x}, {"wrt": True}, {"wrt": 1, "argnums": 1}, {"head": x}):
        with pytest.raises(GradientError, match="argnums=1"):
            pb.grad(lambda t: t.sum(), **given)
    y = pb.tensor(draw(2, 3))
    by_second = pb.grad(lambda t, u: (t * u).sum(), 1)(x, y)
    np.testing.assert_array_equal(by_second.numpy(), x.numpy())


def test_a_number_in_a_carry_is_told() -> None:
    with pytest.raises(ShapeError, match="start from a tensor"):
        pb.jit(lambda: pb.loop(3, lambda i, c: c * 2.0, 1.0))()
    with pytest.raises(CapturedArrayError):
        pb.jit(lambda: pb.scan(lambda c, u: (c + u, c), pb.zeros(()), np.ones(3000)))()


def test_layers_and_optimisers_are_attributes_too() -> None:
    assert pb.nn.Linear is nn.Linear and pb.optim.SGD is optim.SGD
