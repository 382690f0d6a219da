"""Operators over grids of special values, against NumPy, in native code and in the interpreter."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.config import Options

Array = np.ndarray[Any, Any]
BACKENDS = ("llvm", "reference")
HALVES = (np.float16, ml_dtypes.bfloat16)
FLOATS = (np.float32, np.float64, *HALVES)
INTEGERS = (*(np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def run(function: Callable[..., Any], *args: Array, backend: str) -> Array:
    """`function` of arrays as one program."""
    program = pb.jit(function, options=Options(backend=backend))
    found: Array = program(*(pb.tensor(a) for a in args)).numpy()
    return found


def same(found: Array, wanted: Array, *given: Array) -> None:
    """Equal with the signs of zeros; NaN is NaN."""
    assert found.dtype == wanted.dtype
    kind = found.dtype
    a, b = (v.astype(np.float64) if kind.kind not in "biu" else v for v in (found, wanted))
    if kind.kind in "biu":
        right = a == b
    else:
        right = (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
    at = np.argwhere(~right)[:5]
    shown = [(*(g[tuple(n)] for g in given), found[tuple(n)], wanted[tuple(n)]) for n in at]
    assert right.all(), f"{(~right).sum()} differ: {shown}"


def pairs(values: Array) -> tuple[Array, Array]:
    a, b = np.meshgrid(values, values)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def special(kind: Any) -> Array:
    """Zeros, units, whole and broken numbers, the smallest and largest, infinities, NaN."""
    info = ml_dtypes.finfo(kind)
    sizes = [
        *(0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0, 10.0, 100.5, 1e3, 12345.678, 1e6, 1e8),
        *(1e15, 1e20, float(info.tiny), float(info.smallest_subnormal), 3 * float(info.tiny)),
        *(float(info.eps), float(info.max), math.inf),
    ]
    signed = [s * v for v in sizes for s in (1.0, -1.0)]
    return np.array([*signed, math.nan]).astype(kind)


def integers(kind: Any) -> Array:
    info = np.iinfo(kind)
    wanted = {*range(-9, 10), 31, 32, 63, 64, 100, info.min, info.min + 1, info.max, info.max - 1}
    return np.array(sorted(v for v in wanted if info.min <= v <= info.max), kind)


def python_modulo(a: Array, b: Array) -> Array:
    """C's exact remainder with the sign of b; halves in float32, rounded once."""
    wide = np.float32 if a.dtype.itemsize == 2 else a.dtype
    return np.remainder(a.astype(wide), b.astype(wide)).astype(a.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: np.dtype(k).name)
def test_remainders_are_exact(kind: Any, backend: str) -> None:
    a, b = pairs(special(kind))
    wide = np.float32 if a.dtype.itemsize == 2 else a.dtype
    same(run(operator.mod, a, b, backend=backend), python_modulo(a, b), a, b)
    truncated = np.fmod(a.astype(wide), b.astype(wide)).astype(kind)
    same(run(pb.fmod, a, b, backend=backend), truncated, a, b)


@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda k: np.dtype(k).name)
def test_remainders_of_any_bits(kind: Any) -> None:
    """Random bits, near multiples, and constants; scalars as well as lanes."""
    rng = np.random.default_rng(5)
    word = np.uint32 if kind is np.float32 else np.uint64
    a, b = (rng.integers(0, np.iinfo(word).max, 4003, word).view(kind) for _ in range(2))
    near = (rng.standard_normal(4003) * 10).astype(kind)
    close = (near * rng.integers(-5000, 5000, 4003)).astype(kind)
    for x, y in ((a, b), (close, near), (close[:1], near[:1])):
        same(run(operator.mod, x, y, backend="llvm"), np.remainder(x, y), x, y)
        same(run(pb.fmod, x, y, backend="llvm"), np.fmod(x, y), x, y)
    for by in (7.0, -2.0, 0.1, 2.0, math.inf):
        c = kind(by)
        same(run(lambda t, by=by: t % by, close, backend="llvm"), np.remainder(close, c), close)


def floor_of(a: float, b: float) -> float:
    """The floor of the exact quotient; infinities as the array API has them."""
    if math.isnan(a) or math.isnan(b) or (b == 0 or math.isinf(a)):
        return float(np.floor(np.divide(a, b)))
    if math.isinf(b):
        return (
            -1.0 if a != 0 and (a < 0) != (b < 0) else math.copysign(0.0, a) * math.copysign(1, b)
        )
    exact = Fraction(a) / Fraction(b)
    whole = exact.numerator // exact.denominator
    if whole == 0:
        return math.copysign(0.0, a) * math.copysign(1.0, b)
    largest = int(np.finfo(float).max)
    return float(whole) if abs(whole) <= largest else math.inf * (1 if whole > 0 else -1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: np.dtype(k).name)
def test_floors_of_quotients_are_exact(kind: Any, backend: str) -> None:
    a, b = pairs(special(kind))
    found = run(operator.floordiv, a, b, backend=backend)
    exact = np.vectorize(floor_of, otypes=[np.float64])(a.astype(float), b.astype(float))
    wanted = exact.astype(kind)
    close = np.abs(exact) < 2.0**53
    same(np.where(close, found, kind(0)), np.where(close, wanted, kind(0)), a, b)
    far = ~close & np.isfinite(exact)
    relative = found[far].astype(float) / wanted[far].astype(float) - 1
    assert (np.abs(relative[np.isfinite(relative)]) < 2 * float(ml_dtypes.finfo(kind).eps)).all()


def test_floors_of_quotients_next_to_whole_numbers() -> None:
    rng = np.random.default_rng(6)
    for kind in (np.float32, np.float64):
        b = rng.uniform(0.1, 10, 2001).astype(kind)
        n = rng.integers(-(10**5), 10**5, 2001)
        for a in (b * n.astype(kind), np.nextafter(b * n.astype(kind), kind(0))):
            found = run(operator.floordiv, a, b, backend="llvm")
            wanted = [Fraction(float(p)) // Fraction(float(q)) for p, q in zip(a, b, strict=True)]
            np.testing.assert_array_equal(found, np.array(wanted, float).astype(kind))


def shifted(a: Array, b: Array, left: bool) -> Array:
    """Exact, with Python's integers; a negative count is a large one."""
    info = np.iinfo(a.dtype)
    out = np.empty_like(a)
    for at in np.ndindex(a.shape):
        x, n = int(a[at]), int(b[at])
        n = n if 0 <= n < info.bits else info.bits
        value = x << n if left else x >> n
        out[at] = (value - int(info.min)) % 2**info.bits + int(info.min)
    return out


@pytest.mark.sampled(8)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", INTEGERS, ids=lambda k: np.dtype(k).name)
def test_shifts_by_any_count(kind: Any, backend: str) -> None:
    info = np.iinfo(kind)
    counts = [n for n in (*range(info.bits + 2), -1, -5, int(info.min), info.max) if n >= info.min]
    a, b = np.meshgrid(integers(kind), np.array(counts, kind))
    same(run(operator.lshift, a, b, backend=backend), shifted(a, b, True), a, b)
    same(run(operator.rshift, a, b, backend=backend), shifted(a, b, False), a, b)
    same(shifted(a, b, False), np.right_shift(a, b), a, b)
    x = a[0]

    def constants(t: Any) -> Any:
        return pb.stack([v for n in counts for v in (t << n, t >> n)])

    wanted = [shifted(x, np.full_like(x, n), left) for n in counts for left in (True, False)]
    same(run(constants, x, backend=backend), np.stack(wanted))


def whole_power(x: int, y: int, info: Any) -> int:
    if y < 0:
        exact = {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    else:
        exact = pow(x, y, 2**info.bits)
    return (exact - int(info.min)) % 2**info.bits + int(info.min)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", INTEGERS, ids=lambda k: np.dtype(k).name)
def test_integers_by_zero_and_to_any_power(kind: Any, backend: str) -> None:
    """By zero they are 0; a negative power is its exact value without its fraction."""
    a, b = pairs(integers(kind))
    info = np.iinfo(kind)
    by = np.where(b == 0, 1, b).astype(kind)
    zero = np.zeros_like(a)
    with np.errstate(all="ignore"):
        same(
            run(operator.floordiv, a, b, backend=backend),
            np.where(b == 0, zero, np.floor_divide(a, by)),
            a,
            b,
        )
        same(run(operator.mod, a, b, backend=backend), np.where(b == 0, zero, np.mod(a, by)), a, b)
        wanted = np.where(b == 0, zero, np.fmod(a, by))
        same(run(pb.fmod, a, b, backend=backend), wanted, a, b)
    powers = np.vectorize(lambda x, y: whole_power(int(x), int(y), info), otypes=[kind])(a, b)
    same(run(operator.pow, a, b, backend=backend), powers, a, b)


UNARY = {
    "round": np.round, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "sign": np.sign,
    "abs": np.abs, "negative": np.negative, "positive": np.positive, "square": np.square,
    "sqrt": np.sqrt, "reciprocal": lambda x: np.divide(x.dtype.type(1), x),
}  # fmt: skip
ZEROS = {
    "sin": np.sin, "tan": np.tan, "sinh": np.sinh, "tanh": np.tanh, "asin": np.arcsin,
    "atan": np.arctan, "asinh": np.arcsinh, "atanh": np.arctanh, "expm1": np.expm1,
    "log1p": np.log1p, "erf": np.positive, "cos": np.cos, "exp": np.exp, "log2": np.log2,
    "log10": np.log10, "cosh": np.cosh, "log": np.log, "acos": np.arccos,
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: np.dtype(k).name)
def test_signs_of_zeros(kind: Any, backend: str) -> None:
    """All that rounds, over special values; the others at zeros and infinities."""
    x = np.concatenate([special(kind), np.arange(-3.25, 3.5, 0.25).astype(kind)])
    found = pb.jit(
        lambda t: tuple(getattr(pb, n)(t) for n in UNARY), options=Options(backend=backend)
    )(pb.tensor(x))
    for y, (name, function) in zip(found, UNARY.items(), strict=True):
        wide = x.astype(np.float64) if x.dtype.itemsize == 2 else x
        same(y.numpy(), np.asarray(function(wide)).astype(kind), x, np.full(x.shape, name))
    z = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], kind)
    found = pb.jit(
        lambda t: tuple(getattr(pb, n)(t) for n in ZEROS), options=Options(backend=backend)
    )(pb.tensor(z))
    for y, (name, function) in zip(found, ZEROS.items(), strict=True):
        wanted = np.asarray(function(z.astype(np.float64)))
        if name == "erf":
            wanted = np.clip(wanted, -1, 1)
        whole = np.isin(wanted, (0.0, np.inf, -np.inf)) | np.isnan(wanted)
        got = y.numpy().astype(np.float64)
        same(got[whole], wanted[whole], z[whole], np.full(whole.sum(), name))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: np.dtype(k).name)
def test_binary_functions_at_special_values(kind: Any, backend: str) -> None:
    a, b = pairs(special(kind))
    wide = np.float64
    number = ~np.isnan(b.astype(wide))
    found = run(pb.copysign, a, b, backend=backend)
    wanted = np.copysign(a.astype(wide), b.astype(wide)).astype(kind)
    same(found[number], wanted[number], a[number], b[number])
    found = run(pb.logaddexp, a, b, backend=backend)
    wanted = np.logaddexp(a.astype(wide), b.astype(wide)).astype(kind)
    eps = float(ml_dtypes.finfo(kind).eps)
    np.testing.assert_allclose(found.astype(wide), wanted.astype(wide), rtol=4 * eps, atol=4 * eps)


INFINITE = [
    [np.inf, np.inf, 1.0], [-np.inf, -np.inf, -np.inf], [-np.inf, 2.0, -np.inf],
    [np.inf, -np.inf, 0.0], [3.0, -np.inf, np.inf], [np.nan, 1.0, np.inf],
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda k: np.dtype(k).name)
def test_logarithms_of_sums_with_infinities(kind: Any, backend: str) -> None:
    x = np.array(INFINITE, kind)
    wanted = np.logaddexp.reduce(x, axis=1)
    np.testing.assert_allclose(
        run(lambda t: pb.logsumexp(t, axis=1), x, backend=backend), wanted, rtol=1e-6
    )
    running = np.logaddexp.accumulate(x, axis=1)
    found = run(lambda t: pb.cumulative_logsumexp(t, axis=1), x, backend=backend)
    np.testing.assert_allclose(found, running, rtol=1e-6)
    z = np.array([np.inf, -np.inf, np.nan, 0.0, 800.0, -800.0], kind)
    np.testing.assert_allclose(run(pb.softplus, z, backend=backend), np.logaddexp(z, 0), rtol=1e-6)
    wanted = -np.logaddexp(-z, 0)
    np.testing.assert_allclose(run(pb.log_sigmoid, z, backend=backend), wanted, rtol=1e-6)


def test_slopes_of_logarithms_of_sums_at_infinities() -> None:
    """Weights that add up to 1, halves where both are the same infinity."""
    a = np.array([np.inf, -np.inf, np.inf, -np.inf, 1.0, 0.0])
    b = np.array([np.inf, -np.inf, 1.0, 1.0, -np.inf, 0.0])
    slopes = pb.grad(lambda p, q: pb.sum(pb.logaddexp(p, q)), argnums=(0, 1))
    left, right = (g.numpy() for g in slopes(pb.tensor(a), pb.tensor(b)))
    np.testing.assert_array_equal(left, [0.5, 0.5, 1.0, 0.0, 1.0, 0.5])
    np.testing.assert_array_equal(right, [0.5, 0.5, 0.0, 1.0, 0.0, 0.5])


KINDS = ("int32", "int64", "float16", "float32", "float64")


@pytest.mark.parametrize("kind", KINDS)
def test_evenly_spaced_numbers(kind: str) -> None:
    """NumPy's: computed in float64, rounded once, of integers the floor."""
    for start, stop, count in (
        (5, 10, 20),
        (-3.5, 4, 7),
        (0, 1, 1),
        (0, -7, 10),
        (1, 1, 4),
        (0, 2, 0),
    ):
        for endpoint in (True, False):
            found = pb.linspace(start, stop, count, dtype=kind, endpoint=endpoint).numpy()
            wanted = np.linspace(start, stop, count, dtype=kind, endpoint=endpoint)
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype


@pytest.mark.parametrize("backend", BACKENDS)
def test_moments_of_few_and_of_none(backend: str) -> None:
    """A divisor below nothing is nothing: inf, or NaN of equal ones and of none."""
    for count in (0, 1, 2, 3):
        for x in (np.arange(2 * count, dtype=float).reshape(2, count), np.ones((2, count))):
            for correction in (0, 1, 2, 3, 0.5):
                n = max(count - correction, 0)
                squares = ((x - x.sum(1, keepdims=True) / (count or np.nan)) ** 2).sum(1)
                wanted = squares / n if n else squares / np.zeros(2)
                if not count:
                    wanted = np.full(2, np.nan)
                for function, theirs in ((pb.var, wanted), (pb.std, np.sqrt(wanted))):
                    found = run(
                        lambda t, f=function, c=correction: f(t, axis=1, correction=c),
                        x,
                        backend=backend,
                    )
                    np.testing.assert_array_equal(np.isnan(found), np.isnan(theirs))
                    np.testing.assert_allclose(found, theirs, rtol=1e-12)
    assert np.isnan(run(lambda t: pb.mean(t, axis=1), np.ones((2, 0)), backend=backend)).all()
