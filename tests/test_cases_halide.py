"""Small exact cases of image pipelines: boundaries, updates, guards, scalar functions, ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

Array = np.ndarray[Any, Any]


def t(*values: Any) -> Any:
    return pb.tensor(np.array(values if len(values) > 1 else values[0], np.float64))


def draw(seed: int, *shape: int, low: float = -1, high: float = 1) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape)


def gradient(f: Callable[..., Any], *inputs: Any) -> list[Array]:
    found = pb.grad(f, argnums=tuple(range(len(inputs))))(*inputs)
    return [g.numpy() for g in found]


def check(f: Callable[..., Any], *arrays: Array, second: bool = True) -> None:
    """``<J v, u> == <v, J' u>``, J v by differences, and the same of the gradient of sum f^2."""
    inputs = tuple(pb.tensor(a) for a in arrays)
    v = tuple(pb.tensor(draw(5 + n, *a.shape)) for n, a in enumerate(arrays))
    out, moved = pb.jvp(f, inputs, v)
    u = pb.tensor(draw(3, *out.shape))
    back = pb.vjp(f, *inputs)[1](u)
    left = np.sum(moved.numpy() * u.numpy())
    right = sum(np.sum(b.numpy() * w.numpy()) for b, w in zip(back, v, strict=True))
    assert left == pytest.approx(right, rel=1e-10, abs=1e-12)
    step = 1e-6
    ends = [
        f(*(pb.tensor(a + s * w.numpy()) for a, w in zip(arrays, v, strict=True))).numpy()
        for s in (step, -step)
    ]
    difference = (ends[0] - ends[1]) / (2 * step)
    assert np.allclose(moved.numpy(), difference, rtol=1e-5, atol=1e-7)
    if second:
        check(
            lambda x: pb.grad(lambda z: pb.sum(f(z, *inputs[1:]) ** 2))(x), arrays[0], second=False
        )


# --- boxes, boundaries, stages -------------------------------------------------------------------


def test_box() -> None:
    def loss(x: Any) -> Any:
        y = pb.compute((2,), lambda i: x[i] + x[i + 1])
        return pb.sum(y * y)

    assert np.array_equal(gradient(loss, t(1, 2, 3))[0], [6, 16, 10])


def clamp(i: Any, last: int) -> Any:
    return pb.maximum(pb.minimum(i, last), 0)


def test_clamped_box() -> None:
    def loss(x: Any) -> Any:
        y = pb.compute((2,), lambda i: x[clamp(i, 1)] + x[clamp(i + 1, 1)])
        return pb.sum(y * y)

    assert np.array_equal(gradient(loss, t(1, 2))[0], [6, 22])


def test_box_in_two_axes() -> None:
    def blur(x: Any) -> Any:
        rows = pb.compute(
            (5, 5), lambda i, j: x[clamp(i - 1, 4), j] + x[i, j] + x[clamp(i + 1, 4), j]
        )
        return pb.compute(
            (5, 5), lambda i, j: rows[i, clamp(j - 1, 4)] + rows[i, j] + rows[i, clamp(j + 1, 4)]
        )

    check(blur, draw(1, 5, 5))


def test_updates_in_stages() -> None:
    def added(c: Any) -> Any:
        blur = pb.compute((2,), lambda i: c[i])
        return pb.compute((2,), lambda i: blur[i] + c[i + 1])

    def squared(c: Any) -> Any:
        first = pb.compute((2,), lambda i: c[i])
        return pb.compute((2,), lambda i: first[i] * first[i] + c[i + 1])

    assert np.array_equal(gradient(lambda c: pb.sum(added(c)), t(1, 2, 3))[0], [1, 2, 1])
    assert np.array_equal(gradient(lambda c: pb.sum(squared(c)), t(1, 2, 3))[0], [2, 5, 1])
    check(added, draw(1, 3))
    check(squared, draw(1, 3))


def test_convolution_and_its_kernel() -> None:
    def f(x: Any, k: Any) -> Any:
        r = pb.axis(2)
        return pb.compute((4,), lambda i: pb.sum(x[clamp(i + r, 3)] * k[r], over=r))

    x, k = t(1, 2, 3, 4), t(2, 1)
    dx, dk = gradient(lambda x, k: pb.sum(f(x, k)), x, k)
    assert np.array_equal(dx, [2, 3, 3, 4])
    assert np.array_equal(dk, [10, 13])
    check(f, draw(1, 4), draw(2, 2))


BOUNDARIES: dict[str, tuple[Callable[[Any, Any], Any], list[float]]] = {
    "repeat edge": (lambda x, i: x[clamp(i, 1)], [1, 5]),
    "constant": (lambda x, i: pb.where(i < 2, x[i], 0.0), [1, 2]),
    "repeat image": (lambda x, i: x[i % 2], [3, 3]),
    "mirror image": (lambda x, i: x[pb.where(i % 4 < 2, i % 4, 3 - i % 4)], [2, 4]),
    "mirror interior": (lambda x, i: x[pb.where(i % 2 < 1, 0, 1)], [3, 3]),
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_boundaries(name: str) -> None:
    at, expected = BOUNDARIES[name]

    def f(x: Any) -> Any:
        return pb.compute((3,), lambda i: at(x, i) + at(x, i + 1))

    assert np.array_equal(gradient(lambda x: pb.sum(f(x)), t(1, 2))[0], expected)
    check(f, draw(1, 2))


def test_scans_unrolled() -> None:
    grid = pb.tensor(np.arange(1024) / 1023)

    def horner(c: Any) -> Any:
        p = pb.zeros((1024,), dtype=pb.float64)
        for r in reversed(range(8)):
            p = p * grid + c[r]
        return p

    def squares(x: Any) -> Any:
        f = x[0] * pb.ones(4, dtype=pb.float64)
        for r in range(1, 5):
            f = f * f + x[r]
        return f

    powers = np.power.outer(grid.numpy(), np.arange(8)).sum(0)
    assert np.allclose(gradient(lambda c: pb.sum(horner(c)), t(*range(8)))[0], powers)
    check(squares, draw(1, 5, low=-0.5, high=0.5))


def test_outer_product_and_scalar_parameter() -> None:
    def outer(x: Any) -> Any:
        return pb.compute((3, 4), lambda i, j: pb.astype(i + 1, pb.float64) * x[j])

    assert np.array_equal(gradient(lambda x: pb.sum(outer(x)), t(1, 2, 3, 4))[0], [6] * 4)
    check(lambda p: pb.compute((5,), lambda i: p[()] * p[()] * pb.astype(i, pb.float64)), draw(1))


# --- data-dependent reads and writes -------------------------------------------------------------


def test_linear_resampling() -> None:
    def one(table: Any, at: Any) -> Any:
        low = pb.astype(pb.floor(at), pb.int64)
        rest = at - pb.floor(at)
        return pb.take(table, low) * (1.0 - rest) + pb.take(table, low + 1) * rest

    def two(table: Any, at: Any) -> Any:
        return pb.compute(
            (3, 3),
            lambda i, j: (
                table[pb.astype(pb.floor(at[i]), pb.int64), pb.astype(pb.floor(at[j]), pb.int64)]
                * (at[i] - pb.floor(at[i]))
                * (at[j] - pb.floor(at[j]))
            ),
        )

    table, at = t(0.5, 2, -1, 4), t(0.25, 1.5, 2.75)
    dtable, dat = gradient(lambda a, b: pb.sum(one(a, b)), table, at)
    assert np.allclose(dtable, [0.75, 0.25 + 0.5, 0.5 + 0.25, 0.75])
    assert np.allclose(dat, [1.5, -3, 5])
    check(one, table.numpy(), at.numpy())
    check(two, draw(1, 4, 4), at.numpy())


def test_sparse_overwrites() -> None:
    def f(x: Any) -> Any:
        first = pb.compute((4,), lambda i: pb.where(i == 1, 0.0, x[i]))
        return pb.compute((4,), lambda i: pb.where(i == 2, 2.0 * x[1], first[i]))

    assert np.array_equal(gradient(lambda x: pb.sum(f(x)), t(1, 2, 3, 4))[0], [1, 2, 0, 1])
    check(f, draw(1, 4))


def test_overwriting_windows() -> None:
    def f(x: Any) -> Any:
        y = x
        for r in range(3):
            y = pb.compute(
                (5,), lambda i, y=y, r=r: pb.where((i >= r) & (i < r + 2), y[i] * x[i] + 1.0, y[i])
            )
        return y

    check(f, draw(1, 5))


def test_histogram() -> None:
    places = np.array([2, 2, 1, 3, 7, -4] * 10)

    def f(k: Any) -> Any:
        r = pb.axis(60)
        index = pb.tensor(places)
        return pb.compute(
            (4,), lambda i: pb.sum(pb.where(clamp(index[r], 3) == i, k[r], 0.0), over=r)
        )

    weights = t(1, 2, 3, 4)
    (dk,) = gradient(lambda k: pb.sum(f(k) * weights), pb.tensor(draw(1, 60)))
    assert np.array_equal(dk, (np.clip(places, 0, 3) + 1.0))
    check(f, draw(1, 60), second=False)


def test_diagonal_reads_and_writes() -> None:
    def written(x: Any) -> Any:
        return pb.compute((4, 4), lambda i, j: pb.where(i == j, x[i] + x[i + 1], 0.0))

    head = draw(2, 4)
    x = pb.tensor(draw(1, 4, 4))
    read = pb.compute((4,), lambda i: x[i, i])
    assert np.array_equal(pb.grad(read, x, head=pb.tensor(head)).numpy(), np.diag(head))
    assert np.array_equal(
        gradient(lambda v: pb.sum(written(v)), t(1, 2, 3, 4, 5))[0], [1, 2, 2, 2, 1]
    )
    check(written, draw(1, 5))
    check(lambda x: pb.compute((4,), lambda i: x[i, i] * x[i, 3 - i]), draw(1, 4, 4))


# --- views ---------------------------------------------------------------------------------------


def test_resampled_views() -> None:
    def rounded(x: Any) -> Any:
        return pb.compute((8,), lambda i: x[i // 4] + x[(i + 3) // 4])

    r = pb.axis(4)
    assert np.array_equal(gradient(lambda x: pb.sum(rounded(x)), t(1, 2, 3))[0], [5, 8, 3])
    check(rounded, draw(1, 3))
    check(lambda x: pb.compute((3,), lambda i: pb.sum(x[i * 4 + r] ** 2, over=r)), draw(1, 12))
    check(lambda x: pb.compute((12,), lambda i: x[i // 4] * x[2 - i // 4]), draw(1, 3))
    check(lambda x: pb.compute((4, 3), lambda i, j: x[j, i] * x[j, 3 - i]), draw(1, 3, 4))
    check(lambda x: pb.compute((5,), lambda i: x[4 - i] ** 3), draw(1, 5))


def test_a_round_domain() -> None:
    def f(x: Any) -> Any:
        inside = lambda i, j: (i - 3) * (i - 3) + (j - 3) * (j - 3) <= 10
        return pb.compute((7, 7), lambda i, j: pb.where(inside(i, j), 2.0 * x[i, j], x[i, j]))

    (dx,) = gradient(lambda x: pb.sum(f(x)), pb.tensor(draw(1, 7, 7)))
    i, j = np.indices((7, 7)) - 3
    assert np.array_equal(dx, np.where(i * i + j * j <= 10, 2, 1))


def test_a_stage_of_several_values() -> None:
    def f(x: Any) -> Any:
        a, b = pb.compute((4,), lambda i: (x[i] * x[i], x[i] + x[3 - i]))
        c, d = pb.compute((4,), lambda i: (a[i] * b[i], b[i] * b[i]))
        return c + d

    check(f, draw(1, 4))


def test_second_orders() -> None:
    x = t(1.0, 2.0, 3.0)
    second = pb.grad(lambda x: pb.sum(pb.grad(lambda z: pb.sum(z * z + 3.0 * z + 4.0))(x)))(x)
    assert np.array_equal(second.numpy(), [2, 2, 2])

    def f(x: Any, k: Any) -> Any:
        r = pb.axis(3)
        return pb.compute((6,), lambda i: pb.sum(x[clamp(i + r - 1, 5)] * k[r], over=r))

    check(f, draw(1, 6), draw(2, 3))
    k = pb.tensor(draw(2, 3))
    hessian = pb.differentiate(pb.grad(y := pb.sum(f(x6 := pb.tensor(draw(1, 6)), k) ** 2), x6), x6)
    jacobian = pb.differentiate(f(x6, k), x6)[0].numpy()
    assert y.shape == ()
    assert np.allclose(hessian[0].numpy(), 2 * jacobian.T @ jacobian)


# --- guards --------------------------------------------------------------------------------------

GUARDS: dict[str, tuple[Callable[[Any], Any], list[float], list[float]]] = {
    "sqrt": (lambda x: pb.where(x < 1, x, pb.sqrt(x)), [0.0, 4.0], [1, 0.25]),
    "division": (lambda x: pb.where(x == 0, x * 3.0, 1.0 / x), [0.0, 2.0], [3, -0.25]),
    "log": (lambda x: pb.where(x <= 0, 0.0, pb.log(x)), [0.0, -1.0, 2.0], [0, 0, 0.5]),
    "atan2": (
        lambda x: pb.where(x == 0, 5.0 * x, pb.atan2(x, x * 0.0)),
        [0.0, 2.0],
        [5, 0],
    ),
    "power": (lambda x: pb.where(x > 0, x**0.5, 0.0), [0.0, 4.0], [0, 0.25]),
    "nested": (
        lambda x: pb.where(x > 0, pb.where(x > 1, pb.log(x - 1.0), pb.sqrt(x)), 1.0),
        [-1.0, 0.25, 3.0],
        [0, 1, 0.5],
    ),
    "division by a guarded value": (
        lambda x: pb.where(x > 0, 1.0 / pb.where(x > 0, x, 1.0), 0.0),
        [0.0, -2.0, 2.0],
        [0, 0, -0.25],
    ),
    "asin": (lambda x: pb.where(x * x < 1, pb.asin(x), x), [1.0, -1.0, 0.6], [1, 1, 1.25]),
}


@pytest.mark.parametrize("name", GUARDS)
def test_untaken_branches_give_no_nan(name: str) -> None:
    f, at, expected = GUARDS[name]
    x = t(at)
    assert np.allclose(pb.grad(lambda x: pb.sum(f(x)))(x).numpy(), expected)
    assert np.allclose(pb.jvp(f, x, pb.ones_like(x))[1].numpy(), expected)
    assert np.isfinite(pb.hvp(lambda x: pb.sum(f(x)), x, pb.ones_like(x)).numpy()).all()
    wide = pb.vmap(pb.grad(f))(x)
    assert np.allclose(wide.numpy(), expected)


def test_guards_inside_reductions() -> None:
    """What no winner, no place and no step uses has gradient 0, not 0 times infinity."""
    x = t(0.0, 4.0, 1.0)
    assert np.array_equal(pb.grad(lambda x: pb.max(pb.sqrt(x)))(x).numpy(), [0, 0.25, 0])
    masked = pb.grad(lambda x: pb.sum(pb.where(x > 0, pb.log(x), 0.0)))(x).numpy()
    assert np.array_equal(masked, [0, 0.25, 1])
    smallest = pb.grad(lambda x: pb.min(pb.where(x > 0, 1.0 / x, 9.0)))(x).numpy()
    assert np.array_equal(smallest, [0, -1 / 16, 0])


# --- ties and zeros ------------------------------------------------------------------------------


def test_ties() -> None:
    x = t(2.0, 5.0, 5.0, 1.0, 5.0)
    assert np.array_equal(pb.grad(pb.max)(x).numpy(), [0, 1, 0, 0, 0])
    assert np.allclose(pb.grad(pb.amax)(x).numpy(), [0, 1 / 3, 1 / 3, 0, 1 / 3])
    assert np.array_equal(pb.grad(pb.min)(-x).numpy(), [0, 1, 0, 0, 0])
    assert np.allclose(pb.grad(pb.amin)(-x).numpy(), [0, 1 / 3, 1 / 3, 0, 1 / 3])
    rows = pb.tensor(np.array([[1.0, 1.0], [0.0, 3.0]]))
    for whole in (pb.amax(rows, axis=1), pb.amax(rows, axis=1, keepdims=True)):
        assert np.array_equal(pb.grad(pb.sum(whole), rows).numpy(), [[0.5, 0.5], [0, 1]])
    assert pb.amax(rows, axis=1).shape == (2,)
    assert np.array_equal(pb.amax(rows, axis=0).numpy(), [1, 3])
    infinite = t(-np.inf, -np.inf)
    assert pb.amax(infinite).numpy() == -np.inf
    assert np.array_equal(pb.grad(pb.amax)(infinite).numpy(), [0.5, 0.5])
    assert np.array_equal(pb.grad(pb.max)(infinite).numpy(), [1, 0])
    assert np.isnan(pb.amax(t(1.0, np.nan)).numpy())
    assert pb.amax(pb.tensor(np.array([3, 4]))).dtype == pb.int64
    check(lambda x: pb.amax(x, axis=0) * pb.amin(x, axis=0), draw(1, 4, 3))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_products_with_zeros_are_exact_in_every_order(zeros: int) -> None:
    values = np.array([2.0, -3.0, 0.5, 4.0])
    values[:zeros] = 0
    x = t(values)

    def but(*left_out: int) -> float:
        return float(np.prod([v for n, v in enumerate(values) if n not in left_out]))

    first = pb.grad(pb.prod)
    second = pb.differentiate(first(x), x)  # of a computed gradient: no way back
    assert np.allclose(first(x).numpy(), [but(n) for n in range(4)], rtol=1e-15)
    y = pb.prod(x)
    hessian = pb.differentiate(pb.grad(y, x), x)[0]
    expected = [[0 if m == n else but(m, n) for m in range(4)] for n in range(4)]
    assert np.allclose(hessian.numpy(), expected, rtol=1e-15)
    third = pb.differentiate(hessian, x)[0].numpy()
    cube = np.zeros((4, 4, 4))
    for a in range(4):
        for b in range(4):
            for c in range(4):
                cube[a, b, c] = but(a, b, c) if len({a, b, c}) == 3 else 0
    assert np.allclose(third, cube, rtol=1e-15)
    assert second[0].shape == (4, 4)


@pytest.mark.slow
def test_products_over_several_axes() -> None:
    x = draw(1, 2, 3, 4)
    x[0, 1, 2] = x[1, 0, 0] = x[1, 2, 3] = 0
    for axis in ((1, 2), (0, 2), None):
        check(lambda x, axis=axis: pb.prod(x, axis=axis), x)


# --- scalar functions ----------------------------------------------------------------------------

RANGES = {
    "sin": (-9, 9), "cos": (-9, 9), "tan": (-1.4, 1.4), "exp": (-3, 3), "log": (0.1, 9),
    "sqrt": (0.1, 9), "asin": (-0.99, 0.99), "acos": (-0.99, 0.99), "atan": (-9, 9),
    "sinh": (-3, 3), "cosh": (-3, 3), "tanh": (-3, 3), "asinh": (-9, 9), "acosh": (1.01, 9),
    "atanh": (-0.99, 0.99), "reciprocal": (0.1, 3), "rsqrt": (0.1, 3), "square": (-3, 3),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RANGES)
def test_scalar_functions(name: str) -> None:
    low, high = RANGES[name]
    check(getattr(pb, name), draw(1, 40, low=low, high=high))


@pytest.mark.slow
def test_functions_of_two() -> None:
    x, y = draw(1, 40), draw(2, 40)
    check(pb.atan2, x, y)
    check(lambda a, b: pb.pow(pb.abs(a) + 0.1, b), x, y)
    check(lambda a, b: a * (1.0 - b) + b * b, x, y)
    at = t(1.0, -1.0, 0.0, 0.0)
    dy, dx = gradient(lambda a, b: pb.sum(pb.atan2(a, b)), at, t(1.0, -1.0, 2.0, -2.0))
    assert np.allclose(dy, [0.5, -0.5, 0.5, -0.5])
    assert np.allclose(dx, [-0.5, 0.5, 0, 0])


NUMPY = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
    "acosh": "arccosh", "atanh": "arctanh", "sinh": "sinh", "cosh": "cosh",
    "tan": "tan",
}  # fmt: skip
ULPS = 4  # units in the last place


def distance(found: Array, exact: Array) -> float:
    """How many units in the last place; what is not finite must be the same."""
    rounded = exact.astype(found.dtype)
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True)
    gap = np.abs(found[finite].astype(np.longdouble) - exact[finite])
    return float(np.max(gap / np.spacing(np.abs(rounded[finite]))))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", NUMPY)
def test_accuracy(name: str, kind: Any) -> None:
    rng = np.random.default_rng(0)
    small = rng.uniform(-1, 1, 500) * np.exp(rng.uniform(-30, 0, 500))
    edges = [0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan, 1e9, 3e18]
    wide = rng.uniform(-40, 40, 500)
    edges = edges[:7] if name in ("sinh", "cosh", "tan") else edges
    x = np.concatenate([wide, small, edges]).astype(kind)
    if name == "tan":
        x = np.concatenate([x, np.pi / 2 * rng.integers(-99, 99, 300) + small[:300]]).astype(kind)
    with np.errstate(all="ignore"):
        exact = getattr(np, NUMPY[name])(x.astype(np.longdouble))
    found = getattr(pb, name)(pb.tensor(x)).numpy()
    assert found.dtype == kind
    assert distance(found, exact) < ULPS


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_accuracy_and_signs_of_angles(kind: Any) -> None:
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan])
    y, x = (np.concatenate([g.ravel(), draw(n, 500)]).astype(kind)
            for n, g in enumerate(np.meshgrid(special, special)))  # fmt: skip
    exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    found = pb.atan2(pb.tensor(y), pb.tensor(x)).numpy()
    assert distance(found, exact) < ULPS
    known = ~np.isnan(found)
    assert np.array_equal(np.signbit(found)[known], np.signbit(exact)[known])
    zeros = pb.tensor(np.array([-0.0, 0.0], kind))
    for name in ("asin", "atan", "asinh", "atanh"):
        assert list(np.signbit(getattr(pb, name)(zeros).numpy())) == [True, False]
