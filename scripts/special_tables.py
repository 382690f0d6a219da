"""Writes the tables of src/pullback/special: the rationals that special functions are made of.

Each interpolates, at Chebyshev points and in 50 digits of mpmath, a function that has been freed
of its zeros, poles and exponentials: ``p(t) / q(t)``, ``t = x - center``, ``q(0) = 1``. The error
of each between the points, relative to the function, is checked to be below 2^-55, for results in
float32 below 2^-30; of several the one is taken whose terms cancel least.

`python scripts/special_tables.py [FILE ..]`: all of them, or those named.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

ROOT = Path(__file__).parent.parent
LIMIT = mp.mpf(2) ** -55
LIMIT_SINGLE = mp.mpf(2) ** -30
SLACK = 3  # terms more than needed
mp.mp.dps = 50
Real = Any
Piece = tuple[Callable[[Any], Any], float, float]
Tables = dict[str, list[Piece]]


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


def best(f: Callable[[Real], Real], low: float, high: float, limit: Real) -> Any:
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
                if max(abs(value(fitted, x) / y - 1) for x, y in exact) < limit:
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


TABLES: Tables = {
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


SINGLE: Tables = {  # of arguments that float32 has, where the function is a number in it
    "ERFCX": [(erfcx, 0.0, 10.25)],
    "ERFINV_NEAR": [(inverse_near, 0.0, 0.5625)],
    "NDTRI_TAIL": [(tail, 1.4, 4.25)],
    "LGAMMA_NEAR": [(gamma_zeros, 0.5, 3.0)],
    "LGAMMA": [(mp.loggamma, 3.0, 8.0)],
}


# --- Bessel functions, freed of zeros, logarithms and waves -------------------------------------

ZEROS = {  # up to 8, and Y's below its logarithm's end
    "J0": (mp.besseljzero(0, 1), mp.besseljzero(0, 2)),
    "J1": (mp.besseljzero(1, 1), mp.besseljzero(1, 2)),
    "Y0": (mp.besselyzero(0, 1), mp.besselyzero(0, 2), mp.besselyzero(0, 3)),
    "Y1": (mp.besselyzero(1, 1), mp.besselyzero(1, 2), mp.besselyzero(1, 3)),
}


def without(f: Callable[[Real], Real], zero: Real, rooted: bool = False) -> Callable[[Real], Real]:
    """``f(x) / (x^2 - zero^2)``; `rooted`: of ``s = x^2``."""

    def freed(s: Real) -> Real:
        x = mp.sqrt(s) if rooted else mp.mpf(s)
        x += mp.mpf(10) ** -30 if abs(x) < mp.mpf(10) ** -30 else 0
        x += mp.mpf(10) ** -30 if abs(x - zero) < mp.mpf(10) ** -30 else 0
        with mp.workdps(90):
            return f(x) / (x * x - zero * zero)

    return freed


def without_log(order: int, zero: Real) -> Callable[[Real], Real]:
    """``x^order (Y(x) - 2 / pi log(x / zero) J(x))``, an even function without zeros."""
    return lambda x: (
        x**order * (mp.bessely(order, x) - 2 / mp.pi * mp.log(x / zero) * mp.besselj(order, x))
    )


def far_size(order: int) -> Callable[[Real], Real]:
    """``pi / 2 x (J^2 + Y^2)`` at ``x = 1 / sqrt(s)``"""

    def size(s: Real) -> Real:
        if s < mp.mpf(10) ** -12:
            return 1 + (4 * order * order - 1) * mp.mpf(s) / 8
        x = 1 / mp.sqrt(s)
        return mp.pi / 2 * x * (mp.besselj(order, x) ** 2 + mp.bessely(order, x) ** 2)

    return size


def far_phase(order: int) -> Callable[[Real], Real]:
    """``x (arg(J + i Y) - x + (2 n + 1) pi / 4)`` at ``x = 1 / sqrt(s)``"""

    def phase(s: Real) -> Real:
        m = 4 * order * order
        if s < mp.mpf(10) ** -12:
            return mp.mpf(m - 1) / 8 + mp.mpf((m - 1) * (m - 25)) / 384 * s
        x = 1 / mp.sqrt(s)
        wave = mp.expj((2 * order + 1) * mp.pi / 4 - x)
        return x * mp.arg(mp.mpc(mp.besselj(order, x), mp.bessely(order, x)) * wave)

    return phase


def k_near(order: int) -> Callable[[Real], Real]:
    """``K0 + log(x) I0`` or ``(K1 - 1 / x - log(x) I1) / x`` at ``x = sqrt(s)``"""

    def rest(s: Real) -> Real:
        x = mp.sqrt(s if s > mp.mpf(10) ** -40 else mp.mpf(10) ** -40)
        with mp.workdps(120):
            if order == 0:
                return mp.besselk(0, x) + mp.log(x) * mp.besseli(0, x)
            return (mp.besselk(1, x) - 1 / x - mp.log(x) * mp.besseli(1, x)) / x

    return rest


def y1_near(s: Real) -> Real:
    """``(Y1 - 2 / pi (log(x) J1 - 1 / x)) / x`` at ``x = sqrt(s)``"""
    x = mp.sqrt(s if s > mp.mpf(10) ** -40 else mp.mpf(10) ** -40)
    with mp.workdps(120):
        return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def k_far(order: int) -> Callable[[Real], Real]:
    """``sqrt(x) exp(x) K(x)`` at ``x = 1 / u``"""

    def scaled(u: Real) -> Real:
        if u < mp.mpf(1) / 400:
            total, term = mp.mpf(0), mp.mpf(1)
            for k in range(1, 40):
                total += term
                term *= (4 * order * order - (2 * k - 1) ** 2) * mp.mpf(u) / (8 * k)
            return total * mp.sqrt(mp.pi / 2)
        x = 1 / mp.mpf(u)
        return mp.sqrt(x) * mp.exp(x) * mp.besselk(order, x)

    return scaled


def j_pieces(order: int, cut: float) -> list[Piece]:
    first, second = ZEROS[f"J{order}"]

    def plain(x: Real) -> Real:
        return mp.besselj(order, x)

    return [
        (without(lambda x: plain(x) / x**order, first, True), 0.0, cut * cut),
        (without(plain, second), cut, 8.0),
    ]


def y_pieces(order: int, cuts: list[float]) -> list[Piece]:
    first, *others = ZEROS[f"Y{order}"]
    near = without(without_log(order, first), first, True)
    pieces = [(near, 0.0, cuts[0] ** 2)]
    for zero, low, high in zip(others, cuts[:-1], cuts[1:], strict=True):
        pieces.append((without(lambda x: mp.bessely(order, x), zero), low, high))
    return pieces


BESSEL: Tables = {
    "J0": j_pieces(0, 4.0),
    "J1": j_pieces(1, 5.3),
    "Y0": y_pieces(0, [2.5, 5.5, 8.0]),
    "Y1": y_pieces(1, [3.75, 7.0, 8.0]),
    "Y1_NEAR": [(y1_near, 0.0, 1.0)],
    "SIZE0": [(far_size(0), 0.0, 1 / 64)],
    "SIZE1": [(far_size(1), 0.0, 1 / 64)],
    "PHASE0": [(far_phase(0), 0.0, 1 / 64)],
    "PHASE1": [(far_phase(1), 0.0, 1 / 64)],
    "K0_NEAR": [(k_near(0), 0.0, 1.0)],
    "K1_NEAR": [(k_near(1), 0.0, 1.0)],
    "K0_FAR": [(k_far(0), 0.0, 0.25), (k_far(0), 0.25, 1.0)],
    "K1_FAR": [(k_far(1), 0.0, 0.25), (k_far(1), 0.25, 1.0)],
}


# --- what incomplete gamma functions need --------------------------------------------------------


def gamma_rest(a: Real) -> Real:
    """``(1 / gamma(1 + a) - 1) / (a (1 - a))``"""
    a = mp.mpf(a)
    a += mp.mpf(10) ** -25 if a == 0 else -(mp.mpf(10) ** -25) if a == 1 else 0
    with mp.workdps(90):
        return (mp.rgamma(1 + a) - 1) / (a * (1 - a))


def gamma_slope(a: Real) -> Real:
    """``-log gamma(1 + a) / (a (1 - a))``"""
    a = mp.mpf(a)
    a += mp.mpf(10) ** -25 if a == 0 else -(mp.mpf(10) ** -25) if a == 1 else 0
    with mp.workdps(90):
        return -mp.loggamma(1 + a) / (a * (1 - a))


def stirling_rest(v: Real) -> Real:
    """``a (log gamma(a) - (a - 1/2) log a + a - log(2 pi) / 2)`` at ``a = 1 / v``"""
    if v < mp.mpf(1) / 10**4:
        return mp.mpf(1) / 12 - mp.mpf(v) ** 2 / 360 + mp.mpf(v) ** 4 / 1260
    a = 1 / mp.mpf(v)
    return a * (mp.loggamma(a) - (a - 0.5) * mp.log(a) + a - mp.log(2 * mp.pi) / 2)


GAMMA: Tables = {
    "GAMMA_REST": [(gamma_rest, 0.0, 1.0)],
    "GAMMA_SLOPE": [(gamma_slope, 0.0, 1.0)],
    "STIRLING_REST": [(stirling_rest, 0.0, 0.5), (stirling_rest, 0.5, 1.0)],
}
LEAST, WIDTH = 20, mp.mpf("0.36")  # of a and |eta|, where Temme's expansion is used


def temme(orders: int = 13) -> list[list[float]]:
    """Coefficients of powers of eta in those of 1 / a. Source: DLMF 8.12.11 and 8.12.12."""
    count = 24 + 2 * orders
    alpha = [mp.mpf(0), mp.mpf(1), mp.mpf(1) / 3]
    for n in range(3, count + 3):
        total = sum(j * alpha[j] * alpha[n + 1 - j] for j in range(2, n))
        alpha.append((alpha[n - 1] - total) / (n + 1))
    series = mp.taylor(lambda v: mp.exp(v * stirling_rest_series(v)), 0, orders)
    first = [-mp.mpf(1) / 3] + [(n + 2) * alpha[n + 2] for n in range(1, count)]
    rows = [first]
    for k in range(1, orders):
        last = rows[-1]
        scale = (-1) ** k * series[k]
        rows.append([scale * first[n] + (n + 2) * last[n + 2] for n in range(len(last) - 2)])
    kept = []
    for k, listed in enumerate(rows):
        sizes = [abs(c) * WIDTH**n / LEAST**k for n, c in enumerate(listed)]
        last_one = max((n for n, s in enumerate(sizes) if s > mp.mpf(2) ** -58), default=-1)
        kept.append([float(c) for c in listed[: last_one + 1]])
    return [listed for listed in kept if listed]


def stirling_rest_series(v: Real) -> Real:
    """Its asymptotic series, of few terms: for coefficients alone."""
    return sum(mp.bernoulli(2 * k) / (2 * k * (2 * k - 1)) * v ** (2 * k - 2) for k in range(1, 12))


def row(name: str, pieces: list[Piece], limit: Real = LIMIT) -> list[str]:
    """The lines of one table."""
    print(name, flush=True)
    rows = []
    for f, low, high in pieces:
        center, p, q = best(f, low, high, limit)
        both = ["".join(f"{float(c)!r}," for c in reversed(part)) for part in (p, q)]
        rows.append(f"({float(center)!r}, ({both[0]}), ({both[1]})),")
    ends = ", ".join(repr(high) for _, _, high in pieces)
    return [f"{name}: tuple[Ratio, ...] = ({' '.join(rows)})", f"{name}_ENDS = ({ends},)", ""]


def in_two(x: Real) -> str:
    """A number as the sum of two floats."""
    high = mp.mpf(float(x))
    return f"({float(high)!r}, {float(x - high)!r})"


HEAD = '''"""Rational functions, made by `scripts/special_tables.py`; the first is the center.

``p(t) / q(t)``, ``t = x - center``, highest power first.
"""

from __future__ import annotations

'''


def elementary_tables() -> str:
    lines = [HEAD, "Ratio = tuple[float, tuple[float, ...], tuple[float, ...]]", ""]
    lines += [f"DIGAMMA_ROOT = {in_two(ROOT_OF_DIGAMMA)}", ""]
    return "\n".join(lines + [line for name in TABLES for line in row(name, TABLES[name])])


def single_tables() -> str:
    lines = [HEAD, "from pullback.special.tables import Ratio", ""]
    rows = (row(name, pieces, LIMIT_SINGLE) for name, pieces in SINGLE.items())
    return "\n".join(lines + [line for listed in rows for line in listed])


def bessel_tables() -> str:
    lines = [HEAD, "from pullback.special.tables import Ratio", ""]
    for name, zeros in ZEROS.items():
        lines += [f"{name}_ZEROS = ({', '.join(map(in_two, zeros))},)", ""]
    return "\n".join(lines + [line for name in BESSEL for line in row(name, BESSEL[name])])


def gamma_tables() -> str:
    lines = [HEAD, "from pullback.special.tables import Ratio", ""]
    rows = "".join(f"({''.join(f'{c!r},' for c in reversed(cs))})," for cs in temme())
    lines += [f"TEMME: tuple[tuple[float, ...], ...] = ({rows})", ""]
    return "\n".join(lines + [line for name in GAMMA for line in row(name, GAMMA[name])])


FILES = {
    "tables.py": elementary_tables,
    "single_tables.py": single_tables,
    "bessel_tables.py": bessel_tables,
    "gamma_tables.py": gamma_tables,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FILES:
        target = ROOT / "src" / "pullback" / "special" / name
        target.write_text(FILES[name]())
        subprocess.run(["ruff", "format", "-q", str(target)], check=True)
        subprocess.run(["ruff", "check", "-q", "--fix", str(target)], check=True)
