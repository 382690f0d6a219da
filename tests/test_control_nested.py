"""Control forms in control forms: derivatives, second ones, of many samples; zero gradients.

Expected values come from the same functions outside of a program, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

Array = np.ndarray[Any, Any]
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


NESTED = [
    loop_cond_while, scan_cond_while, while_while, while_three_deep, while_bounded_scan,
    hand_pull, hand_push, hand_captures,
]  # fmt: skip


def second(f: Function) -> Function:
    return pb.grad(lambda x: pb.sum(pb.grad(f)(x) ** 2))


def tangent(f: Function) -> Function:
    return lambda x: pb.jvp(f, (x,), (pb.cos(x),))[1]


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("f", NESTED)
def test_nested_forms_equal_their_steps(f: Function) -> None:
    x, xs = pb.tensor(X), pb.tensor(XS)
    for derived in (pb.grad(f), tangent(f), second(f)):
        close(pb.jit(derived)(x).numpy(), derived(x).numpy())
        wanted = np.stack([derived(pb.tensor(row)).numpy() for row in XS])
        close(pb.jit(pb.vmap(derived))(xs).numpy(), wanted)


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
