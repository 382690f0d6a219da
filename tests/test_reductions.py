"""Reductions and scans: both orders of derivatives, ties, zeros, infinities, NaN, nothing, work.

Every value is computed twice: by compiled code and by the interpreter of definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]
INF, NAN = float("inf"), float("nan")
NATIVE = replace(pb.Options.from_environment(), threads=1)
REFERENCE = replace(NATIVE, backend="reference")
SIZES = ("contiguous", "transposed", "size 0", "size 1")


def draw(*shape: int, low: float = -1.5, high: float = 1.5) -> Array:
    return np.random.default_rng(sum(shape)).uniform(low, high, shape)


def run(f: Callable[..., Any], *arrays: Any) -> list[Array]:
    """What `f` makes of arrays, from compiled code; the interpreter must agree."""
    with np.errstate(all="ignore"):
        found = [pb.jit(f, options=o)(*map(np.asarray, arrays)) for o in (NATIVE, REFERENCE)]
    native, reference = (list(r) if isinstance(r, tuple | list) else [r] for r in found)
    for a, b in zip(native, reference, strict=True):
        assert np.allclose(a, b, rtol=1e-12, atol=1e-14, equal_nan=True)
    return [np.asarray(a) for a in native]


def slope(f: Callable[..., Any], x: Any, head: Any = None) -> Array:
    """The gradient of the sum of ``f(x) * head`` at `x`."""
    factor = 1.0 if head is None else pb.tensor(np.asarray(head, np.float64))

    def weighted(x: Any) -> Any:
        return pb.sum(f(x) * factor)

    return run(pb.grad(weighted), np.asarray(x, np.float64))[0]


# --- functions of tuples -------------------------------------------------------------------------


def larger(a: Any, b: Any) -> Any:
    """(value, place) pairs; of equal ones the earlier."""
    later = b[0] > a[0]
    return pb.where(later, b[0], a[0]), pb.where(later, b[1], a[1])


def two_largest(a: Any, b: Any) -> Any:
    first, other = pb.maximum(a[0], b[0]), pb.minimum(a[0], b[0])
    return first, pb.maximum(other, pb.maximum(a[1], b[1]))


def exponents(a: Any, b: Any) -> Any:
    """(m, sum of exp(x - m)): a softmax that is not done twice."""
    m = pb.maximum(a[0], b[0])
    return m, a[1] * pb.exp(a[0] - m) + b[1] * pb.exp(b[0] - m)


def welford(a: Any, b: Any) -> Any:
    """(n, mean, sum of squares about the mean)"""
    n = a[0] + b[0]
    away = b[1] - a[1]
    return n, a[1] + away * b[0] / n, a[2] + b[2] + away * away * a[0] * b[0] / n


def matrices(a: Any, b: Any) -> Any:
    """``A @ B`` of 2 x 2: associative, not commutative."""
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
    )


def rows(combine: Any, identity: Any, values: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """``out[i] = reduce over k of values(x[i, k], k)``"""

    def reduced(x: Any) -> Any:
        k = pb.axis(x.shape[1])
        return pb.compute(
            (x.shape[0],), lambda i: pb.reduce(combine, identity, values(x[i, k], k), over=k)
        )

    return reduced


def second(f: Callable[[Any], Any], number: int) -> Callable[[Any], Any]:
    return lambda x: f(x)[number]


PAIR = rows(larger, (-INF, 0), lambda v, k: (v, k))
TWO = rows(two_largest, (-INF, -INF), lambda v, k: (v, v * 0.0 - INF))
WELFORD = rows(welford, (0.0, 0.0, 0.0), lambda v, k: (v * 0.0 + 1.0, v, v * 0.0))
ONLINE = rows(exponents, (-INF, 0.0), lambda v, k: (v, v * 0.0 + 1.0))
CHAIN = rows(matrices, (1.0, 0.0, 0.0, 1.0), lambda v, k: (v, 1.0 - v, v * v, pb.sin(v)))


def online_lse(x: Any) -> Any:
    m, s = ONLINE(x)
    return m + pb.log(s)


def scan(combine: Any, *parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: pb.associative_scan(combine, tuple(p(x) for p in parts), axis=1)


SMOOTH: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: pb.sum(x * x, 1),
    "mean": lambda x: pb.mean(x * x, 1, keepdims=True),
    "prod": lambda x: pb.prod(x, 1),
    "prod of all": pb.prod,
    "max": lambda x: pb.max(x, 1),
    "min": lambda x: pb.min(x, 0),
    "amax": lambda x: pb.amax(x, 1),
    "amin": lambda x: pb.amin(x),
    "var": lambda x: pb.var(x, 1, correction=1),
    "std": lambda x: pb.std(x * x, 1, keepdims=True),
    "logsumexp": lambda x: pb.logsumexp(x, 1),
    "largest three": lambda x: pb.topk(x, 1 if x.shape[0] == 1 else 3, axis=1)[0],
    "cumulative sum": lambda x: pb.cumulative_sum(x * x, 1),
    "from nothing": lambda x: pb.cumulative_sum(x * x, 1, include_initial=True),
    "cumulative prod": lambda x: pb.cumulative_prod(x, 1, include_initial=True),
    "cumulative max": lambda x: pb.cumulative_max(x, 1),
    "cumulative min": lambda x: pb.cumulative_min(x, 0),
    "cumulative logsumexp": lambda x: pb.cumulative_logsumexp(x, 1),
    "recurrence": lambda x: (
        pb.linear_recurrence(x, pb.sin(x), x[0], axis=1, reverse=True)
        if x.shape[0] == x.shape[1]
        else pb.linear_recurrence(x, pb.sin(x), axis=1)
    ),
    "pair": second(PAIR, 0),
    "second largest": second(TWO, 1),
    "welford": second(WELFORD, 2),
    "online logsumexp": online_lse,
    "matrix chain": second(CHAIN, 1),
    "matrix scan": lambda x: scan(matrices, *(lambda x, c=c: x + c for c in range(4)))(x)[2],
}


@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_both_orders(name: str) -> None:
    report = pb.check_grads(SMOOTH[name], [draw(5, 7)], layouts=SIZES, tolerance=3e-6)
    assert report.passed, report


# --- values --------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 13, 33])
def test_tuples_are_combined_in_order(length: int) -> None:
    x = draw(3, length)
    best, place = run(PAIR, x)
    assert np.array_equal(place, x.argmax(1))
    assert np.array_equal(best, x.max(1))
    parts = np.stack([x, 1 - x, x * x, np.sin(x)], -1).reshape(3, length, 2, 2)
    found = np.stack(run(CHAIN, x), -1).reshape(3, 2, 2)
    scanned = run(lambda x: scan(matrices, *MATRIX)(x), x)
    whole = np.stack(scanned, -1).reshape(3, length, 2, 2)
    product = np.broadcast_to(np.eye(2), (3, 2, 2))
    for t in range(length):
        product = product @ parts[:, t]
        assert np.allclose(whole[:, t], product)
    assert np.allclose(found, product)


MATRIX: list[Callable[[Any], Any]] = [lambda x: x, lambda x: 1.0 - x, lambda x: x * x, pb.sin]


@pytest.mark.parametrize("length", [1, 2, 3, 6, 9])
def test_gradients_of_every_small_length(length: int) -> None:
    """``sum over t of x[0] .. x[t]`` as an affine reduction, of a row of a matrix."""
    x = draw(4, 9)[:, :length]

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[0] * b[1] + a[1]

    def f(x: Any) -> Any:
        k = pb.axis(length)
        pair = (x[3, k], x[3, k])
        return pb.compute((), lambda: pb.reduce(combine, (1.0, 0.0), pair, over=k)[1])

    row = x[3]
    until = [[np.prod(np.delete(row[: t + 1], u)) for t in range(u, length)] for u in range(length)]
    found = pb.grad(f)(pb.tensor(x)).numpy()
    assert np.allclose(found[3], [sum(u) for u in until])
    assert not found[:3].any()


def test_welford_and_online_logsumexp() -> None:
    x = draw(4, 11) * 30
    n, mean, squares = run(WELFORD, x)
    assert np.array_equal(n, np.full(4, 11.0))
    assert np.allclose(mean, x.mean(1))
    assert np.allclose(squares / 11, x.var(1))
    assert np.allclose(run(online_lse, x)[0], np.logaddexp.reduce(x, 1))


def test_variance_far_from_zero() -> None:
    x = (draw(3, 9) + 1e7).astype(np.float64)
    assert np.allclose(run(lambda x: pb.var(x, 1), x)[0], x.var(1), rtol=1e-9)
    assert np.allclose(slope(lambda x: pb.var(x, 1), x), 2 * (x - x.mean(1)[:, None]) / 9)


def test_over_several_axes_row_by_row() -> None:
    x = draw(3, 4, 5)

    def f(x: Any) -> Any:
        a, b = pb.axis(4), pb.axis(5)
        values = (x[0, a, b], a * 5 + b)
        return pb.compute((), lambda: pb.reduce(larger, (-INF, -1), values, over=(a, b)))

    best, place = run(f, x)
    assert place == x[0].argmax()
    assert best == x[0].max()


def test_parameters_inside_the_function() -> None:
    """``(s, w) . (t, v) = (s + w[i] t ..)``: what combines may use outer axes and tensors."""
    x, w = draw(4, 6), draw(4)

    def f(x: Any, w: Any) -> Any:
        k = pb.axis(6)

        def joined(i: Any) -> Any:
            def combine(a: Any, b: Any) -> Any:
                return a + b + w[i] * a * b

            return pb.reduce(combine, 0.0, x[i, k], over=k)

        return pb.compute((4,), joined)

    whole = (np.prod(1 + w[:, None] * x, 1) - 1) / w
    assert np.allclose(run(f, x, w)[0], whole)
    assert pb.check_grads(f, [x, w], layouts=("contiguous",)).passed


def test_under_a_guard_nothing_outside_is_read() -> None:
    x, w = draw(4, 6), draw(4)

    def f(x: Any, w: Any) -> Any:
        k = pb.axis(6)

        def body(i: Any) -> Any:
            def combine(a: Any, b: Any) -> Any:
                return a + b + w[i] * a * b

            return pb.where(i < 4, pb.reduce(combine, 0.0, x[i, k], over=k), -1.0)

        return pb.compute((6,), body)

    found = run(f, x, w)[0]
    assert np.array_equal(found[4:], [-1, -1])
    assert np.allclose(found[:4], (np.prod(1 + w[:, None] * x, 1) - 1) / w)
    assert pb.check_grads(f, [x, w], layouts=("contiguous",)).passed


def test_reductions_in_a_reduction() -> None:
    x = draw(3, 4, 5)

    def f(x: Any) -> Any:
        k, m = pb.axis(4), pb.axis(5)

        def row(i: Any) -> Any:
            total = pb.sum(x[i, k, m], over=m)
            return pb.sum(pb.reduce(larger, (-INF, 0), (total, k), over=k)[0] + x[i, 0, m], over=m)

        return pb.compute((3,), row)

    assert np.allclose(run(f, x)[0], x.sum(2).max(1) * 5 + x[:, 0].sum(1))
    assert pb.check_grads(f, [x], layouts=("contiguous",)).passed


def test_a_named_extent() -> None:
    n = pb.dim("n", 0, 21)

    def f(x: Any) -> Any:
        k = pb.axis(x.shape[0])
        pair = pb.compute((), lambda: pb.reduce(larger, (-INF, -1), (x[k], k), over=k))
        return (*pair, pb.linear_recurrence(x, x), pb.linear_recurrence(x, x, reverse=True))

    for options in (NATIVE, REFERENCE):
        made = pb.jit(f, shapes=[(n,)], options=options)
        for size in (21, 1, 2, 13, 16, 0):
            x = draw(size)
            best, place, h, back = (r.numpy() for r in made(x))
            assert place == (x.argmax() if size else -1)
            assert best == (x.max() if size else -INF)
            assert np.allclose(h, recurrence(x, x))
            assert np.allclose(back, recurrence(x[::-1], x[::-1])[::-1])
        assert made.traces == 1


def recurrence(a: Array, b: Array, state: Any = 0.0) -> Array:
    found = []
    for x, y in zip(a, b, strict=True):
        state = x * state + y
        found.append(state)
    return np.array(found)


def test_linear_recurrences() -> None:
    a, b, h = draw(9, 4), draw(9, 1), draw(4)
    assert np.allclose(run(pb.linear_recurrence, a, b)[0], recurrence(a, b * np.ones(4)))
    assert np.allclose(run(pb.linear_recurrence, a, b, h)[0], recurrence(a, b * np.ones(4), h))
    by_row = run(lambda a, b: pb.linear_recurrence(a, b, axis=1, reverse=True), a, b)[0]
    assert np.allclose(by_row[:, ::-1].T, recurrence(a[:, ::-1].T, np.tile(b.T, (4, 1))))
    assert pb.check_grads(pb.linear_recurrence, [a, b, h], layouts=("contiguous",)).passed


def test_a_recurrence_is_exact_at_zeros() -> None:
    a, b = np.array([2.0, 0, 3, 0, 5]), np.array([1.0, 2, 3, 4, 5])
    h = recurrence(a, b)
    r = recurrence(np.append(0, a[:0:-1]), np.ones(5))[::-1]
    da, db = run(pb.grad(lambda a, b: pb.sum(pb.linear_recurrence(a, b)), argnums=(0, 1)), a, b)
    assert np.array_equal(db, r)
    assert np.array_equal(da, r * np.append(0, h[:-1]))


# --- sums that are sums --------------------------------------------------------------------------


def work(f: Callable[..., Any], *arrays: Any) -> int:
    """Iterations that the compiled program executes."""
    made = pb.jit(f, options=NATIVE)
    made(*map(np.asarray, arrays))
    return int(made.program.cost.executed)


PLAIN: dict[str, tuple[Any, Any, Any]] = {
    "sum": (lambda a, b: b + a, 0.0, np.sum),
    "product": (lambda a, b: a * b, 1.0, np.prod),
    "maximum": (pb.maximum, -INF, np.max),
    "minimum": (pb.minimum, INF, np.min),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_function_that_is_a_combiner_is_reduced_by_it(name: str) -> None:
    combine, identity, wanted = PLAIN[name]
    x = draw(4, 100)

    def f(x: Any) -> Any:
        k = pb.axis(100)
        return pb.compute((4,), lambda i: pb.reduce(combine, identity, x[i, k], over=k))

    assert np.allclose(run(f, x)[0], wanted(x, 1))
    assert work(f, x) <= 420


def test_the_range_of_a_parameter_decides_what_a_function_is() -> None:
    """``m < 0 ? x + y : x * y`` is a sum where m < 0 is known."""
    x = draw(5, 40)

    def f(x: Any) -> Any:
        k = pb.axis(40)

        def row(i: Any) -> Any:
            return pb.reduce(lambda a, b: pb.where(i - 5 < 0, a + b, a * b), 0.0, x[i, k], over=k)

        return pb.compute((5,), row)

    assert np.allclose(run(f, x)[0], x.sum(1))
    assert work(f, x) == 200


def test_a_component_that_is_a_sum_is_summed_alone() -> None:
    x = draw(3, 64)

    def f(x: Any, number: int) -> Any:
        k = pb.axis(64)

        def both(a: Any, b: Any) -> Any:
            return a[0] + b[0], a[0] + b[0] + a[1] + b[1]

        return pb.compute(
            (3,), lambda i: pb.reduce(both, (0.0, 0.0), (x[i, k], x[i, k]), over=k)[number]
        )

    assert work(lambda x: f(x, 0), x) == 192
    assert np.allclose(run(lambda x: f(x, 0), x)[0], x.sum(1))
    assert work(lambda x: f(x, 1), x) > 192


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["recurrence", "pair", "logsumexp", "prod", "cumulative prod"])
def test_work_is_linear_forward_and_backward(name: str) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "recurrence": lambda x: pb.linear_recurrence(x, x, axis=1),
        "pair": second(PAIR, 0),
        "logsumexp": lambda x: pb.cumulative_logsumexp(x, 1),
        "prod": lambda x: pb.prod(x, 1),
        "cumulative prod": lambda x: pb.cumulative_prod(x, 1),
    }
    f = functions[name]
    gradient = pb.grad(lambda x: pb.sum(f(x)))
    for g, most in ((f, 10), (gradient, 27)):
        small, large = (work(g, draw(1, n)) for n in (32, 128))
        assert large <= most * 128
        assert large <= 4.3 * small


# --- ties, zeros, infinities, NaN, nothing -------------------------------------------------------


def test_ties() -> None:
    x = np.array([[2.0, 5, 5, 1], [3, 3, 3, 3]])
    first = [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert np.array_equal(slope(lambda x: pb.max(x, 1), x), first)
    assert np.array_equal(slope(lambda x: pb.min(x, 1), -x), first)
    even = [[0, 0.5, 0.5, 0], [0.25] * 4]
    assert np.array_equal(slope(lambda x: pb.amax(x, 1), x), even)
    assert np.array_equal(slope(lambda x: pb.amin(x, 1), -x), even)
    assert np.array_equal(slope(second(PAIR, 0), x), first)
    assert np.array_equal(run(lambda x: pb.argmax(x, 1), x)[0], [1, 0])
    largest = slope(lambda x: pb.topk(x, 2, axis=1)[0], x, [[1.0, 10.0]])
    assert np.array_equal(largest, [[0, 1, 10, 0], [1, 10, 0, 0]])
    running = slope(lambda x: pb.cumulative_max(x, 1), x)
    assert np.array_equal(running, [[1, 1, 2, 0], [1, 1, 1, 1]])
    assert np.array_equal(slope(lambda x: pb.cumulative_min(x, 1), -x), running)


@pytest.mark.parametrize("zeros", [(), (2,), (0, 3), (0, 1, 2, 3, 4)])
def test_products_with_zeros(zeros: tuple[int, ...]) -> None:
    x = np.array([2.0, -3.0, 0.5, 4.0, -1.0])
    x[list(zeros)] = 0
    others = [np.prod(np.delete(x, n)) for n in range(5)]
    assert np.array_equal(slope(pb.prod, x), others)
    until = [sum(np.prod(np.delete(x[: t + 1], u)) for t in range(u, 5)) for u in range(5)]
    assert np.allclose(slope(lambda x: pb.cumulative_prod(x), x), until, rtol=1e-15)
    twice = run(lambda x: pb.grad(lambda x: pb.grad(pb.prod)(x)[1])(x), x)[0]
    assert np.array_equal(twice, [0 if n == 1 else np.prod(np.delete(x, [1, n])) for n in range(5)])


def test_nothing_but_minus_infinity() -> None:
    x = np.full((2, 3), -INF)
    for f in (pb.max, pb.logsumexp):
        assert np.array_equal(run(lambda x, f=f: f(x, 1), x)[0], [-INF, -INF])
    assert np.array_equal(slope(lambda x: pb.max(x, 1), x), [[1, 0, 0]] * 2)
    assert np.allclose(slope(lambda x: pb.amax(x, 1), x), 1 / 3)
    assert np.array_equal(run(lambda x: pb.cumulative_logsumexp(x, 1), x)[0], x)
    for f in (pb.logsumexp, pb.cumulative_logsumexp):
        assert np.array_equal(slope(lambda x, f=f: f(x, 1), x), np.zeros((2, 3)))
    assert np.array_equal(run(PAIR, x)[1], [0, 0])


def test_infinities_among_numbers() -> None:
    x = np.array([-INF, 1.0, -INF, 700.0, 2.0, INF, -3.0])
    found = run(pb.cumulative_logsumexp, x)[0]
    with np.errstate(all="ignore"):
        assert np.allclose(found, np.logaddexp.accumulate(x))
    finite = slope(pb.cumulative_logsumexp, x[:5])
    assert np.allclose(finite, [0, 2, 0, 2, 0])
    assert np.allclose(slope(pb.logsumexp, x[:5]), [0, 0, 0, 1, 0])
    large = np.array([1000.0, 1001.0, -1000.0])
    assert np.allclose(run(pb.cumulative_logsumexp, large)[0], np.logaddexp.accumulate(large))


def test_nan_is_not_lost() -> None:
    x = np.array([1.0, NAN, 3.0, NAN, 0.5])
    for f in (pb.sum, pb.prod, pb.max, pb.min, pb.amax, pb.mean, pb.var, pb.std, pb.logsumexp):
        assert np.isnan(run(f, x)[0]), f
    running = (pb.cumulative_sum, pb.cumulative_max, pb.cumulative_min, pb.cumulative_logsumexp)
    for g in (*running, pb.cumulative_prod, lambda x: pb.linear_recurrence(x, x)):
        assert np.array_equal(np.isnan(run(g, x)[0]), [False, True, True, True, True])
    assert run(pb.argmax, x)[0] == 1
    assert np.array_equal(slope(pb.max, x), [0, 1, 0, 0, 0])
    assert np.array_equal(slope(lambda x: pb.cumulative_max(x), x), [1, 2, 0, 2, 0])


def test_the_deviation_of_equal_numbers() -> None:
    x = np.full((2, 3), 0.5)
    assert np.array_equal(slope(lambda x: pb.std(x, 1), x), np.zeros((2, 3)))
    assert np.isnan(run(lambda x: pb.std(x[0, :1], correction=1), x)[0])


def test_over_nothing() -> None:
    x = np.zeros((3, 0))
    wanted = {pb.sum: 0, pb.prod: 1, pb.logsumexp: -INF}
    for f, value in wanted.items():
        assert np.array_equal(run(lambda x, f=f: f(x, 1), x)[0], [value] * 3)
        assert slope(lambda x, f=f: f(x, 1), x).shape == (3, 0)
    assert np.isnan(run(lambda x: pb.mean(x, 1), x)[0]).all()
    assert run(lambda x: pb.any(x, 1), x)[0].sum() == 0
    assert run(lambda x: pb.all(x, 1), x)[0].sum() == 3
    best, place = run(rows(larger, (-INF, -1), lambda v, k: (v, k)), x)
    assert np.array_equal(place, [-1] * 3)
    assert np.array_equal(best, [-INF] * 3)
    for f in (pb.max, pb.min, pb.amax, pb.argmax, pb.argmin):
        with pytest.raises(ShapeError, match="no elements"):
            f(pb.tensor(x), 1)
    for g in (pb.cumulative_sum, pb.cumulative_logsumexp, pb.cumulative_max):
        assert run(lambda x, g=g: g(x, 1), x)[0].shape == (3, 0)
    assert run(lambda x: pb.linear_recurrence(x, x, axis=1), x)[0].shape == (3, 0)
    from_one = run(lambda x: pb.cumulative_prod(x, 1, include_initial=True), x)[0]
    assert np.array_equal(from_one, np.ones((3, 1)))


def test_integers_and_truths() -> None:
    x = np.array([[3, 1, 2], [0, 0, 5]], np.int32)
    assert np.array_equal(run(lambda x: pb.cumulative_min(x, 1), x)[0], [[3, 1, 1], [0, 0, 0]])
    assert np.array_equal(run(PAIR_OF_INTEGERS, x)[1], [0, 2])
    logs = run(lambda x: pb.cumulative_logsumexp(x, 1), x)[0]
    assert logs.dtype == np.float32
    assert np.allclose(logs, np.logaddexp.accumulate(x.astype(float), 1))
    value, place = run(lambda x: pb.topk(x, 2, axis=1), x)
    assert np.array_equal(value, [[3, 2], [5, 0]])
    assert np.array_equal(place, [[0, 2], [2, 0]])
    both = run(rows(lambda a, b: a & b, True, lambda v, k: v > 0), x)[0]
    assert np.array_equal(both, [True, False])


PAIR_OF_INTEGERS = rows(larger, (-1, 0), lambda v, k: (v, k))


def test_wrong_functions_are_refused() -> None:
    x = pb.tensor(draw(5))
    k = pb.axis(5)

    def reduced(combine: Any, identity: Any, values: Any) -> Any:
        return pb.compute((), lambda: pb.reduce(combine, identity, values, over=k))

    with pytest.raises(ShapeError, match="2 values are combined"):
        reduced(lambda a, b: a, (0.0, 0), (x[k], k))
        reduced(lambda a, b: (a[0],), (0.0, 0), (x[k], k))
    with pytest.raises(ShapeError, match="identity of 1"):
        reduced(larger, (0.0,), (x[k], k))
    with pytest.raises(DTypeError, match="int64 values are combined to float32"):
        reduced(lambda a, b: (a[0], a[1] + 0.5), (0.0, 0), (x[k], k))
    with pytest.raises(DTypeError, match="no number"):
        reduced(lambda a, b: a + b, x, x[k])
    with pytest.raises(ShapeError, match="a scan over shapes"):
        pb.associative_scan(larger, (x, pb.tensor(draw(4))))
    with pytest.raises(ShapeError, match="say along which"):
        pb.cumulative_logsumexp(pb.tensor(draw(2, 2)))


# --- sums over triangles -------------------------------------------------------------------------

N = 40
TRIANGLES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "prefix": lambda x, w, i, k: pb.where(k <= i, x[k], 0.0),
    "strict": lambda x, w, i, k: pb.where(k < i, x[k] * w[i], 0.0),
    "suffix": lambda x, w, i, k: pb.where(k >= i, x[k] * pb.exp(x[k]) / w[i], 0.0),
    "behind": lambda x, w, i, k: pb.where(k + 3 <= i, x[k] * w[i - 3], 0.0),
    "ahead": lambda x, w, i, k: pb.where(k <= i + 2, x[k] * w[k] * w[i], 0.0),
}


def triangular(name: str) -> Callable[[Any, Any], Any]:
    def summed(x: Any, w: Any) -> Any:
        k = pb.axis(N)
        return pb.compute((N,), lambda i: pb.sum(TRIANGLES[name](x, w, i, k), over=k))

    return summed


@pytest.mark.parametrize("name", TRIANGLES)
def test_sums_over_a_triangle_are_running_sums(name: str) -> None:
    x, w = draw(N), draw(N) + 3
    f = triangular(name)
    i, k = np.mgrid[:N, :N]
    shifted = {"behind": np.roll(w, 3)}.get(name, w)[:, None]
    wanted = {
        "prefix": (k <= i) * x,
        "strict": (k < i) * x * shifted,
        "suffix": (k >= i) * x * np.exp(x) / shifted,
        "behind": (k + 3 <= i) * x * shifted,
        "ahead": (k <= i + 2) * x * w * shifted,
    }
    assert np.allclose(run(f, x, w)[0], wanted[name].sum(1), rtol=1e-12)
    assert work(f, x, w) <= 3 * N
    assert work(pb.grad(lambda x, w: pb.sum(f(x, w) * f(x, w)), argnums=(0, 1)), x, w) <= 16 * N
    assert pb.check_grads(f, [x, w], layouts=("contiguous",)).passed


def test_a_running_sum_reads_no_more_than_the_triangle() -> None:
    """The guard keeps x[k] inside; what is infinite above the diagonal stays there."""
    x = draw(24, 3)

    def f(x: Any) -> Any:
        k = pb.axis(30)
        body = lambda i, j: pb.sum(pb.where(k <= i, x[k, j], 0.0), over=k)
        return pb.compute((24, 3), body)

    assert np.allclose(run(f, x)[0], x.cumsum(0))
    assert pb.check_grads(f, [x], layouts=("contiguous",)).passed
    x[20:] = np.inf
    assert np.allclose(run(f, x)[0], x.cumsum(0))


def test_a_band_is_a_sum_as_wide_as_it_is() -> None:
    x = draw(60)

    def f(x: Any) -> Any:
        k = pb.axis(60)
        inside = lambda i: (k <= i + 2) & (i <= k + 2)
        return pb.compute((60,), lambda i: pb.sum(pb.where(inside(i), x[k], 0.0), over=k))

    assert np.allclose(run(f, x)[0], np.convolve(x, np.ones(5))[2:-2])
    assert work(f, x) <= 5 * 60
    assert work(pb.grad(lambda x: pb.sum(f(x) * f(x))), x) <= 11 * 60
