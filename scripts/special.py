"""Errors of special functions in units of the last place, against mpmath, beside SciPy's.

`python scripts/special.py [COUNT]`: COUNT draws (2000) from each range in float64, as the table of
docs/accuracy.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import scipy.special as theirs

import pullback as pb

mp.mp.dps = 40
S = pb.special
Array = np.ndarray[Any, Any]


def spread(low: float, high: float) -> Callable[[Any, int], Array]:
    """Evenly drawn."""
    return lambda rng, n: rng.uniform(low, high, n)


def sizes(low: float, high: float, sign: float = 1.0) -> Callable[[Any, int], Array]:
    """Evenly drawn in logarithms."""
    return lambda rng, n: sign * np.exp(rng.uniform(np.log(low), np.log(high), n))


def normal_quantile(p: Any) -> Any:
    if p < 0.5:
        z = -mp.sqrt(-2 * mp.log(p)) if p < 0.01 else mp.mpf(float(theirs.ndtri(float(p))))
    else:
        return -normal_quantile(1 - p)
    for _ in range(60):
        tail = mp.ncdf(z)
        step = mp.log(tail / p) * tail / mp.npdf(z)
        z -= step
        if abs(step) < mp.mpf(10) ** -35 * (1 + abs(z)):
            break
    return z


def error_inverse(x: Any) -> Any:
    return normal_quantile((x + 1) / 2) / mp.sqrt(2)


ROWS: list[tuple[str, str, Callable[..., Any], Any, Any, Any]] = [
    ("gammaln", "1e-300 .. 1e300", S.gammaln, theirs.gammaln, mp.loggamma, sizes(1e-300, 1e300)),
    ("gammaln", "0 .. 20", S.gammaln, theirs.gammaln, mp.loggamma, spread(0, 20)),
    ("digamma", "1e-300 .. 1e300", S.digamma, theirs.digamma, mp.digamma, sizes(1e-300, 1e300)),
    ("digamma", "0 .. 12", S.digamma, theirs.digamma, mp.digamma, spread(0, 12)),
    *(
        (f"polygamma {n}", "1e-2 .. 1e4", lambda x, n=n: S.polygamma(n, x),
         lambda x, n=n: theirs.polygamma(n, x), lambda x, n=n: mp.polygamma(n, x), sizes(1e-2, 1e4))
        for n in (1, 2, 5, 12)
    ),
    ("zeta(x)", "1.01 .. 60", S.zeta, theirs.zeta, mp.zeta, spread(1.01, 60)),
    ("zeta(3.5, q)", "1e-2 .. 1e6", lambda q: S.zeta(3.5, q), lambda q: theirs.zeta(3.5, q),
     lambda q: mp.zeta(mp.mpf(3.5), q), sizes(1e-2, 1e6)),
    ("erfc", "-6 .. 26", S.erfc, theirs.erfc, mp.erfc, spread(-6, 26)),
    ("erfcx", "-26 .. 10", S.erfcx, theirs.erfcx, lambda x: mp.exp(x * x) * mp.erfc(x),
     spread(-26, 10)),
    ("erfcx", "1e-5 .. 1e5", S.erfcx, theirs.erfcx,
     lambda x: mp.exp(x * x) * mp.erfc(x), sizes(1e-5, 1e3)),
    ("erfinv", "-1 .. 1", S.erfinv, theirs.erfinv, error_inverse, spread(-1, 1)),
    ("erfinv", "1e-16 .. 1", S.erfinv, theirs.erfinv, lambda x: mp.erfinv(x), sizes(1e-16, 0.99)),
    ("ndtr", "-37 .. 8", S.ndtr, theirs.ndtr, mp.ncdf, spread(-37, 8)),
    ("log_ndtr", "-40 .. 8", S.log_ndtr, theirs.log_ndtr, lambda x: mp.log(mp.ncdf(x)),
     spread(-40, 8)),
    ("ndtri", "1e-300 .. 1", S.ndtri, theirs.ndtri, normal_quantile, sizes(1e-300, 1)),
    ("ndtri", "0.01 .. 0.99", S.ndtri, theirs.ndtri, normal_quantile, spread(0.01, 0.99)),
    ("i0", "-700 .. 700", S.i0, theirs.i0, lambda x: mp.besseli(0, x), spread(-700, 700)),
    ("i0", "1e-3 .. 20", S.i0, theirs.i0, lambda x: mp.besseli(0, x), sizes(1e-3, 20)),
    ("i0e", "1e-3 .. 1e4", S.i0e, theirs.i0e,
     lambda x: mp.exp(-abs(x)) * mp.besseli(0, x), sizes(1e-3, 1e4)),
    ("i1", "1e-3 .. 700", S.i1, theirs.i1, lambda x: mp.besseli(1, x), sizes(1e-3, 700)),
    ("i1e", "1e-3 .. 1e4", S.i1e, theirs.i1e,
     lambda x: mp.exp(-abs(x)) * mp.besseli(1, x), sizes(1e-3, 1e4)),
    *(
        (name, where, getattr(S, name), getattr(theirs, name), lambda x, n=n, f=f: f(n, x), draw)
        for name, f, n in (("j0", mp.besselj, 0), ("j1", mp.besselj, 1), ("y0", mp.bessely, 0),
                           ("y1", mp.bessely, 1))
        for where, draw in (("0 .. 8", spread(1e-3, 8)), ("8 .. 1e5", sizes(8, 1e5)))
    ),
    *(
        (name, "1e-10 .. 700", getattr(S, name), getattr(theirs, name),
         lambda x, n=n: mp.besselk(n, x), sizes(1e-10, 700))
        for n, name in enumerate(("k0", "k1"))
    ),
    ("xlogy(2.5, y)", "1e-300 .. 1e300", lambda y: S.xlogy(2.5, y), lambda y: theirs.xlogy(2.5, y),
     lambda y: mp.mpf(2.5) * mp.log(y), sizes(1e-300, 1e300)),
    ("entr", "1e-300 .. 1e3", S.entr, theirs.entr, lambda x: -x * mp.log(x), sizes(1e-300, 1e3)),
    ("logit", "0 .. 1", S.logit, theirs.logit, lambda p: mp.log(p / (1 - p)), spread(0, 1)),
    ("expit", "-700 .. 40", S.expit, theirs.expit, lambda x: 1 / (1 + mp.exp(-x)),
     spread(-700, 40)),
    ("sinc", "-5 .. 5", S.sinc, np.sinc, lambda x: mp.sinpi(x) / (mp.pi * x), spread(-5, 5)),
    ("exp2", "-1000 .. 1000", S.exp2, theirs.exp2, lambda x: mp.mpf(2) ** x, spread(-1000, 1000)),
]  # fmt: skip


def gamma_tails(a: Any, x: Any) -> tuple[Any, Any]:
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
    found = mp.mpf(0)
    for k in range(int(2000 / x) + 300, 0, -1):
        found = k * (a - k) / (x + 2 * k + 1 - a + found)
    tail = weight / (x + 1 - a + found)
    return 1 - tail, tail


# Of a and, as a multiple of a or of its root about a, of x.
INCOMPLETE = {
    "a 1e-8 .. 1, x 1e-6 .. 40": (1e-8, 1.0, lambda rng, a: sizes(1e-6, 40.0)(rng, a.size)),
    "a 0.01 .. 1.5, x 0.2 .. 4": (0.01, 1.5, lambda rng, a: rng.uniform(0.2, 4.0, a.size)),
    "a 1 .. 20, x / a 0.05 .. 20": (
        1.0, 20.0, lambda rng, a: a * np.exp(rng.uniform(-3, 3, a.size))
    ),
    "a 1 .. 1e4, 2 deviations": (
        1.0, 1e4, lambda rng, a: a + 2 * rng.normal(size=a.size) * np.sqrt(a)
    ),
    "a 1 .. 5000, 12 deviations": (
        1.0, 5e3, lambda rng, a: a + 12 * rng.normal(size=a.size) * np.sqrt(a)
    ),
}  # fmt: skip


def incomplete(count: int) -> None:
    rng = np.random.default_rng(1)
    for where, (low, high, draw) in INCOMPLETE.items():
        a = sizes(low, high)(rng, count)
        x = draw(rng, a)
        x = np.where(x > 1e-3 * a, x, 1e-3 * a)
        exact = [gamma_tails(u, v) for u, v in zip(a.tolist(), x.tolist(), strict=True)]
        for n, name in enumerate(("gammainc", "gammaincc")):
            right = [e[n] for e in exact]
            mine, at = off(getattr(S, name)(pb.tensor(a), pb.tensor(x)).numpy(), right)
            other, _ = off(getattr(theirs, name)(a, x), right)
            place = f"{a[at]:.4g}, {x[at]:.4g}"
            print(f"| `{name}` | {where} | {mine:.1f} | {other:.1f} | {place} |", flush=True)


def off(found: Array, exact: list[Any]) -> tuple[float, int]:
    """The largest error in units of the last place, and where."""
    worst, where = 0.0, 0
    for n, (own, right) in enumerate(zip(found, exact, strict=True)):
        if abs(right) < mp.mpf(2) ** -1000 or abs(right) > mp.mpf(2) ** 1023:
            continue
        error = float(
            abs(mp.mpf(float(own)) - right) / mp.mpf(float(np.spacing(abs(float(right)))))
        )
        if not error <= worst:
            worst, where = error, n
    return worst, where


def main(count: int) -> None:
    rng = np.random.default_rng(0)
    print("| function | range | pullback | SciPy | at |\n|---|---|---|---|---|")
    for name, where, own, scipy_one, right, draw in ROWS:
        x = draw(rng, count)
        exact = [mp.re(right(mp.mpf(float(v)))) for v in x]
        mine, place = off(own(pb.tensor(x)).numpy(), exact)
        other, _ = off(scipy_one(x), exact)
        print(f"| `{name}` | {where} | {mine:.1f} | {other:.1f} | {x[place]:.4g} |", flush=True)
    incomplete(count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
