"""Points, references in float64 and bounds for the accuracy of elementary functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Floats = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Floats) -> Floats:
    return np.exp(np.minimum(x, 0.0)) / (1 + np.exp(-np.abs(x)))


def _softplus(x: Floats) -> Floats:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


WANTED: dict[str, Callable[[Floats], Floats]] = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": _erf, "sigmoid": _sigmoid,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "exp2": np.exp2, "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2, "log10": np.log10,
    "softplus": _softplus, "log_sigmoid": lambda x: -_softplus(-x),
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
EXACT = dict.fromkeys(("exp", "log", "tanh", "erf", "exp2", "log1p"), 1.0)
BOUNDS = dict.fromkeys(WANTED, 0.51) | {
    "sigmoid": 1.5, "sin": 1.5, "cos": 1.5, "tan": 1.0, "rsqrt": 1.5, "softplus": 1.7,
    "log_sigmoid": 1.7,
} | EXACT  # fmt: skip
"""Units in the last place of float32."""
BOUNDS64 = {
    "exp": 1.2, "log": 0.9, "tanh": 2.4, "erf": 1.5, "sigmoid": 2.9, "sin": 1.0, "cos": 1.0,
    "tan": 3.2, "sinh": 3.0, "cosh": 3.0, "sqrt": 0.51, "rsqrt": 1.51, "reciprocal": 0.51,
    "expm1": 2.6, "log1p": 2.6, "log2": 1.8, "log10": 2.5, "softplus": 2.8, "log_sigmoid": 2.8,
    "asin": 2.5, "acos": 4.0, "atan": 3.3, "asinh": 3.0, "acosh": 3.6, "atanh": 3.2,
}  # fmt: skip
"""Units in the last place of float64."""
POWER_BOUND64 = 1.3
ELSEWHERE = {"float32": 3.4, "float64": 5.4}
"""Of every function where libraries have them: backends `c` and `opencl`."""
EDGES = (
    0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42, -1e-42, 1.0, -1.0, 0.5, -0.5, 88.9, 89.5,
    -89.5, -103.5, -110.0, 3e38, -3e38, 1e9, 2.5e9, -1e20, 3.1415927, 1.5707964, 16777216.0,
)  # fmt: skip
POWER_EDGES = (
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -2.5, 1e-42, -1e-42, 3e38,
    16777216.0, math.inf, -math.inf, math.nan,
)  # fmt: skip


def points(count: int) -> Floats:
    """Half of them any bits at all; numbers as they are used; multiples of pi / 2."""
    random = np.random.default_rng(0)
    part = count // 8
    bits = random.integers(0, 2**32, 4 * part, dtype=np.uint32).view(np.float32)
    spans = [random.uniform(-s, s, part) for s in (100.0, 1.2, 10.0)]
    near = np.arange(1, part + 1) * (math.pi / 2)
    return np.concatenate([bits, *spans, near]).astype(np.float32)


def points64(count: int) -> Floats:
    """Any bits at all, numbers as they are used, near 1, and multiples of pi / 2."""
    random = np.random.default_rng(0)
    words = random.integers(0, 2**64, 4 * count, dtype=np.uint64).view(np.float64)
    spans = [random.uniform(-s, s, count) for s in (710.4, 30.0, 10.0, 1.2, 0.6)]
    sizes = np.exp(random.uniform(-40, 8, 2 * count)) * random.choice([-1, 1], 2 * count)
    near = 1 + random.uniform(-1, 1, count) * np.exp(random.uniform(-36, -1, count))
    turns = np.arange(1, count + 1) * (math.pi / 2)
    return np.concatenate([words, *spans, sizes, near, turns, np.array(EDGES, np.float64)])


def powers(count: int) -> tuple[Floats, Floats]:
    """Bases and exponents with results of all sizes."""
    random = np.random.default_rng(1)
    bases = [np.exp(random.uniform(-80, 80, count)), random.uniform(0.5, 2, count)]
    exponents = [random.uniform(-3, 3, count), random.uniform(-120, 120, count)]
    return np.concatenate(bases).astype(np.float32), np.concatenate(exponents).astype(np.float32)


def ulps(found: Floats, wanted: Floats) -> Floats:
    """Errors in units in the last place of float32; infinite where only one is no number."""
    with np.errstate(all="ignore"):
        nearest = wanted.astype(np.float32)
        size = np.where(np.isfinite(nearest), np.abs(nearest), np.finfo(np.float32).max)
        error = np.abs(found.astype(np.float64) - wanted) / np.spacing(size).astype(np.float64)
        same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    return np.where(np.isfinite(error), error, np.where(same, 0.0, np.inf))


def ulps64(found: Floats, exact: Floats) -> Floats:
    """Errors in units in the last place of float64; infinite where only one is no number."""
    nearest = exact.astype(np.float64)
    unit = np.abs(np.spacing(np.where(np.isfinite(nearest), nearest, 1.0)))
    error = np.abs(found.astype(np.longdouble) - exact) / unit.astype(np.longdouble)
    same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    plain = np.isfinite(nearest) & np.isfinite(found)
    return np.where(plain, error, np.where(same, 0.0, np.inf)).astype(np.float64)


def powers64(count: int) -> tuple[Floats, Floats]:
    """Bases of all sizes and next to 1, exponents whose powers are numbers, and whole ones."""
    random = np.random.default_rng(9)
    near = 1 + random.uniform(-1, 1, count) * 2.0 ** -random.integers(1, 50, count)
    parts = [np.exp(random.uniform(-740, 700, count)), random.uniform(0.5, 2, count), near]
    x = np.concatenate([*parts, np.full(count, 10.0)])
    y = random.uniform(-744, 709.5, x.size) / np.log(x)
    y = np.where(random.random(x.size) < 0.5, y, random.uniform(-30, 30, x.size))
    y[-600:] = np.arange(-300, 300)
    return x, np.where(np.isfinite(y), y, 3.0)
