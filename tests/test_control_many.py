"""Loops and branches for many samples or adjoints at once, and loops without a bound.

Expected values come from the same functions outside of a program, step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.config import Options
from pullback.errors import PullbackError, UnsupportedError
from pullback.tensor.forms import loops

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
BACKENDS = ("llvm", "reference")
SAMPLES = 4


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape)


XS = pb.tensor(normal(4, 3))
TABLE = pb.tensor(normal(4))
X = normal(SAMPLES, 3, seed=1)
IDENTITY = np.eye(3)


def each(f: Function, *args: Array) -> Array:
    """`f` sample by sample, outside of a program."""
    samples = [[pb.tensor(np.asarray(a[n])) for a in args] for n in range(len(args[0]))]
    return np.stack([f(*own).numpy() for own in samples])


def close(found: Any, wanted: Array) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-11)


def scan(a: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        new = pb.tanh(c * x + a)
        return new, new * c

    last, rows = pb.scan(step, a, XS)
    return pb.sum(last) + pb.sum(pb.sin(rows))


def chunks(a: Any) -> Any:
    return pb.sum(pb.loop(7, lambda i, c: pb.sin(c * a) + a, a, checkpoint="sqrt") ** 2)


def branch(a: Any) -> Any:
    def longer() -> Any:
        return pb.loop(3, lambda i, c: pb.sin(c) * a, a)

    def until() -> Any:
        return pb.while_loop(lambda c: pb.sum(c * c) < 9.0, lambda c: c * 1.5, a, max_steps=20)

    return pb.sum(pb.cond(pb.sum(a) > 0, longer, until) ** 2)


def bounded(a: Any, most: int | None = 30) -> Any:
    def body(c: Any) -> Any:
        return c * 1.3 + 0.3 * pb.sin(a)

    return pb.sum(pb.while_loop(lambda c: pb.sum(c * c) < 20.0, body, a, max_steps=most) ** 2)


def unbounded(a: Any) -> Any:
    return bounded(a, None)


def nested(a: Any) -> Any:
    """A branch and a loop that ends by data, in a scan."""

    def step(c: Any, x: Any) -> Any:
        new = pb.cond(pb.sum(c * x) > 0, lambda: pb.sin(c) + x, lambda: c * x)
        n = pb.while_loop(
            lambda s: pb.sum(s * s) < 4.0, lambda s: s * 1.4 + 0.1 * pb.sin(a), new, max_steps=40
        )
        return 0.3 * pb.sin(n) + 0.1, pb.sum(n)

    last, rows = pb.scan(step, a, XS)
    return pb.sum(last) + pb.sum(rows * rows)


def remade(a: Any) -> Any:
    block = pb.checkpoint(lambda t: pb.loop(2, lambda i, c: pb.sin(c * t), pb.exp(t)))
    return pb.sum(block(a) ** 2)


def descent(a: Any) -> Any:
    """Gradient steps inside of a loss."""

    def inner(p: Any) -> Any:
        return pb.sum((pb.tanh(p * a) - 0.3) ** 2)

    return inner(pb.loop(4, lambda i, p: p - 0.2 * pb.grad(inner)(p), a * 0.5) * 1.5)


FORMS = [scan, chunks, branch, bounded, unbounded, nested, remade, descent]
forms = pytest.mark.parametrize("f", FORMS, ids=lambda f: f.__name__)


@pytest.mark.sampled(8)
@forms
def test_vmap_equals_sample_by_sample(f: Function) -> None:
    close(pb.jit(pb.vmap(f))(X), each(f, X))
    wanted = each(pb.grad(f), X)
    close(pb.jit(pb.vmap(pb.grad(f)))(X), wanted)
    close(pb.jit(pb.grad(lambda x: pb.sum(pb.vmap(f)(x))))(X), wanted)


@pytest.mark.sampled(12)
@forms
def test_second_order_of_many_at_once(f: Function) -> None:
    """Hessians, and products with them of every sample; the dot product both ways."""

    def along(a: Any) -> Any:
        return pb.hvp(f, a, a * 0.7)

    x = X[:2]
    whole = pb.jit(lambda a: pb.jacobian(pb.grad(f), a))
    hessians = [whole(a).numpy() for a in x]
    products = pb.jit(pb.vmap(along))(x).numpy()
    for a, hessian, product in zip(x, hessians, products, strict=True):
        np.testing.assert_allclose(hessian, hessian.T, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(hessian @ a * 0.7, product, rtol=1e-8, atol=1e-10)
    step = 1e-6
    gradient = pb.jit(pb.grad(f))
    up, down = (gradient(x[0] + s * x[1]) for s in (step, -step))
    np.testing.assert_allclose((up - down) / (2 * step), hessians[0] @ x[1], rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("backend", BACKENDS)
@forms
def test_forward_mode_is_the_transpose_on_both_backends(f: Function, backend: str) -> None:
    @pb.jit(options=Options(backend=backend, threads=2, cache=None))
    def both(x: Any, v: Any) -> Any:
        value, tangent = pb.jvp(pb.vmap(f), (x,), (v,))
        _, back = pb.vjp(pb.vmap(f), x)
        return value, tangent, back(pb.ones_like(value) * 0.5)[0]

    v = normal(SAMPLES, 3, seed=5)
    value, tangent, adjoint = (t.numpy() for t in both(X, v))
    np.testing.assert_allclose(value, each(f, X), rtol=1e-9)
    np.testing.assert_allclose(np.sum(tangent) * 0.5, np.sum(adjoint * v), rtol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_jacobians_and_heads_inside_a_program(backend: str) -> None:
    def rows(a: Any) -> Any:
        return pb.scan(lambda c, x: (pb.sin(c * x) + a, c), a * 0.5, XS)[1]

    def taken(a: Any) -> Any:
        return pb.cond(a[0] > 0, lambda: pb.sin(a), lambda: a * a)

    def all_of(a: Any, heads: Any) -> Any:
        both = pb.differentiate([rows(a), taken(a)], [a], [heads, heads[:, 0]])[0]
        return pb.jacobian(rows, a), pb.differentiate(rows(a), [a], heads)[0], both

    heads = normal(2, 4, 3)
    options = Options(backend=backend, threads=2, cache=None)
    found = pb.jit(all_of, options=options)(X[0], heads)
    for got, wanted in zip(found, all_of(pb.tensor(X[0]), pb.tensor(heads)), strict=True):
        close(got, wanted.numpy())


TRIPS = np.array([0, 1, 7, 40])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("most", [None, 100])
def test_each_sample_takes_its_own_number_of_steps(most: int | None) -> None:
    def steps(a: Any, n: Any) -> Any:
        start = a, pb.tensor(0)
        body = lambda s: (pb.sin(s[0] * a) * 1.5, s[1] + 1)
        last, count = pb.while_loop(lambda s: s[1] < n, body, start, max_steps=most)
        return pb.sum(last * last) + 0.001 * pb.astype(count, "float64")

    close(pb.jit(pb.vmap(steps))(X, TRIPS), each(steps, X, TRIPS))
    close(pb.jit(pb.vmap(pb.grad(steps)))(X, TRIPS), each(pb.grad(steps), X, TRIPS))


def test_the_branch_that_a_sample_does_not_take_reads_nothing() -> None:
    def picked(a: Any, n: Any) -> Any:
        return pb.sum(pb.cond(n < 4, lambda: pb.sum(pb.sin(TABLE[n] * a)) * a, lambda: a))

    def until(a: Any, n: Any) -> Any:
        body = lambda s: (s[0] * TABLE[s[1]], s[1] + 1)
        last, _ = pb.while_loop(lambda s: s[1] < 4, body, (a, n), max_steps=9)
        return pb.sum(pb.sin(last))

    for f, places in ((picked, [0, 9, 3, 5]), (until, [4, 0, 3, 2])):
        n = np.array(places)
        close(pb.jit(pb.vmap(f))(X, n), each(f, X, n))
        close(pb.jit(pb.vmap(pb.grad(f)))(X, n), each(pb.grad(f), X, n))


def test_two_axes_of_samples_and_a_loop_around() -> None:
    def f(a: Any, b: Any) -> Any:
        body = lambda c: c * 1.3 + 0.1 * pb.sin(b)
        return pb.sum(pb.while_loop(lambda c: pb.sum(c * c) < 9.0, body, a, max_steps=30))

    y = normal(3, 3, seed=2)

    def pairs(f: Function) -> Function:
        return lambda a, ys: pb.vmap(lambda b: f(a, b))(ys)

    for g in (f, pb.grad(f)):
        found = pb.jit(pb.vmap(pairs(g), in_axes=(0, None)))(X, y).numpy()
        wanted = [each(lambda b, a=a, g=g: g(pb.tensor(a), b), y) for a in X]
        np.testing.assert_allclose(found, wanted, rtol=1e-9)

    def around(x: Any) -> Any:
        def own(r: Any) -> Any:
            return pb.loop(2, lambda j, d: pb.sin(d) * r, r)

        return pb.sum(pb.loop(3, lambda i, c: pb.vmap(own)(c) + x, x) ** 2)

    close(pb.jit(pb.grad(around))(X), pb.grad(around)(pb.tensor(X)).numpy())


def test_derivatives_by_hand_in_a_loop_of_many_samples() -> None:
    @pb.custom_vjp
    def loud(x: Any) -> Any:
        return pb.sin(x)

    loud.defvjp(lambda x: (pb.sin(x), x), lambda x, g: (g * pb.cos(x) * 3.0,))

    @pb.custom_jvp
    def steep(x: Any) -> Any:
        return pb.tanh(x)

    @steep.defjvp
    def along(primals: Any, tangents: Any) -> Any:
        return steep(*primals), tangents[0] * pb.cos(primals[0]) * 2.0

    def f(a: Any) -> Any:
        return pb.sum(pb.scan(lambda c, x: (loud(c * x) + steep(c) * a, c), a, XS)[1])

    wanted = each(pb.grad(f), X)
    close(pb.jit(pb.vmap(pb.grad(f)))(X), wanted)
    close(pb.jit(pb.grad(lambda x: pb.sum(pb.vmap(f)(x))))(X), wanted)


def test_what_is_the_same_for_all_samples_is_computed_once() -> None:
    """Only the carry that differs by sample gets an axis."""

    def f(a: Any) -> Any:
        start = a, pb.zeros((50,), dtype="float64")
        return pb.sum(pb.loop(5, lambda i, c: (c[0] * 1.1 + c[1][0], pb.cos(c[1])), start)[0])

    program = pb.jit(pb.vmap(f))
    close(program(X), each(f, X))
    assert program.program.memory.arena_bytes < SAMPLES * 50 * 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jit", [False, True])
def test_random_numbers_differ_by_sample(jit: bool) -> None:
    shape = (40,)

    def drawn(a: Any) -> Any:
        return pb.random.uniform(shape, dtype="float64") * a

    def run(f: Function) -> Any:
        pb.random.manual_seed(3)
        return (pb.jit(f) if jit else f)(pb.tensor(np.ones((5, 40))))

    whole = run(pb.vmap(drawn)).numpy()
    assert len(np.unique(whole)) == whole.size and abs(whole.mean() - 0.5) < 0.1
    assert abs(np.corrcoef(whole)[np.triu_indices(5, 1)]).max() < 0.6
    same = run(pb.vmap(drawn, randomness="same")).numpy()
    assert np.ptp(same, axis=0).max() == 0.0
    slope = run(pb.vmap(pb.grad(lambda a: pb.sum(drawn(a))))).numpy()
    np.testing.assert_array_equal(slope, whole)
    pairs = run(lambda x: pb.vmap(lambda a: pb.vmap(lambda b: drawn(a) * b)(x))(x)).numpy()
    assert len(np.unique(pairs)) == pairs.size
    key = pb.random.key(1)
    fixed = run(pb.vmap(lambda a: pb.random.uniform(shape, key=key, dtype="float64") + a * 0.0))
    assert np.ptp(fixed.numpy(), axis=0).max() == 0.0
    with pytest.raises(UnsupportedError, match="randomness="):
        pb.vmap(drawn, randomness="error")


def test_states_in_a_loop_of_many_samples() -> None:
    """What is drawn in a step is the same in the backward; what would be assigned is refused."""

    def drawn(a: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            u = pb.random.uniform((3,), dtype="float64")
            return c + a * u, u

        last, us = pb.scan(step, a * 0.0, XS)
        return pb.sum(last), us

    def both(a: Any) -> Any:
        value, us = drawn(a)
        return pb.grad(value, a), us

    gradient, us = (t.numpy() for t in pb.jit(pb.vmap(both))(X))
    assert len(np.unique(us)) == us.size
    np.testing.assert_allclose(gradient, us.sum(1), rtol=1e-12)
    seen = nn.Parameter(pb.zeros((3,), dtype="float64"))

    def assigns(a: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            seen.assign(c)
            return c * 2.0

        return pb.loop(3, step, a)

    def handed_out(a: Any) -> Any:
        pb.Receiver(lambda _: None, a)
        return a

    def drawn_until(a: Any) -> Any:
        body = lambda c: c * 1.5 + pb.random.uniform((3,), dtype="float64")
        return pb.while_loop(lambda c: pb.sum(c) < 9.0, body, a, max_steps=10)

    for f in (assigns, handed_out, drawn_until):
        with pytest.raises(UnsupportedError, match="sample"):
            pb.jit(pb.vmap(f))(X)


# --- loops without a bound -----------------------------------------------------------------------


def moved(c: Any, a: Any, w: Any) -> Any:
    """One step; it converges to nothing."""
    return c + 0.1 * pb.sin(c * w) + a * 0.05


def counted(steps: int) -> Function:
    def f(a: Any, w: Any) -> Any:
        start = a, pb.tensor(0)
        body = lambda s: (moved(s[0], a, w), s[1] + 1)
        return pb.sum(pb.while_loop(lambda s: s[1] < steps, body, start)[0] ** 2)

    return f


def unrolled(steps: int) -> Function:
    def f(a: Any, w: Any) -> Any:
        c = a
        for _ in range(steps):
            c = moved(c, a, w)
        return pb.sum(c**2)

    return f


def looped(steps: int) -> Function:
    def f(a: Any, w: Any) -> Any:
        return pb.sum(pb.loop(steps, lambda i, c: moved(c, a, w), a) ** 2)

    return f


ORDERS: dict[str, Callable[[Function], Function]] = {
    "reverse": lambda f: lambda a, w: pb.grad(f, argnums=(0, 1))(a, w),
    "forward": lambda f: lambda a, w: pb.jvp(f, (a, w), (w, a))[1:],
    "forward over reverse": lambda f: lambda a, w: pb.hvp(f, (a, w), (w, a)),
    "reverse over reverse": lambda f: pb.grad(
        lambda a, w: pb.sum(pb.grad(f)(a, w) ** 2), argnums=(0, 1)
    ),
    "reverse over forward": lambda f: pb.grad(
        lambda a, w: pb.jvp(f, (a, w), (w, a))[1], argnums=(0, 1)
    ),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("steps", [0, 1, 7, 100])
@pytest.mark.parametrize("order", ORDERS)
def test_a_loop_without_a_bound_equals_the_unrolled_one(order: str, steps: int) -> None:
    make = ORDERS[order]
    a, w = normal(3), normal(3, seed=4)
    found = pb.jit(make(counted(steps)))(a, w)
    if steps < 10:
        wanted = make(unrolled(steps))(pb.tensor(a), pb.tensor(w))
    else:
        wanted = pb.jit(make(looped(steps)))(a, w)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_a_loop_without_a_bound_on_the_interpreter() -> None:
    a, w = normal(3), normal(3, seed=4)
    options = Options(backend="reference", cache=None)
    for order in ("reverse", "forward over reverse"):
        f = ORDERS[order](counted(5))
        for got, expected in zip(pb.jit(f, options=options)(a, w), pb.jit(f)(a, w), strict=True):
            close(got, expected.numpy())


def test_the_work_of_its_backward_grows_with_the_steps() -> None:
    """Sixteen times the steps in sixteen times the time, not in its square."""

    @pb.jit(options=Options(threads=1, cache=None))
    def f(a: Any, steps: Any) -> Any:
        body = lambda s: (pb.sin(s[0] * a), s[1] + 1)
        last, _ = pb.while_loop(lambda s: s[1] < steps, body, (a, pb.tensor(0)))
        return pb.grad(last, a)

    def seconds(steps: int) -> float:
        before = time.thread_time()
        f(np.array(0.9), np.array(steps))
        return time.thread_time() - before

    seconds(1)
    few = min(seconds(1000) for _ in range(3))
    assert seconds(16_000) < 60 * few


def test_too_many_steps_without_a_bound_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "SIDE", 2)
    monkeypatch.setattr(loops, "LEVELS", 2)
    a, w = normal(3), normal(3, seed=4)
    pb.jit(pb.grad(counted(4)))(a, w)
    with pytest.raises(PullbackError, match="steps_of_a_loop_without_max_steps"):
        pb.jit(pb.grad(counted(5)))(a, w)


def test_states_that_a_loop_without_a_bound_changes_are_refused() -> None:
    def drawn(a: Any) -> Any:
        body = lambda c: c * 1.5 + pb.random.uniform((3,), dtype="float64") * a
        return pb.sum(pb.while_loop(lambda c: pb.sum(c) < 9.0, body, a))

    with pytest.raises(UnsupportedError, match="changed state"):
        pb.jit(pb.grad(drawn))(X[0])


# --- programs inside programs --------------------------------------------------------------------


def test_learning_to_learn_is_one_program() -> None:
    """Per task, gradient steps from shared parameters; their loss trains those, step by step."""
    inputs, targets = normal(3, 8, 2), normal(3, 8, seed=3)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return pb.mean((pb.tanh(x @ p["w"] + p["b"]) - y) ** 2)

    def adapted(p: Any, x: Any, y: Any) -> Any:
        def step(i: Any, q: Any) -> Any:
            d = pb.grad(loss)(q, x, y)
            return {k: q[k] - 0.1 * d[k] for k in q}

        return loss(pb.loop(3, step, p), x, y)

    def outer(p: Any, x: Any, y: Any) -> Any:
        return pb.mean(pb.vmap(adapted, in_axes=(None, 0, 0))(p, x, y))

    def train(p: Any, x: Any, y: Any) -> Any:
        def step(i: Any, q: Any) -> Any:
            d = pb.grad(outer)(q, x, y)
            return {k: q[k] - 0.5 * d[k] for k in q}

        last = pb.loop(4, step, p)
        return last, outer(last, x, y)

    start = {"w": normal(2, seed=7), "b": np.array(0.1)}
    found, value = pb.jit(train)(start, inputs, targets)
    w, b = start["w"], start["b"]

    def by_hand(w: Array, b: Array) -> float:
        """The outer loss in NumPy."""
        losses = []
        for x, y in zip(inputs, targets, strict=True):
            p, c = w, b
            for _ in range(3):
                t = np.tanh(x @ p + c)
                g = 2 * (t - y) * (1 - t * t) / len(y)
                p, c = p - 0.1 * (x.T @ g), c - 0.1 * np.sum(g)
            losses.append(np.mean((np.tanh(x @ p + c) - y) ** 2))
        return float(np.mean(losses))

    for _ in range(4):
        h = 1e-6
        moves = [h * row for row in np.eye(2)]
        dw = np.array([(by_hand(w + m, b) - by_hand(w - m, b)) / (2 * h) for m in moves])
        db = (by_hand(w, b + h) - by_hand(w, b - h)) / (2 * h)
        w, b = w - 0.5 * dw, b - 0.5 * db
    np.testing.assert_allclose(found["w"].numpy(), w, rtol=1e-6)
    np.testing.assert_allclose(found["b"].numpy(), b, rtol=1e-6)
    np.testing.assert_allclose(value.numpy(), by_hand(w, b), rtol=1e-6)
