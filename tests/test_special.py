"""Special functions: values against mpmath to 4 units, derivatives, special points as SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special as theirs

import pullback as pb
from accuracy import ulps
from pullback.errors import PullbackError

S = pb.special
Array = np.ndarray[Any, Any]
UNITS = 4.0
COUNT = 60


def sizes(low: float, high: float) -> Array:
    rng = np.random.default_rng(0)
    return np.exp(rng.uniform(math.log(low), math.log(high), COUNT))


def spread(low: float, high: float) -> Array:
    return np.random.default_rng(1).uniform(low, high, COUNT)


def erfcx(x: Any) -> Any:
    return mp.exp(x * x) * mp.erfc(x)


def quantile(p: Any) -> Any:
    """The normal quantile, by Newton's method."""
    if p > 0.5:
        return -quantile(1 - p)
    z = -mp.sqrt(-2 * mp.log(p)) if p < 0.01 else mp.mpf(float(theirs.ndtri(float(p))))
    for _ in range(60):
        tail = mp.ncdf(z)
        step = mp.log(tail / p) * tail / mp.npdf(z)
        z -= step
        if abs(step) < mp.mpf(10) ** -30 * (1 + abs(z)):
            break
    return z


Case = tuple[Callable[..., Any], Callable[..., Any], list[Array]]
CASES: dict[str, Case] = {
    "gammaln": (S.gammaln, mp.loggamma, [sizes(1e-300, 1e300), spread(0, 12)]),
    "digamma": (S.digamma, mp.digamma, [sizes(1e-300, 1e300), spread(0, 12)]),
    "polygamma 1": (lambda x: S.polygamma(1, x), lambda x: mp.polygamma(1, x), [sizes(1e-2, 1e4)]),
    "polygamma 2": (lambda x: S.polygamma(2, x), lambda x: mp.polygamma(2, x), [sizes(1e-2, 1e4)]),
    "polygamma 9": (lambda x: S.polygamma(9, x), lambda x: mp.polygamma(9, x), [sizes(1e-2, 1e4)]),
    "zeta": (S.zeta, mp.zeta, [spread(1.01, 60)]),
    "zeta of q": (
        lambda q: S.zeta(3.5, q), lambda q: mp.zeta(mp.mpf(3.5), q), [sizes(1e-2, 1e5)]
    ),
    "erfc": (S.erfc, mp.erfc, [spread(-6, 26)]),
    "erfcx": (S.erfcx, erfcx, [spread(-26, 10), sizes(1e-5, 1e3)]),
    "erfinv": (
        S.erfinv, lambda x: quantile((x + 1) / 2) / mp.sqrt(2), [spread(-1, 1), sizes(1e-9, 0.9)]
    ),
    "ndtr": (S.ndtr, mp.ncdf, [spread(-37, 8)]),
    "log_ndtr": (S.log_ndtr, lambda x: mp.log(mp.ncdf(x)), [spread(-40, 8)]),
    "ndtri": (S.ndtri, quantile, [sizes(1e-300, 1), spread(0.01, 0.99)]),
    "i0": (S.i0, lambda x: mp.besseli(0, x), [spread(-700, 700), sizes(1e-3, 20)]),
    "i1": (S.i1, lambda x: mp.besseli(1, x), [spread(-700, 700), sizes(1e-3, 20)]),
    "j0": (S.j0, lambda x: mp.besselj(0, x), [spread(0, 8), sizes(8, 1e5)]),
    "j1": (S.j1, lambda x: mp.besselj(1, x), [spread(0, 8), sizes(8, 1e5)]),
    "y0": (S.y0, lambda x: mp.bessely(0, x), [sizes(1e-10, 8), sizes(8, 1e5)]),
    "y1": (S.y1, lambda x: mp.bessely(1, x), [sizes(1e-10, 8), sizes(8, 1e5)]),
    "k0": (S.k0, lambda x: mp.besselk(0, x), [sizes(1e-10, 700)]),
    "k1": (S.k1, lambda x: mp.besselk(1, x), [sizes(1e-10, 700)]),
    "k0e": (S.k0e, lambda x: mp.exp(x) * mp.besselk(0, x), [sizes(1e-10, 700)]),
    "k1e": (S.k1e, lambda x: mp.exp(x) * mp.besselk(1, x), [sizes(1e-10, 700)]),
    "i0e": (S.i0e, lambda x: mp.exp(-x) * mp.besseli(0, x), [sizes(1e-3, 1e4)]),
    "i1e": (S.i1e, lambda x: mp.exp(-x) * mp.besseli(1, x), [sizes(1e-3, 1e4)]),
    "entr": (S.entr, lambda x: -x * mp.log(x), [sizes(1e-300, 1e3)]),
    "logit": (S.logit, lambda p: mp.log(p / (1 - p)), [spread(0, 1), sizes(1e-300, 1)]),
    "expit": (S.expit, lambda x: 1 / (1 + mp.exp(-x)), [spread(-700, 40)]),
    "cbrt": (S.cbrt, mp.cbrt, [sizes(1e-300, 1e300), sizes(1e-3, 1e3)]),
    "rel_entr": (
        lambda x: S.rel_entr(x, 0.7), lambda x: x * mp.log(x / mp.mpf(0.7)),
        [sizes(1e-300, 1e300), sizes(0.5, 1.0)],
    ),
    "sinc": (S.sinc, lambda x: mp.sinpi(x) / (mp.pi * x), [spread(-5, 5)]),
    "exp2": (S.exp2, lambda x: mp.mpf(2) ** x, [spread(-1000, 1000)]),
}  # fmt: skip
NO_SCIPY = ("polygamma 1", "polygamma 2", "polygamma 9", "zeta of q", "sinc", "rel_entr")


def units(found: Array, exact: list[Any]) -> float:
    """The largest error in units of the last place."""
    errors = [
        abs(mp.mpf(float(own)) - right) / mp.mpf(float(np.spacing(abs(float(right)))))
        for own, right in zip(found, exact, strict=True)
    ]
    return float(max(errors))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    own, right, ranges = CASES[name]
    x = np.concatenate(ranges)
    with mp.workdps(40):
        exact = [mp.re(right(mp.mpf(float(v)))) for v in x]
        assert units(own(pb.tensor(x)).numpy(), exact) <= UNITS


SINGLE = {
    "erfc": (mp.erfc, -6.0, 10.2, (10.05, 10.06, 11.0, 3e38, -3e38, -0.0, 1e-40)),
    "erfinv": (mp.erfinv, -1.0, 1.0, (1 - 2**-24, 2**-24 - 1, 0.75, 0.7499, -0.0, 1e-40)),
    "gammaln": (mp.loggamma, 0.0, 20.0, (1e-40, 0.5, 3.0, 8.0, 1.9999, 3e38)),
}  # what has shorter tables for float32: a range, single points


@pytest.mark.parametrize("name", SINGLE)
def test_values_in_float32(name: str) -> None:
    right, low, high, points = SINGLE[name]
    drawn = np.random.default_rng(2).uniform(low, high, 300)
    x = np.array([*drawn, *points], np.float32)
    found = pb.jit(getattr(S, name))(pb.tensor(x)).numpy()
    assert found.dtype == np.float32
    with mp.workdps(40):
        exact = np.array([float(mp.re(right(mp.mpf(float(v))))) for v in x])
    worst = ulps(found, exact)
    at = int(worst.argmax())
    assert worst[at] <= 0.51, f"{name} of {x[at]!r}: {found[at]!r}, not {exact[at]!r}"


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CASES)
def test_slopes(name: str) -> None:
    """The derivative that is given, against mpmath's of the function itself."""
    own, right, ranges = CASES[name]
    x = ranges[-1][:12]
    x = x[(np.abs(x) > 1e-4) & (np.abs(x) < 30.0)][:5]
    x = x if x.size else np.array([0.3, 0.6])
    given = pb.tensor(x)
    slope = pb.grad(pb.sum(own(given)), given).numpy()
    with mp.workdps(50):
        wanted = [float(mp.re(mp.diff(right, mp.mpf(float(v)), h=mp.mpf(10) ** -12))) for v in x]
    np.testing.assert_allclose(slope, wanted, rtol=1e-11)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gammaln", "polygamma 2", "erfcx", "ndtri", "i1e", "sinc"])
def test_second_derivatives_and_other_modes(name: str) -> None:
    own, right, _ = CASES[name]
    x = np.array([0.3, 0.75])
    given = pb.tensor(x)

    def slope(t: pb.Tensor) -> Any:
        return pb.grad(lambda u: pb.sum(own(u)))(t)

    second = pb.jit(lambda t: pb.jvp(slope, (t,), (pb.ones_like(t),))[1])(given).numpy()
    with mp.workdps(50):
        wanted = [float(mp.diff(right, mp.mpf(v), 2, h=mp.mpf(10) ** -12)) for v in x]
    np.testing.assert_allclose(second, wanted, rtol=1e-9)
    rows = pb.vmap(slope)(pb.tensor(x[:, None])).numpy()
    np.testing.assert_allclose(rows[:, 0], slope(given).numpy(), rtol=1e-13)


POINTS = np.array(
    [0.0, -0.0, 1.0, 2.0, -1.0, -2.0, 0.5, -0.5, -1.5, math.inf, -math.inf, math.nan, 1e-310]
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [n for n in CASES if n not in NO_SCIPY and n != "zeta"])
def test_special_points(name: str) -> None:
    with np.errstate(all="ignore"):
        wanted = getattr(theirs, name)(POINTS)
    found = getattr(S, name)(pb.tensor(POINTS)).numpy()
    own = {
        "gammaln": {-math.inf: math.inf, 1e-310: 713.8013788281542},
        "i0": {math.inf: math.inf, -math.inf: math.inf},
        "i1": {math.inf: math.inf, -math.inf: -math.inf},
        **{n: {math.inf: 0.0, -math.inf: 0.0} for n in ("j0", "j1")},
        **{n: {math.inf: 0.0} for n in ("y0", "y1")},
    }
    for point, right in own.get(name, {}).items():  # where SciPy has -inf, inf, NaN and NaN
        wanted[point == POINTS] = right
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-300)


@pytest.mark.slow
def test_negative_arguments() -> None:
    x = np.array([-0.3, -1.2, -5.7, -20.25, -1e-20])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(S.gammaln(pb.tensor(x)).numpy(), theirs.gammaln(x), rtol=1e-13)
        np.testing.assert_allclose(S.digamma(pb.tensor(x)).numpy(), theirs.digamma(x), rtol=1e-12)
    for n in (1, 2, 3):
        found = S.polygamma(n, pb.tensor(x[:4])).numpy()
        wanted = [float(mp.polygamma(n, v)) for v in x[:4]]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.slow
def test_two_arguments() -> None:
    a, b = np.meshgrid([0.0, 0.5, 2.0, math.nan], [0.0, 0.25, 3.0, math.inf, math.nan])
    x, y = pb.tensor(a), pb.tensor(b)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(S.xlogy(x, y).numpy(), theirs.xlogy(a, b), rtol=1e-14)
        np.testing.assert_allclose(S.xlog1py(x, y).numpy(), theirs.xlog1py(a, b), rtol=1e-14)
        for name in ("rel_entr", "kl_div"):
            found = getattr(S, name)(x - 0.5, y).numpy()
            np.testing.assert_allclose(found, getattr(theirs, name)(a - 0.5, b), rtol=1e-14)
        q = np.array([[-1.0, 0.0, 0.5, 3.0, math.inf, math.nan]])
        s = np.array([[1.0], [2.0], [7.5]])
        found = S.zeta(pb.tensor(s), pb.tensor(q)).numpy()
        np.testing.assert_allclose(found, theirs.zeta(s, q), rtol=1e-13)
    p, r = np.array([0.5, 3.0, 20.0]), np.array([[2.0], [7.5]])
    for name in ("beta", "betaln"):
        found = getattr(S, name)(pb.tensor(p), pb.tensor(r)).numpy()
        np.testing.assert_allclose(found, getattr(theirs, name)(p, r), rtol=2e-13)
    found = S.multigammaln(pb.tensor(p + 2), 4).numpy()
    np.testing.assert_allclose(found, theirs.multigammaln(p + 2, 4), rtol=1e-14)
    clipped = S.logit(pb.tensor([0.0, 0.5, 1.0]), eps=0.1).numpy()
    np.testing.assert_allclose(clipped, theirs.logit([0.1, 0.5, 0.9]), rtol=1e-6)


def tails(a: float, x: float) -> tuple[Any, Any]:
    """P and Q: the series of positive terms, or Legendre's continued fraction."""
    a, x = mp.mpf(a), mp.mpf(x)
    weight = mp.exp(a * mp.log(x) - x - mp.loggamma(a))
    if x < a + 1:
        n, term = a, 1 / a
        total = term
        while term > total * mp.mpf(10) ** -35:
            n += 1
            term *= x / n
            total += term
        return total * weight, 1 - total * weight
    found, step = mp.mpf(0), int(2000 / x) + 300
    for k in range(step, 0, -1):
        found = k * (a - k) / (x + 2 * k + 1 - a + found)
    tail = weight / (x + 1 - a + found)
    return 1 - tail, tail


def incomplete_points(count: int) -> tuple[Array, Array]:
    """Small a; about a fraction's end; far from a; within a few deviations of a; in the tails."""
    rng = np.random.default_rng(2)
    sizes_of_a = [(1e-8, 1.0), (0.01, 1.5), (1.0, 20.0), (1.0, 1e4), (1.0, 5e3), (20.0, 400.0)]
    a = [np.exp(rng.uniform(math.log(u), math.log(v), count)) for u, v in sizes_of_a]
    normal = rng.normal(size=(2, count))
    x = [
        np.exp(rng.uniform(math.log(1e-6), math.log(40.0), count)),
        rng.uniform(0.2, 4.0, count),
        a[2] * np.exp(rng.uniform(-3, 3, count)),
        a[3] + 2 * normal[0] * np.sqrt(a[3]),
        a[4] + 12 * normal[1] * np.sqrt(a[4]),
        a[5] * rng.uniform(0.6, 1.45, count),
    ]
    whole = np.concatenate(a), np.concatenate(x)
    return whole[0], np.where(whole[1] > 1e-3 * whole[0], whole[1], 1e-3 * whole[0])


EDGES = (  # a, x
    (0.0, 0), (0.0, 1), (1, 0), (1, math.inf), (math.inf, 2), (2, -1), (-1, 1), (math.nan, 1),
    (3, math.nan), (0.0, math.inf), (1, 1e-300), (3, 1e200), (1e15, 1e15), (1e36, 2e36),
    (1e-300, 1e-300), (0.5, 1e-310), (20.0, 1e-20),
)  # fmt: skip


@pytest.mark.slow
def test_incomplete_gamma_to_four_units() -> None:
    inner = incomplete_points(11)
    a, x = (np.concatenate([p, e]) for p, e in zip(inner, np.array(EDGES).T, strict=True))
    count = inner[0].size
    with mp.workdps(40):
        exact = [tails(u, v) for u, v in zip(*(p.tolist() for p in inner), strict=True)]
        both = pb.jit(lambda u, v: (S.gammainc(u, v), S.gammaincc(u, v)))(
            pb.tensor(a), pb.tensor(x)
        )
        for n, name in enumerate(("gammainc", "gammaincc")):
            found = both[n].numpy()
            with np.errstate(all="ignore"):
                wanted = getattr(theirs, name)(a, x)[count:]
            np.testing.assert_allclose(found[count:], wanted, rtol=1e-12, atol=1e-300)
            rows = [(f, e[n]) for f, e in zip(found, exact, strict=False) if e[n] > 1e-300]
            assert units(np.array([f for f, _ in rows]), [e for _, e in rows]) <= UNITS, name


@pytest.mark.slow
def test_slopes_of_incomplete_gamma() -> None:
    assert S.gammainc(pb.ones((0, 2)), 1.0).shape == (0, 2)
    b, y = (pb.tensor(v, dtype="float64") for v in ([0.5, 3.0, 20.0], [0.8, 1.5, 26.0]))
    by_a, by_x = (g.numpy() for g in pb.grad(pb.sum(S.gammaincc(b, y)), [b, y]))
    for n, (u, v) in enumerate(((0.5, 0.8), (3.0, 1.5), (20.0, 26.0))):
        own = mp.diff(lambda t, v=v: mp.gammainc(t, v, mp.inf, regularized=True), u)
        np.testing.assert_allclose(by_a[n], float(own), rtol=1e-11)
        density = v ** (u - 1) * math.exp(-v) / math.gamma(u)
        np.testing.assert_allclose(by_x[n], -density, rtol=1e-13)


@pytest.mark.slow
def test_derivatives_of_bessel_functions() -> None:
    """Up to the third, at 0 too, where quotients by x would lose them."""
    x = np.array([0.0, 1e-3, 0.7, 3.2, 9.5, -2.5, 40.0])
    for n in (0, 1):
        found = pb.tensor(x)
        deriv = [S.jn(n, found)]
        for _ in range(3):
            deriv.append(pb.grad(pb.sum(deriv[-1]), found))
        for k, got in enumerate(deriv):
            wanted = [float(mp.besselj(n, mp.mpf(float(v)), derivative=k)) for v in x]
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=1e-14)
    right = np.array([0.3, 1.0, 4.4, 12.0])
    second = {
        S.y0: mp.bessely, S.k0: mp.besselk,
        S.k0e: lambda n, x: mp.exp(x) * mp.besselk(n, x),
        S.spherical_bessel_j0: lambda _, x: mp.sin(x) / x,
    }  # fmt: skip
    for f, own in second.items():
        found = pb.tensor(right)
        slope = pb.grad(pb.sum(f(found)), found)
        for k, got in ((1, slope), (2, pb.grad(pb.sum(slope), found))):
            wanted = [
                float(mp.diff(lambda v, own=own: own(0, v), mp.mpf(float(u)), k)) for u in right
            ]
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-8)


@pytest.mark.slow
def test_orders_and_far_out() -> None:
    x = np.array([0.0, 1e-8, 0.5, 2.0, 7.9, 8.1, 30.0, 61.0, 1e4, -3.0, math.inf])
    for n in (2, 17, 60):
        wanted = [float(mp.besselj(n, mp.mpf(float(v)))) if v < math.inf else 0.0 for v in x]
        np.testing.assert_allclose(S.jn(n, pb.tensor(x)).numpy(), wanted, rtol=2e-13, atol=1e-17)
    far = np.array([1.3e5, 7.77e8, 3.3e12])
    for own, right, n in ((S.j0, mp.besselj, 0), (S.y1, mp.bessely, 1)):
        wanted = [float(right(n, mp.mpf(float(v)))) for v in far]
        gap = np.abs(own(pb.tensor(far)).numpy() - wanted)
        assert (gap <= 4 * np.spacing(np.sqrt(2 / (math.pi * far)))).all()
    near = pb.tensor(np.array([0.0, 1e-9, 0.5, -0.5, 3.0, -20.0]))
    got = S.spherical_bessel_j0(near).numpy()
    np.testing.assert_allclose(got, theirs.spherical_jn(0, np.abs(near.numpy())), rtol=1e-14)


POLYNOMIALS = {
    "chebyshev_polynomial_t": theirs.eval_chebyt,
    "chebyshev_polynomial_u": theirs.eval_chebyu,
    "chebyshev_polynomial_v": lambda n, x: theirs.eval_jacobi(n, -0.5, 0.5, x) * central(n),
    "chebyshev_polynomial_w": lambda n, x: theirs.eval_jacobi(n, 0.5, -0.5, x) * central(n),
    "shifted_chebyshev_polynomial_t": theirs.eval_sh_chebyt,
    "shifted_chebyshev_polynomial_u": theirs.eval_sh_chebyu,
    "hermite_polynomial_h": theirs.eval_hermite,
    "hermite_polynomial_he": theirs.eval_hermitenorm,
    "laguerre_polynomial_l": theirs.eval_laguerre,
    "legendre_polynomial_p": theirs.eval_legendre,
}


def central(n: Any) -> Any:
    """``4^n / binomial(2 n, n)``, by which Jacobi's polynomials are smaller."""
    return 4.0**n / theirs.binom(2 * n, n)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomials(name: str) -> None:
    wanted, own = POLYNOMIALS[name], getattr(S, name)
    x = np.array([-1.0, -0.7, 0.0, 0.3, 0.9, 1.0, 1.8])
    orders = np.array([0, 1, 2, 3, 5, 9, 12])
    for n in (0, 1, 4):
        found = own(pb.tensor(x), n).numpy()
        np.testing.assert_allclose(found, wanted(n, x), rtol=1e-12, atol=1e-13)
    both = own(pb.tensor(x), pb.tensor(orders)).numpy()
    np.testing.assert_allclose(both, wanted(orders, x), rtol=1e-11, atol=1e-13)
    assert (report := pb.check_grads(lambda t: own(t, 4), [x], layouts=("contiguous",))), report
    np.testing.assert_array_equal(own(pb.tensor(x), -2).numpy(), 0 * x)


@pytest.mark.slow
def test_derivatives_by_two_arguments() -> None:
    p, q = np.array([1.5, 2.5]), np.array([0.3, 4.0])
    for f in (S.xlogy, S.xlog1py, S.betaln):
        assert (report := pb.check_grads(f, [p, q], layouts=("contiguous",))), report
    s = pb.tensor([2.5, 4.0], dtype="float64")
    slopes = pb.grad(pb.sum(S.zeta(s, pb.tensor(q))), s).numpy()
    wanted = [float(mp.diff(lambda u, b=b: mp.zeta(u, b), a)) for a, b in ((2.5, 0.3), (4.0, 4.0))]
    np.testing.assert_allclose(slopes, wanted, rtol=1e-10)


def test_zero_times_a_logarithm_has_a_gradient() -> None:
    x, y = pb.tensor([0.0, 2.0]), pb.tensor([0.0, 3.0])
    by_y = pb.grad(pb.sum(S.xlogy(x, y)), y).numpy()
    np.testing.assert_allclose(by_y, [0.0, 2.0 / 3.0], rtol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_other_floats_are_rounded_once(kind: str) -> None:
    x = pb.tensor(np.linspace(0.3, 6.0, 400), dtype=kind)
    for name in ("digamma", "ndtr", "i0", "log_ndtr"):  # those of `SINGLE` are to 0.51 units
        found = getattr(S, name)(x)
        wide = getattr(S, name)(pb.astype(x, "float64"))
        np.testing.assert_array_equal(
            found.numpy().astype(np.float64), wide.numpy().astype(found.numpy().dtype)
        )
    assert S.gammaln(pb.tensor([3])).dtype == pb.float32


@pytest.mark.slow
def test_inside_a_definition() -> None:
    x = pb.tensor(np.array([0.4, 2.0]))
    found = pb.compute((2,), lambda i: S.gammaln(x[i]) + S.erfc(x[i]))
    wanted = theirs.gammaln(x.numpy()) + theirs.erfc(x.numpy())
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-14, atol=1e-15)
    slope = pb.grad(pb.sum(found), x).numpy()
    bell = 2 / math.sqrt(math.pi) * np.exp(-(x.numpy() ** 2))
    np.testing.assert_allclose(slope, theirs.digamma(x.numpy()) - bell, rtol=1e-10)


def test_refused_by_code() -> None:
    x = pb.ones(3)
    for code, call in (
        ("E176", lambda: S.polygamma(-1, x)),
        ("E176", lambda: S.polygamma(101, x)),
        ("E176", lambda: S.polygamma(1.5, x)),
        ("E176", lambda: S.multigammaln(x, 0)),
        ("E176", lambda: S.jn(61, x)),
        ("E176", lambda: S.jn(0.5, x)),
        ("E175", lambda: S.legendre_polynomial_p(x, pb.ones(2))),
        ("E175", lambda: S.xlogy(x, pb.ones(2))),
    ):
        with pytest.raises(PullbackError) as caught:
            call()
        assert caught.value.code == code
    with pytest.raises(AttributeError):
        _ = S.gammalm
