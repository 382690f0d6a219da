"""Writes src/pullback/special/tables.py: the rational functions that special functions are made of.

Each interpolates, at Chebyshev points and in 50 digits of mpmath, a function that has been freed
of its zeros, poles and exponentials: ``p(t) / q(t)``, ``t = x - center``, ``q(0) = 1``. The error
of each between the points, relative to the function, is checked to be below 2^-55;
of several the one is taken whose terms cancel least.

`python scripts/special_tables.py`
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

ROOT = Path(__file__).parent.parent
LIMIT = mp.mpf(2) ** -55
SLACK = 3  # terms more than needed
mp.mp.dps = 50
Real = Any


def nodes(low: Real, high: Real, count: int) -> list[Real]:
    """Chebyshev points."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]


def fit(points: Any, center: float, top: int, bottom: int) -> Any:
    """(center, p, q), lowest power first: the rational of these degrees that meets f at points."""
    center = mp.mpf(center)
    rows, right = [], []
    for x, y in points:
        t = x - center
        rows.append([t**k for k in range(top + 1)] + [-y * t**k for k in range(1, bottom + 1)])
        right.append(y)
    found = mp.lu_solve(mp.matrix(rows), mp.matrix(right))
    p = [found[k] for k in range(top + 1)]
    q = [mp.mpf(1)] + [found[top + k] for k in range(1, bottom + 1)]
    return center, p, q


def value(fitted: Any, x: Real) -> Real:
    center, p, q = fitted
    t = x - center
    return sum(c * t**k for k, c in enumerate(p)) / sum(c * t**k for k, c in enumerate(q))


def spoilt(fitted: Any, low: float, high: float) -> float:
    """By how much sums of terms cancel: the largest sum of their sizes by that of the terms."""
    center, p, q = fitted
    worst = 0.0
    for k in range(41):
        t = mp.mpf(low) + (mp.mpf(high) - low) * k / 40 - center
        sums = [
            sum(abs(c * t**n) for n, c in enumerate(part))
            / abs(sum(c * t**n for n, c in enumerate(part)))
            for part in (p, q)
        ]
        worst = max(worst, float(max(sums)))
    return worst


def best(f: Callable[[Real], Real], low: float, high: float) -> Any:
    """Of the rationals that are good enough, and have few more terms than needed, the one whose
    terms cancel least."""
    ends = mp.mpf(low), mp.mpf(high)
    tests = [low + (ends[1] - ends[0]) * mp.mpf(k) / 100 for k in range(101)]
    exact = [(x, f(x)) for x in tests]
    found: list[tuple[float, int, Any]] = []
    least = 99
    for total in range(6, 24):
        points = [(x, f(x)) for x in nodes(*ends, total + 1)]
        for bottom in range(total // 2 + 1):
            for center in {low, high, float((ends[0] + ends[1]) / 2)}:
                try:
                    fitted = fit(points, center, total - bottom, bottom)
                except ZeroDivisionError:
                    continue
                if max(abs(value(fitted, x) / y - 1) for x, y in exact) < LIMIT:
                    least = min(least, total)
                    found.append((spoilt(fitted, low, high), total, fitted))
        if total >= least + SLACK:
            break
    if not found:
        raise SystemExit(f"no rational on {low}..{high}")
    cancelled, total, chosen = min(found, key=lambda row: row[0] + 0.05 * row[1])
    print(f"  {low}..{high}: {total} terms, sums cancel {cancelled:.2f} times")
    return chosen


# --- the functions, freed of zeros, poles and exponentials ---------------------------------------

ROOT_OF_DIGAMMA = mp.findroot(mp.digamma, 1.46)


def gamma_zeros(x: Real) -> Real:
    """``log gamma(x) / ((x - 1) (x - 2))``"""
    if x in (1, 2):
        x += mp.mpf(10) ** -30
    return mp.loggamma(x) / ((x - 1) * (x - 2))


def digamma_zero(x: Real) -> Real:
    if abs(x - ROOT_OF_DIGAMMA) < mp.mpf(10) ** -30:
        return mp.polygamma(1, ROOT_OF_DIGAMMA)
    return mp.digamma(x) / (x - ROOT_OF_DIGAMMA)


def erfcx(x: Real) -> Real:
    return mp.exp(x * x) * mp.erfc(x)


def erfcx_far(u: Real) -> Real:
    """``x sqrt(pi) erfcx(x)`` at ``x = 1 / sqrt(u)``"""
    if u == 0:
        return mp.mpf(1)
    x = 1 / mp.sqrt(u)
    return x * mp.sqrt(mp.pi) * (erfcx(x) if x < 60 else series(u))


def series(u: Real) -> Real:
    """erfcx of 1 / sqrt(u), asymptotically."""
    total, term = mp.mpf(0), mp.mpf(1)
    for k in range(1, 40):
        total += term
        term *= -(2 * k - 1) * u / 2
    return total * mp.sqrt(u / mp.pi)


def erf_near(s: Real) -> Real:
    """``erf(x) / x`` at ``x = sqrt(s)``"""
    if s == 0:
        return 2 / mp.sqrt(mp.pi)
    x = mp.sqrt(s)
    return mp.erf(x) / x


def inverse_near(s: Real) -> Real:
    """``erfinv(x) / x`` at ``x = sqrt(s)``"""
    if s == 0:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(s)
    return mp.erfinv(x) / x


def tail(r: Real) -> Real:
    """``-ndtri(p)`` at ``p = exp(-r^2)``"""
    p = mp.exp(-r * r)
    z = mp.mpf(r) * mp.sqrt(2)
    for _ in range(80):  # Newton's method on log ndtr(-z) = -r^2
        tail_of = mp.erfc(z / mp.sqrt(2)) / 2
        step = mp.log(tail_of / p) * tail_of / (mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi))
        z += step
        if abs(step) < mp.mpf(10) ** -45:
            break
    return z


def tail_rest(r: Real) -> Real:
    """``-ndtri(p) - sqrt(2) r``"""
    return tail(r) - mp.sqrt(2) * mp.mpf(r)


def bessel_far(order: int) -> Callable[[Real], Real]:
    """``sqrt(x) exp(-x) I(x)`` at ``x = 1 / u``"""

    def scaled(u: Real) -> Real:
        if u < mp.mpf(1) / 400:
            total, term = mp.mpf(0), mp.mpf(1)
            for k in range(1, 40):
                total += term
                term *= -(4 * order * order - (2 * k - 1) ** 2) * u / (8 * k)
            return total / mp.sqrt(2 * mp.pi)
        x = 1 / u
        return mp.sqrt(x) * mp.exp(-x) * mp.besseli(order, x)

    return scaled


TABLES: dict[str, list[tuple[Callable[[Real], Real], float, float]]] = {
    "LGAMMA_NEAR": [(gamma_zeros, 0.5, 1.5), (gamma_zeros, 1.5, 3.0)],
    "LGAMMA": [(mp.loggamma, 3.0, 5.0), (mp.loggamma, 5.0, 8.0)],
    "DIGAMMA_NEAR": [(digamma_zero, 1.0, 2.0)],
    "DIGAMMA": [(mp.digamma, 2.0, 4.5), (mp.digamma, 4.5, 10.0)],
    "ERF_NEAR": [(erf_near, 0.0, 0.25)],
    "ERFCX": [(erfcx, 0.0, 1.0), (erfcx, 1.0, 2.5), (erfcx, 2.5, 5.0)],
    "ERFCX_FAR": [(erfcx_far, 0.0, 0.04)],
    "ERFINV_NEAR": [(inverse_near, 0.0, 0.5625)],
    "NDTRI_TAIL": [(tail, 1.4, 3.0)],
    "NDTRI_FAR": [(tail_rest, 3.0, 8.0), (tail_rest, 8.0, 27.5)],
    "I0_FAR": [(bessel_far(0), 0.0, 0.125)],
    "I1_FAR": [(bessel_far(1), 0.0, 0.125)],
}


def row(name: str) -> list[str]:
    """The lines of one table."""
    print(name)
    rows = []
    for f, low, high in TABLES[name]:
        center, p, q = best(f, low, high)
        both = ["".join(f"{float(c)!r}," for c in reversed(part)) for part in (p, q)]
        rows.append(f"({float(center)!r}, ({both[0]}), ({both[1]})),")
    ends = ", ".join(repr(high) for _, _, high in TABLES[name])
    return [f"{name}: tuple[Ratio, ...] = ({' '.join(rows)})", f"{name}_ENDS = ({ends},)", ""]


def written() -> str:
    """The whole module; `ruff format` breaks its lines."""
    lines = [
        '"""Rational functions, made by `scripts/special_tables.py`; the first is the center.',
        "",
        "``p(t) / q(t)``, ``t = x - center``, highest power first.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "Ratio = tuple[float, tuple[float, ...], tuple[float, ...]]",
        "",
    ]
    high = mp.mpf(float(ROOT_OF_DIGAMMA))
    lines += [f"DIGAMMA_ROOT = ({float(high)!r}, {float(ROOT_OF_DIGAMMA - high)!r})", ""]
    for name in TABLES:
        lines += row(name)
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "src" / "pullback" / "special" / "tables.py").write_text(written())
