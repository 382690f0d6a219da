"""Control forms in control forms: derivatives, second ones, of many samples; zero gradients.

Expected values come from the same functions outside of a program, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.config import Options

Array = np.ndarray[Any, Any]
REFERENCE = Options(backend="reference")
Function = Callable[..., Any]
X = np.array([0.5, 1.5])
XS = np.array([[0.5, 1.5], [2.0, 2.0], [0.1, 0.2]])


def grown(c: Any, most: int | None) -> Any:
    return pb.while_loop(lambda t: pb.sum(t * t) < 9.0, lambda t: t * 1.5, c, max_steps=most)


def chosen(c: Any, most: int | None) -> Any:
    return pb.cond(pb.sum(c) > 1.0, lambda c: grown(c, most), lambda c: c * c * 2.0, c) * 0.4


def loop_cond_while(x: Any) -> Any:
    return pb.sum(pb.loop(3, lambda i, c: chosen(c, 6), x) ** 2)


def scan_cond_while(x: Any) -> Any:
    last, rows = pb.scan(lambda c, _: (chosen(c, None), c * c), x, None, 3)
    return pb.sum(last**2) + pb.sum(pb.sin(rows))


def while_while(x: Any) -> Any:
    def outer(t: Any) -> Any:
        return pb.while_loop(lambda u: pb.sum(u) < pb.sum(t) * 2.0, lambda u: u * 1.3, t) * 0.8

    return pb.sum(pb.while_loop(lambda t: pb.sum(t * t) < 90.0, outer, x) ** 2)


def while_three_deep(x: Any) -> Any:
    def inner(c: Any) -> Any:
        return pb.while_loop(lambda u: pb.sum(u) < 5.0, lambda u: u * 1.3 + pb.sin(c), c)

    def middle(c: Any) -> Any:
        return pb.while_loop(lambda u: pb.sum(u) < 9.0, lambda u: 0.3 * inner(u) + u, c)

    return pb.sum(pb.while_loop(lambda t: pb.sum(t) < 15.0, lambda t: middle(t) * 1.1, x) ** 2)


def while_bounded_scan(x: Any) -> Any:
    def outer(t: Any) -> Any:
        ended = grown(t, 4)
        return pb.scan(lambda c, _: (pb.sin(c) + 1.1 * c, c), ended, None, 3)[0] + 0.5

    return pb.sum(pb.while_loop(lambda t: pb.sum(t * t) < 30.0, outer, x) ** 2)


@pb.custom_vjp
def by_pull(u: Any) -> Any:
    return pb.sin(u) * 1.2


@pb.custom_jvp
def by_push(u: Any) -> Any:
    return pb.sin(u) * 1.2


by_pull.defvjp(lambda u: (by_pull(u), u), lambda u, d: (d * pb.cos(u) * 1.2,))
by_push.defjvp(lambda u, t: (by_push(*u), t[0] * pb.cos(u[0]) * 1.2))


def hand_pull(x: Any) -> Any:
    return pb.sum(pb.loop(3, lambda i, c: pb.tanh(by_pull(c) + x), x))


def hand_push(x: Any) -> Any:
    return pb.sum(pb.scan(lambda c, _: (pb.tanh(by_push(c)) * 1.1, c), x, None, 3)[1] ** 2)


def hand_captures(x: Any) -> Any:
    """A derivative by hand that reads the result of another loop."""
    first = pb.loop(2, lambda i, c: pb.sin(c) * 1.4, x)

    @pb.custom_vjp
    def scaled(u: Any) -> Any:
        return u * first

    scaled.defvjp(lambda u: (scaled(u), u), lambda u, d: (d * first,))
    return pb.sum(pb.loop(3, lambda i, c: pb.tanh(scaled(c)) + 0.1, x))


def hand_before_a_loop(x: Any) -> Any:
    """The adjoint that a derivative by hand is given is the result of a loop of its own."""

    def body(i: Any, c: Any) -> Any:
        return pb.loop(2, lambda j, t: pb.sin(t) * 1.1, by_pull(c)) + x

    return pb.sum(pb.loop(3, body, x))


NESTED = [
    loop_cond_while, scan_cond_while, while_while, while_three_deep, while_bounded_scan,
    hand_pull, hand_push, hand_captures, hand_before_a_loop,
]  # fmt: skip


def second(f: Function) -> Function:
    return pb.grad(lambda x: pb.sum(pb.grad(f)(x) ** 2))


def tangent(f: Function) -> Function:
    return lambda x: pb.jvp(f, (x,), (pb.cos(x),))[1]


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-9, atol=1e-11)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("f", NESTED)
def test_nested_forms_equal_their_steps(f: Function) -> None:
    x = pb.tensor(X)
    for order in (pb.grad, tangent, second)[: 2 if f is while_three_deep else 3]:
        close(pb.jit(order(f))(x).numpy(), order(f)(x).numpy())
    wanted = np.stack([pb.grad(f)(pb.tensor(row)).numpy() for row in XS])
    close(pb.jit(pb.vmap(pb.grad(f)))(pb.tensor(XS)).numpy(), wanted)


ZERO = {
    "round": lambda t: pb.sum(pb.round(t)),
    "stop": lambda t: pb.sum(pb.stop_gradient(t)),
    "argmax": lambda t: pb.astype(pb.argmax(t), "float64"),
    "unused": lambda t: pb.tensor(2.0, dtype="float64"),
}


@pytest.mark.parametrize("name", ZERO)
def test_a_zero_gradient_of_symbolic_shape(name: str) -> None:
    """Nothing but zeros, whose extent is that of the call, alone and beside others."""
    f = ZERO[name]
    n = pb.dim("n", 1, 8)
    beside = pb.jit(
        lambda t: (pb.grad(f)(t), pb.grad(f)(t) + t, pb.jvp(f, (t,), (t,))[1]), shapes=[(n,)]
    )
    for size in (1, 3, 8):
        t = np.linspace(0.3, 2.0, size)
        zero, plus, moved = beside(t)
        assert zero.tolist() == [0.0] * size
        assert plus.tolist() == t.tolist()
        assert moved.item() == 0.0


# --- of many samples -----------------------------------------------------------------------------


def scan_of_samples_of_while(x: Any) -> Any:
    """Samples in a step of a scan, each with its own number of steps; then samples of all that."""

    def body(c: Any, _: Any) -> Any:
        def one(row: Any) -> Any:
            def burn(s: Any) -> Any:
                return s[0] + 0.4 + 0.1 * pb.sum(row), s[1] * 1.1

            return pb.while_loop(lambda s: s[0] < 1.6, burn, (pb.tanh(pb.sum(c)), x))[1]

        rows = pb.stack([x * 0.1, x * -0.2])
        return c * 0.9, pb.sum(pb.vmap(one)(rows))

    last, sums = pb.scan(body, x, None, 2)
    return pb.sum(last) + pb.sum(sums)


def a_loop_of_equal_steps_under_a_condition_of_samples(x: Any) -> Any:
    """The inner loop runs as often for each sample, but not every sample comes there."""

    def inner(c: Any) -> Any:
        burn = lambda s: (s[0] + 0.7, pb.sin(s[1]) + x)
        return pb.while_loop(lambda s: s[0] < 2.0, burn, (pb.tensor(0.0), c))[1]

    def body(i: Any, c: Any) -> Any:
        return pb.cond(pb.sum(c) > 1.0, inner, lambda c: c * 1.5, c)

    return pb.sum(pb.loop(3, body, x))


def while_cond_scan(x: Any) -> Any:
    """Which samples count is known in the branch, and read in the scan."""
    rows = pb.stack([x, -0.5 * x, x * x])

    def deeper(t: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            kept = pb.cond(pb.sum(row) > 0.2, lambda c: c * 1.1, lambda c: c + 0.1, c)
            return pb.sin(kept) + row, c

        last, made = pb.scan(step, t, rows)
        return t + 0.3 * last * last + 0.1 * pb.sum(made, axis=0) ** 2

    def body(t: Any) -> Any:
        return pb.cond(pb.sum(t * t) > 2.0, deeper, lambda t: t * 1.5, t) + 0.2

    return pb.sum(pb.while_loop(lambda t: pb.sum(t * t) < 9.0, body, x, max_steps=9) ** 2)


SAMPLED = [
    scan_of_samples_of_while, a_loop_of_equal_steps_under_a_condition_of_samples, while_cond_scan,
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("f", SAMPLED)
def test_samples_of_nested_forms(f: Function) -> None:
    xs = pb.tensor(XS)
    for derived in (f, pb.grad(f), tangent(f)):
        each = [pb.jit(derived)(pb.tensor(row)).numpy() for row in XS]
        close(pb.jit(pb.vmap(derived))(xs).numpy(), np.stack(each))
    steps = [pb.jit(f)(pb.tensor(X)).numpy(), pb.jit(f, options=REFERENCE)(pb.tensor(X)).numpy()]
    close(*steps)


def test_results_of_one_loop_are_asked_for_one_by_one() -> None:
    """Its backward is written down for all samples once, though a part is the same for all."""
    rows = np.arange(18.0).reshape(3, 3, 2) * 0.1

    def f(x: Any, r: Any) -> Any:
        last, _ = pb.scan(lambda c, d: (x, c), x, r, checkpoint="sqrt")
        return pb.sum(pb.sin(pb.sum(last)))

    by = pb.jit(pb.vmap(lambda x, r: pb.grad(f, argnums=(0, 1))(x, r)))
    found = by(pb.tensor(XS), pb.tensor(rows))
    close(found[0].numpy(), np.cos(XS.sum(1))[:, None] * np.ones((3, 2)))
    close(found[1].numpy(), np.zeros_like(rows))


def test_what_a_branch_leaves_is_not_written_over_what_it_reads() -> None:
    """It lives from the start of the branch on, the operand only within."""

    def f(x: Any, w: Any) -> Any:
        def then(d: Any, e: Any) -> Any:
            burn = lambda s: (s[0] + 0.3, w)
            return x, pb.while_loop(
                lambda s: s[0] < 0.9, burn, (pb.sum(e), pb.sin(e * w)), max_steps=2
            )[1]

        def otherwise(d: Any, e: Any) -> Any:
            e12 = e * 0.5 + pb.tanh(pb.mean(w))
            one = pb.sin(pb.sin(e12) * pb.tanh(pb.sum(d)) + x * pb.tanh(e))
            return one, pb.tanh(pb.sin(pb.sigmoid(e12))) * 0.5 + pb.sin(w) * 0.5

        b, c = pb.cond(pb.sum(w) < -0.6, then, otherwise, x, x + pb.sin(w) * pb.tanh(pb.mean(w)))
        return pb.sum(pb.tanh(b) * 0.5 + pb.sin(c) * 0.5)

    by = pb.grad(f, argnums=(0, 1))
    for w in (X, -X):
        given = pb.tensor(X * 0.3), pb.tensor(w)
        for found, wanted in zip(pb.jit(by)(*given), by(*given), strict=True):
            close(found.numpy(), wanted.numpy())
