"""Maxima and their winners: windows, triangles, running ones; and slopes where two sides meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.grad.forms import picked
from pullback.grad.reverse import gradients
from pullback.ir.graph import Accumulate, Definition, Graph, Variable, topological
from pullback.nn import functional as F
from pullback.schedule.count import cost
from pullback.simplify.graph import simplify_graph
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.sorting import first_of
from test_reductions import INF, NAN, draw, run, slope

Array = np.ndarray[Any, Any]
N = 24


# --- windows -------------------------------------------------------------------------------------


def first_winners(x: Array, head: Array, size: int, step: int) -> Array:
    """The gradient of max pooling, by loops: to the first of equal ones, or the first NaN."""
    found = np.zeros_like(x)
    for place in np.ndindex(head.shape):
        n, c, i, j = place
        part = x[n, c, i * step : i * step + size, j * step : j * step + size]
        gone = np.isnan(part)
        best = np.argmax(gone) if gone.any() else np.argmax(part)
        a, b = np.unravel_index(best, part.shape)
        found[n, c, i * step + a, j * step + b] += head[place]
    return found


WINDOWS = [(2, 2, "gather"), (3, 3, "gather"), (2, 1, "gather"), (3, 2, "write"), (5, 1, "write")]


@pytest.mark.parametrize(("size", "step", "kind"), WINDOWS)
@pytest.mark.parametrize("data", ["plain", "ties", "NaN", "infinite"])
def test_windows(size: int, step: int, kind: str, data: str) -> None:
    x = draw(2, 3, 9, 10)
    x = np.round(x) if data == "ties" else x
    if data == "NaN":
        x[:, :, ::4, 3] = NAN
    if data == "infinite":
        x[:, 1] = -INF
        x[0, 2, 4] = INF
    (y,) = run(lambda x: F.max_pool2d(x, size, step), x)
    head = draw(*y.shape)
    (found,) = run(lambda x, h: pb.differentiate(F.max_pool2d(x, size, step), [x], h)[0], x, head)
    assert np.allclose(found, first_winners(x, head, size, step))


@pytest.mark.parametrize(("size", "step", "kind"), WINDOWS)
def test_overlapping_windows_write_once_for_each(size: int, step: int, kind: str) -> None:
    x = Variable("x", (2, 3, 40, 40), pb.float32)
    y = F.max_pool2d(Tensor(x), size, step).value
    (dx,) = gradients(y, [x], Variable("head", y.shape, y.dtype))
    writes = [d for d in topological([dx]) if isinstance(d.form, Accumulate)]
    assert bool(writes) == (kind == "write")
    for write in writes:
        assert isinstance(write.form, Accumulate)
        assert write.form.domain == y.shape
        # The image and the channel are known: those run in parallel.
        assert write.form.at[:2] == write.axes[:2]


@pytest.mark.slow
def test_a_product_of_matrices_over_max_and_plus() -> None:
    """n^2 writes, not n^3 comparisons; the gradient of the gradient reads where they went."""
    a, b, head = draw(9, 30), draw(30, 8), draw(9, 8)

    def f(a: Any, b: Any) -> Any:
        k = pb.axis(30)
        return pb.compute((9, 8), lambda i, j: pb.max(a[i, k] * b[k, j], over=k))

    da, db = run(lambda a, b, h: pb.differentiate(f(a, b), [a, b], h)[:], a, b, head)
    terms = a[:, :, None] * b[None]
    won = terms == terms.max(1, keepdims=True)
    assert np.allclose(da, (won * head[:, None] * b[None]).sum(2))
    assert np.allclose(db, (won * head[:, None] * a[:, :, None]).sum(0))
    report = pb.check_grads(f, [pb.tensor(a), pb.tensor(b)])
    assert report.passed, str(report)
    plain = pb.compute((9, 30), lambda i, k: pb.tensor(a)[i, k]).max(axis=1).value
    assert isinstance(plain, Definition)
    assert picked(plain) is None


def test_nothing_to_pick_from() -> None:
    def f(x: Any) -> Any:
        k = pb.axis(9)
        return pb.compute((0, 4), lambda i, j: pb.max(x[i, j + k], over=k))

    assert slope(f, np.zeros((0, 12))).shape == (0, 12)


# --- triangles -----------------------------------------------------------------------------------

EDGES: dict[str, Callable[[Any, Any], Any]] = {
    "k <= i": lambda k, i: k <= i,
    "k < i": lambda k, i: k < i,
    "k >= i": lambda k, i: k >= i,
    "k > i + 3": lambda k, i: k > i + 3,
    "k <= i + 3": lambda k, i: k <= i + 3,
}
KINDS: dict[str, tuple[Any, Any, float]] = {
    "max": (pb.max, np.max, -INF), "min": (pb.min, np.min, INF), "prod": (pb.prod, np.prod, 1.0),
}  # fmt: skip


def over(kind: str, edge: str) -> Callable[[Any], Any]:
    reduce, _, nothing = KINDS[kind]

    def f(x: Any) -> Any:
        k = pb.axis(N)
        return pb.compute(
            (N,), lambda i: reduce(pb.where(EDGES[edge](k, i), x[k], nothing), over=k)
        )

    return f


def by_loops(kind: str, edge: str, x: Array) -> tuple[Array, Array]:
    """Values, and the matrix of derivatives ``d y[i] / d x[k]``."""
    _, combine, nothing = KINDS[kind]
    values, slopes = np.empty(N), np.zeros((N, N))
    for i in range(N):
        inside = np.array([bool(EDGES[edge](k, i)) for k in range(N)])
        terms = np.where(inside, x, nothing)
        values[i] = combine(terms)
        if kind == "prod":
            for k in np.flatnonzero(inside):
                slopes[i, k] = np.prod(np.delete(terms, k))
        elif inside.any():
            gone = np.isnan(terms)
            best = np.argmax(gone) if gone.any() else np.argmax(terms == values[i])
            slopes[i, best] = inside[best]
    return values, slopes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kind", KINDS)
def test_triangles(kind: str, edge: str) -> None:
    x, head, v = draw(N), draw(N, 1)[:, 0], draw(1, N)[0]
    cases = [x, np.round(2 * x), np.where(np.arange(N) % 9 == 4, NAN, x)]
    cases = [x, np.where(np.arange(N) % 9 == 4, 0, x)] if kind == "prod" else cases
    f = over(kind, edge)
    for data in cases:
        values, slopes = by_loops(kind, edge, data)
        assert np.allclose(run(f, data)[0], values, equal_nan=True)
        (found,) = run(lambda x, h: pb.differentiate(f(x), [x], h)[0], data, head)
        assert np.allclose(found, head @ slopes)
        moved = run(lambda x, v: pb.jvp(f, x, v)[1], data, v)[0]
        assert np.allclose(moved, slopes @ v)


@pytest.mark.parametrize("kind", KINDS)
def test_a_triangle_takes_linear_work(kind: str) -> None:
    n = 400
    reduce, _, nothing = KINDS[kind]
    x, k = Variable("x", (n,), pb.float64), pb.axis(n)
    y = pb.compute((n,), lambda i: reduce(pb.where(k <= i, Tensor(x)[k], nothing), over=k)).value
    (dx,) = gradients(y, [x], Variable("head", (n,), y.dtype))
    for value in (y, dx):
        made = simplify_graph(Graph(((Variable("g", (n,), y.dtype), value),)))
        assert cost(made.definitions).executed < 40 * n


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_triangle_in_both_orders(kind: str) -> None:
    report = pb.check_grads(over(kind, "k <= i"), [pb.tensor(1 + 0.1 * draw(N))])
    assert report.passed, str(report)


# --- running maxima, and where two sides meet ----------------------------------------------------


def test_running_winners_are_the_last() -> None:
    """As PyTorch's `cummax` and `cummin`: of equal ones the last, and every NaN anew."""
    head = np.arange(1.0, 9)
    cases: list[tuple[list[float], list[float]]] = [
        ([1, 3, 3, 2, 3, 5, 5, 1], [1, 2, 7, 0, 5, 6, 15, 0]),
        ([1, NAN, 3, NAN, 9, 9, 0, 0], [1, 5, 0, 30, 0, 0, 0, 0]),
        ([-INF, -INF, INF, INF, 0, 0, 0, INF], [1, 2, 3, 22, 0, 0, 0, 8]),
    ]
    for x, wanted in cases:
        data = np.array(x, float)
        for f, sign in ((pb.cumulative_max, 1), (pb.cumulative_min, -1)):
            args = data * sign, head
            (found,) = run(lambda x, h, f=f: pb.differentiate(f(x), [x], h)[0], *args)
            assert found.tolist() == wanted


@pytest.mark.torch
def test_running_winners_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for _ in range(4):
        x = rng.integers(-3, 4, 30).astype(float)
        x[rng.integers(0, 30, 2)] = rng.choice([NAN, INF, -INF])
        head = rng.standard_normal(30)
        for f, g in ((pb.cumulative_max, torch.cummax), (pb.cumulative_min, torch.cummin)):
            t = torch.tensor(x, requires_grad=True)
            (wanted,) = torch.autograd.grad(g(t, 0)[0], t, torch.tensor(head))
            (found,) = run(lambda x, h, f=f: pb.differentiate(f(x), [x], h)[0], x, head)
            assert np.allclose(found, wanted.numpy())


def test_slopes_where_two_sides_meet() -> None:
    x = np.array([0.0, -0.0, 2.0, -2.0, NAN, INF])
    assert slope(pb.abs, x).tolist() == [0, 0, 1, -1, 0, 1]
    (found,) = run(lambda x, h: pb.differentiate(pb.abs(x), [x], h)[0], x, np.full(6, 3.0))
    assert found.tolist() == [0, 0, 3, -3, 0, 3]
    same = np.array([0.0, 1.5, -700.0])
    for n in (0, 1):
        both = run(pb.grad(lambda a, b: pb.sum(pb.logaddexp(a, b)), argnums=n), same, same)
        assert both[0].tolist() == [0.5] * 3
    twice = pb.grad(lambda x: pb.sum(pb.grad(lambda x: pb.sum(pb.abs(x) ** 3))(x)))
    assert np.allclose(run(twice, np.array([0.0, 2.0, -2.0]))[0], [0, 12, 12])
    assert slope(F.softsign, [0.0]).tolist() == [1]


def test_writes_are_the_same_in_two_threads() -> None:
    x, head = draw(4, 8, 33, 33), draw(4, 8, 16, 16)

    def f(x: Any, h: Any) -> Any:
        return pb.differentiate(F.max_pool2d(x, 3, 2), [x], h)[0]

    options = replace(pb.Options.from_environment(), threads=1)
    one, two = (
        pb.jit(f, options=replace(options, threads=n))(pb.tensor(x), pb.tensor(head)).numpy()
        for n in (1, 2)
    )
    assert np.array_equal(one, two)


def test_reads_of_repeated_elements() -> None:
    """Those of a branch are masked only where they may lie outside."""
    half, x = draw(16), draw(64)

    def f(h: Any, x: Any, places: int) -> Any:
        return pb.compute((64,), lambda i: pb.where((x[i] > 0) & (i < places), h[i // 2 % 32], 0.0))

    (found,) = run(lambda h, x: f(h, x, 32), half, x)
    inside = (x > 0) & (np.arange(64) < 32)
    assert np.array_equal(found, np.where(inside, np.repeat(np.append(half, half), 2), 0))
    masked = []
    for size in (16, 32):
        program = pb.jit(lambda h, x: f(h, x, 32))
        program(pb.tensor(draw(size)), pb.tensor(x))
        masked.append("masked.load" in str(program.program.source()))
    assert masked == [True, False]


# --- the largest few, and all in order -----------------------------------------------------------


def ordered(x: Array, largest: bool) -> Array:
    """Places along the last axis, stable, NaN last."""
    gone = np.isnan(x)
    return np.lexsort((np.where(gone, 0, -x if largest else x), gone), axis=-1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("data", ["ties", "NaN", "infinite", "all NaN", "integers"])
def test_the_largest_few(data: str, largest: bool) -> None:
    x = np.round(draw(3, 90) * 4)
    if data in ("NaN", "all NaN"):
        x[:, 4 if data == "NaN" else 1 :] = NAN
    if data == "infinite":
        x[0], x[1], x[2, ::7] = -INF, INF, -INF
    wanted = ordered(x, largest)[:, :5]
    given = x.astype(np.int32) if data == "integers" else x
    values, places = run(lambda x: pb.topk(x, 5, axis=1, largest=largest), given)
    assert np.array_equal(places, wanted)
    assert np.array_equal(values, np.take_along_axis(given, wanted, 1), equal_nan=True)
    (down,) = run(lambda x: pb.topk(x, 5, axis=0, largest=largest)[1], given.T)
    assert np.array_equal(down, wanted.T)


@pytest.mark.parametrize("nan_first", [False, True])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_few_of_equal_ones_are_the_first(kind: str, largest: bool, nan_first: bool) -> None:
    """Rows of both ends, zeros of both signs and NaN, some with fewer numbers than asked for."""
    low, high = (-INF, INF) if kind == "float32" else (-(2**31), 2**31 - 1)
    drawn = np.random.default_rng(7).integers(0, 6, (60, 11))
    drawn[:7, 2:] = 5
    x = np.array([low, high, -0.0, 0, 1, NAN if kind == "float32" else 2])[drawn]
    gone = np.isnan(x)
    by_value = np.where(gone, 0, -x if largest else x)
    wanted = np.lexsort((by_value, ~gone if nan_first else gone), axis=-1)

    def few(x: Any, k: int) -> Any:
        return Tensor(first_of(x.value, 1, k, largest, nan_first=nan_first))

    for k in (1, 5):
        assert np.array_equal(run(partial(few, k=k), x.astype(kind))[0], wanted[:, :k])


def test_the_gradient_of_the_largest_few() -> None:
    x, head = draw(2, 80), draw(2, 4)
    (found,) = run(lambda x, h: pb.differentiate(pb.topk(x, 4, axis=1)[0], [x], h)[0], x, head)
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, ordered(x, True)[:, :4], head, 1)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("size", [257, 512, 700])
def test_a_long_axis_in_order(size: int) -> None:
    x = np.round(draw(2, size) * 20)
    x[0, ::50] = NAN
    x[1, 7] = INF
    for down in (False, True):
        places = pb.argsort(pb.tensor(x), descending=down)
        assert np.array_equal(places.numpy(), ordered(x, down))
        inside = pb.jit(lambda x, down=down: pb.argsort(x, axis=0, descending=down))
        assert np.array_equal(inside(pb.tensor(x.T)).numpy(), ordered(x, down).T)
    extreme = np.array([[2**31 - 1, -(2**31)] * (size // 2)], np.int32)
    assert np.array_equal(pb.sort(pb.tensor(extreme)).numpy(), np.sort(extreme))


def test_the_second_order_of_a_product_takes_linear_work() -> None:
    n, x = 500, pb.tensor(np.append(0.0, np.ones(499)))

    def curved(x: Any) -> Any:
        return pb.hvp(pb.prod, x, pb.ones_like(x))

    program = pb.jit(curved)
    assert np.array_equal(program(x).numpy(), [n - 1.0] + [1.0] * (n - 1))
    assert program.program.cost.executed < 25 * n


@pytest.mark.sampled(6)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("data", ["few values", "across", "NaN", "all NaN", "infinite", "integers"])
@pytest.mark.parametrize("size", [1000, 997, 3001])
def test_the_largest_few_out_of_blocks(data: str, largest: bool, size: int) -> None:
    """Ties within blocks and across them, blocks of nothing but NaN, what is behind the last."""
    x = np.round(draw(4, size) * 2)
    if data == "NaN":
        x[1, 60:], x[2, : size // 2], x[3, ::3] = NAN, NAN, NAN
    if data == "across":  # equal ones, of which the later stands in the better block
        sign = 1 if largest else -1
        x[:], x[:, 100], x[:, 900], x[:, 901] = 0, sign, 3 * sign, sign
    if data == "all NaN":
        x[0], x[1, 3:], x[2, :-2] = NAN, NAN, NAN
    if data == "infinite":
        x[0], x[1], x[2, ::7], x[3, 5:] = -INF, INF, -INF, NAN
        x[3, 40] = -INF if largest else INF
    given = x.astype(np.int32) if data == "integers" else x
    for k in (3, 8):
        wanted = ordered(x, largest)[:, :k]
        made = pb.jit(lambda x, k=k: pb.topk(x, k, axis=1, largest=largest))
        values, places = (r.numpy() for r in made(pb.tensor(given)))
        stages = [s.target.name for kernel in made.program.kernels for s in kernel.every]
        assert "candidates" in stages, "blocks are looked at"
        assert np.array_equal(places, wanted)
        assert np.array_equal(values, np.take_along_axis(given, wanted, 1), equal_nan=True)
        (down,) = run(lambda x, k=k: pb.topk(x, k, axis=0, largest=largest)[1], given.T)
        assert np.array_equal(down, wanted.T)


def test_the_few_largest_of_blocks_have_a_gradient() -> None:
    x, head = draw(3, 2000), draw(3, 5)
    (slope,) = run(lambda x, h: pb.grad(pb.topk(x, 5, axis=1)[0], [x], head=h), x, head)
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, ordered(x, True)[:, :5], head, 1)
    assert np.array_equal(slope, wanted)
