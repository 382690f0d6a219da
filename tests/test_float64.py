"""Elementary functions and powers of float64 in units in the last place, and slopes of powers.

The references have 64 bits of mantissa (`numpy.longdouble` of x86-64), a sample of them mpmath's.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import pullback as pb
from accuracy import BOUNDS64, POWER_BOUND64, WANTED, points64, powers64, ulps64
from pullback.config import Options
from test_arithmetic import BACKENDS, run

Array = np.ndarray[Any, Any]
COUNT = 3000
LONG = np.finfo(np.longdouble).nmant >= 63
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(not LONG, reason="no numbers of 64 bits of mantissa to compare with"),
]


@pytest.mark.slow
def test_functions_within_their_bounds() -> None:
    x = points64(COUNT)
    program = pb.jit(lambda t: tuple(getattr(pb, n)(t) for n in BOUNDS64))
    for name, y in zip(BOUNDS64, program(pb.tensor(x)), strict=True):
        wide = x if name == "erf" else x.astype(np.longdouble)
        worst = ulps64(y.numpy(), WANTED[name](wide).astype(np.longdouble))
        at = int(worst.argmax())
        assert worst[at] <= BOUNDS64[name], f"{name}: {worst[at]} units at {x[at]!r}"


def test_acosh_where_two_roots_would_round_twice() -> None:
    x = np.array([1.0076612993370586, 1.000473899991355, 1.0000300493939125, 1.0019268423071799])
    wide = x.astype(np.longdouble) - 1
    found = pb.acosh(pb.tensor(x)).numpy()
    assert ulps64(found, np.log1p(wide + np.sqrt(wide * (wide + 2)))).max() <= BOUNDS64["acosh"]
    below = pb.acosh(pb.tensor(np.array([0.999, -1.0, -2.0, -1e9, -math.inf])))
    assert np.isnan(below.numpy()).all()


def test_a_sample_against_more_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.prec = 120
    x = np.random.default_rng(8).uniform(0.05, 0.95, 40)
    for name in ("erf", "exp", "log", "tanh", "sinh", "asin", "acos", "atan", "atanh", "tan"):
        found = getattr(pb, name)(pb.tensor(x)).numpy()
        for a, y in zip(x, found, strict=True):
            exact = getattr(mpmath, name)(mpmath.mpf(float(a)))
            assert abs(mpmath.mpf(float(y)) - exact) <= BOUNDS64[name] * math.ulp(float(exact))


@pytest.mark.parametrize("backend", BACKENDS)
def test_powers_within_their_bound(backend: str) -> None:
    x, y = powers64(COUNT)
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    found = run(lambda a, b: a**b, x, y, backend=backend)
    assert ulps64(found, exact).max() <= POWER_BOUND64
    for base in (10.0, 0.1, 2.5):
        found = run(lambda b, base=base: base**b, y[-COUNT:], backend=backend)
        wanted = np.power(np.longdouble(base), y[-COUNT:].astype(np.longdouble))
        assert ulps64(found, wanted).max() <= POWER_BOUND64
        narrow = (y[-COUNT:] / 10).astype(np.float32)
        wanted = np.power(float(np.float32(base)), narrow.astype(np.float64))
        found = run(lambda b, base=base: base**b, narrow, backend=backend)
        unit = np.spacing(np.abs(wanted).astype(np.float32))
        assert (np.abs(found - wanted) <= 0.6 * unit).all()
    assert float((pb.tensor(np.array(10.0)) ** pb.tensor(np.array(1.0))).numpy()) == 10.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_cosines_and_tangents_next_to_their_zeros(backend: str) -> None:
    x = np.arange(1, 400) * (math.pi / 2)
    for name in ("cos", "tan"):
        found = run(getattr(pb, name), x, backend=backend)
        exact = getattr(np, name)(x.astype(np.longdouble))
        assert ulps64(found, exact).max() <= BOUNDS64[name]


VALUES = (
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -2.5, math.inf, -math.inf,
    math.nan, 1e-320,
)  # fmt: skip
GRID = np.array(list(itertools.product(VALUES, VALUES))).T


def slope_by_base(x: float, y: float) -> float:
    """``y x ** (y - 1)``, 0 where y is."""
    return 0.0 if y == 0 else float(y * np.power(x, y - 1))


def slope_by_exponent(x: float, y: float) -> float:
    """``x ** y log x``, 0 where x is and y is not negative."""
    return 0.0 if x == 0 and y >= 0 else float(np.power(x, y) * np.log(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_slopes_of_powers_at_special_values(backend: str) -> None:
    """As PyTorch has them, at all pairs; constant exponents and bases too."""
    x, y = (np.ascontiguousarray(v) for v in GRID)
    options = Options(backend=backend)
    slopes = pb.jit(
        pb.grad(lambda a, b: pb.sum(a**b), argnums=(0, 1)), options=options
    )(pb.tensor(x), pb.tensor(y))  # fmt: skip
    for found, exact in zip(slopes, (slope_by_base, slope_by_exponent), strict=True):
        wanted = np.vectorize(exact)(x, y)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    values = np.array(VALUES)
    for number in (0.0, 1.0, 2.0, 3.0, -1.0, -2.0, -3.0, -6.0, 2.5, -2.5, math.inf):
        by_base = pb.grad(lambda t, n=number: pb.sum(t**n))(pb.tensor(values)).numpy()
        wanted = [slope_by_base(v, number) for v in VALUES]
        np.testing.assert_allclose(by_base, wanted, rtol=1e-12, err_msg=f"t ** {number}")
        by_exponent = pb.grad(lambda t, n=number: pb.sum(n**t))(pb.tensor(values)).numpy()
        wanted = [slope_by_exponent(number, v) for v in VALUES]
        np.testing.assert_allclose(by_exponent, wanted, rtol=1e-12, err_msg=f"{number} ** t")


def test_slopes_of_powers_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x, y = (torch.tensor(v, requires_grad=True) for v in GRID)
    (x**y).sum().backward()
    for grad, exact in ((x.grad, slope_by_base), (y.grad, slope_by_exponent)):
        wanted = np.vectorize(exact)(*GRID)
        np.testing.assert_allclose(grad.numpy(), wanted, rtol=1e-12)


@pytest.mark.slow
def test_powers_differentiate_twice() -> None:
    x = pb.tensor(np.array([0.3, 1.7, 2.4]))
    for n in (-2, -5, 2.5):
        pb.check_grads(lambda t, n=n: pb.sum(t**n), [x])
    pb.check_grads(lambda t, u: pb.sum(t**u), [x, pb.tensor(np.array([0.5, -1.2, 3.0]))])
