"""What the tests of linear algebra share: derivatives held to differences and to one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pullback as pb

RNG = np.random.default_rng(11)
STEP = 1e-5


def drawn(*shape: int) -> Any:
    return RNG.normal(size=shape)


def definite(*shape: int) -> Any:
    """Symmetric matrices with eigenvalues of 1 and more, distinct."""
    a = drawn(*shape)
    return a @ np.swapaxes(a, -1, -2) + np.diag(1.0 + np.arange(shape[-1]))


def well(*shape: int) -> Any:
    """Matrices that are far from singular."""
    return drawn(*shape) + 3 * np.eye(*shape[-2:])


def flat(found: Any) -> Any:
    parts = found if isinstance(found, tuple) else (found,)
    return pb.concat([pb.reshape(p, (-1,)) for p in parts])


def derivatives(
    function: Callable[..., Any],
    given: Sequence[Any],
    *,
    compiled: bool,
    second: bool = True,
    limit: float = 1e-6,
) -> None:
    """Tangents against differences, adjoints against tangents, and the same of the gradient."""
    wrap = pb.jit if compiled else (lambda f: f)
    inputs = [pb.tensor(np.asarray(x)) for x in given]
    value = wrap(lambda *x: flat(function(*x)))
    rng = np.random.default_rng(1)
    head = pb.tensor(rng.normal(size=value(*inputs).shape))
    along = [pb.tensor(rng.normal(size=x.shape)) for x in given]

    def scalar(*x: Any) -> Any:
        return pb.sum(flat(function(*x)) * head)

    numbers = tuple(range(len(inputs)))
    slope = wrap(pb.grad(scalar, argnums=numbers))
    moved = wrap(
        lambda *x: pb.jvp(lambda *y: flat(function(*y)), x[: len(x) // 2], x[len(x) // 2 :])[1]
    )
    check(lambda x: value(*x).numpy(), moved(*inputs, *along).numpy(), inputs, along, limit)
    one = float((moved(*inputs, *along).numpy() * head.numpy()).sum())
    two = sum(
        float((g.numpy() * a.numpy()).sum()) for g, a in zip(slope(*inputs), along, strict=True)
    )
    assert abs(one - two) <= 1e-9 * max(1.0, abs(one), abs(two)), "dot product"
    if second:
        turned = wrap(
            lambda *x: flat(
                pb.jvp(
                    lambda *y: pb.grad(scalar, argnums=numbers)(*y),
                    x[: len(x) // 2],
                    x[len(x) // 2 :],
                )[1]
            )
        )
        found = turned(*inputs, *along).numpy()
        check(lambda x: flat(tuple(slope(*x))).numpy(), found, inputs, along, 10 * limit)


def check(function: Any, found: Any, inputs: Any, along: Any, limit: float) -> None:
    """A tangent against central differences."""
    ends = [
        function(
            [
                pb.tensor(x.numpy() + sign * STEP * v.numpy())
                for x, v in zip(inputs, along, strict=True)
            ]
        )
        for sign in (1, -1)
    ]
    wanted = (ends[0] - ends[1]) / (2 * STEP)
    np.testing.assert_allclose(
        found, wanted, rtol=0, atol=limit * max(1.0, abs(wanted).max(initial=0))
    )
