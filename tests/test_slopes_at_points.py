"""Gradients of functions of one or two numbers where their formulas change: whole and half numbers,
equal and opposite arguments, zeros. Random points never lie there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import special
from pullback.nn import functional

Array = np.ndarray[Any, Any]

ONE = np.unique(np.concatenate([np.arange(-12, 12.01, 0.25), [20, 26, 34, 40, 100, 0.1, 1e-3]]))
ONE = np.unique(np.concatenate([ONE, -ONE]))
TWO = np.array([-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 7.0, 25.0])
STEPS = (1e-5, 3e-6)

UNARY: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(pb, name)
        for name in (
            *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf"),
            *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt"),
            *("sigmoid", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
        )
    },
    **{
        name: getattr(special, name)
        for name in (
            *("digamma", "entr", "erfc", "erfcx", "erfinv", "gammaln", "i0", "i0e", "i1", "i1e"),
            *("log_ndtr", "logit", "ndtr", "ndtri", "sinc"),
        )
    },
    **{
        name: getattr(functional, name)
        for name in (
            *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "logsigmoid"),
            *("mish", "relu6", "selu", "silu", "softplus", "softsign", "tanhshrink"),
        )
    },
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(pb, name)
        for name in (
            *("add", "atan2", "copysign", "divide", "fmod", "hypot", "logaddexp", "logaddexp2"),
            *("maximum", "minimum", "multiply", "pow", "remainder", "subtract"),
        )
    },
    **{
        name: getattr(special, name)
        for name in ("gammainc", "gammaincc", "xlog1py", "xlogy", "zeta")
    },
}


def agree(function: Callable[..., Any], points: list[Array]) -> int:
    """At how many places the function has a derivative; its gradient is that.

    Raises: AssertionError.
    """

    def value(which: int = 0, by: float = 0.0) -> Array:
        moved = [p + by * (n == which) for n, p in enumerate(points)]
        found: Array = function(*map(pb.tensor, moved)).numpy()
        return found

    slots = tuple(range(len(points)))
    slopes = pb.grad(lambda *x: pb.sum(function(*x)), argnums=slots)(*map(pb.tensor, points))
    here, count = value(), 0
    for n, slope in enumerate(slopes):
        one, two = ((value(n, s) - value(n, -s)) / (2 * s) for s in STEPS)
        turn = abs(value(n, STEPS[0]) - 2 * here + value(n, -STEPS[0])) / STEPS[0]
        smooth = abs(one - two) <= 1e-5 * (1 + abs(one) + abs(two))
        smooth &= turn <= 1e-2 * (1 + abs(one))
        off = smooth & ~(abs(slope.numpy() - one) <= 1e-4 * (1 + abs(one)))
        at = [tuple(float(p[i]) for p in points) for i in np.flatnonzero(off)]
        assert not at, f"by {n} at {at}: {slope.numpy()[off]}, not {one[off]}"
        count += int(smooth.sum())
    return count


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_one_number(name: str) -> None:
    points = ONE[abs(ONE) <= 5] if name == "erfcx" else ONE
    assert agree(UNARY[name], [points]) >= 1


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_two_numbers(name: str) -> None:
    a, b = (p.ravel() for p in np.meshgrid(TWO, TWO))
    assert agree(BINARY[name], [a, b]) >= 10


def test_slopes_of_large_numbers() -> None:
    """Where squares overflow slopes still are numbers."""
    x = np.array([1e22, -1e20, 3e8, 1e4], np.float32)
    (slope,) = pb.grad(lambda x: pb.sum(pb.asinh(x)), argnums=(0,))(pb.tensor(x))
    assert np.allclose(slope.numpy(), 1 / np.hypot(x.astype(np.float64), 1), rtol=1e-6, atol=0)


def test_slopes_beside_logarithms_that_are_none() -> None:
    x, y = (pb.tensor(np.array(v)) for v in ([0.0, 0.0, 0.0], [0.0, np.inf, -1.0]))
    slopes = pb.grad(lambda x, y: pb.sum(special.xlogy(x, y)), argnums=(0, 1))(x, y)
    assert all(not s.numpy().any() for s in slopes)
