"""Accuracy of the inlined elementary functions, in units in the last place, and their edges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from llvm_support import RUNS_V3, TARGETS, load, loop, routine, vector
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, float64
from pullback.ir.expr import Expr
from pullback.ir.nest import Array, Load, Native, Store, Var
from pullback.ir.target import Target

Floats = np.ndarray[Any, Any]
BUILD: dict[str, Callable[[Expr], Expr]] = {
    "exp": E.Exp,
    "log": E.Log,
    "sin": E.Sin,
    "sqrt": E.Sqrt,
    "tanh": lambda x: Native("tanh", (x,)),
    "erf": lambda x: Native("erf", (x,)),
    "sigmoid": lambda x: Native("sigmoid", (x,)),
    "normal_cdf": lambda x: Native("normal_cdf", (x,)),
}
WANTED: dict[str, Callable[[Floats], Floats]] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "normal_cdf": np.vectorize(lambda x: math.erfc(-x * math.sqrt(0.5)) / 2, otypes=[np.float64]),
}
RANGES = {
    "exp": (-104.0, 88.7), "log": (1e-38, 1e4), "sin": (-1e4, 1e4), "sqrt": (0.0, 1e6),
    "tanh": (-10.0, 10.0), "erf": (-5.0, 5.0), "sigmoid": (-80.0, 88.0),
    "normal_cdf": (-1.0, 20.0),
}  # fmt: skip
ULPS = {
    "exp": 1.1, "log": 1.0, "sin": 1.6, "sqrt": 0.51, "tanh": 1.6, "erf": 1.6, "sigmoid": 2.6,
    "normal_cdf": 4.0,
}  # fmt: skip
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 1.0, -1.0, 89.5, -110.0, 3e38, -3e38]


def compute(name: str, data: Floats, kind: DType, target: Target, lanes: bool = True) -> Floats:
    count = len(data)
    source, out = Array("x", kind, count), Array("y", kind, count)
    var = Var("v", 0, count - 1)
    store = Store(out, var, BUILD[name](Load(source, var)))
    body = vector(var, count, store) if lanes else loop(var, count, store)
    result = np.zeros(count, kind.numpy)
    load([routine([source, out], [body])], target)[0]([data.astype(kind.numpy), result])
    return result


def ulps(found: Floats, wanted: Floats) -> Floats:
    """The error in units in the last place of the exact float32."""
    unit = np.spacing(np.abs(wanted.astype(np.float32))).astype(np.float64)
    return np.abs(found.astype(np.float64) - wanted) / unit


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", BUILD)
def test_float32_accuracy(name: str, target: Target) -> None:
    random = np.random.default_rng(0)
    lo, hi = RANGES[name]
    data = np.concatenate([random.uniform(lo, hi, 40000), np.geomspace(1e-30, hi, 20000)])
    data = data.astype(np.float32)
    wanted = WANTED[name](data.astype(np.float64))
    found = compute(name, data, float32, target)
    assert ulps(found, wanted).max() <= ULPS[name]


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "scalar"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", BUILD)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float32_edges(name: str, target: Target, lanes: bool) -> None:
    data = np.array(EDGES * 2, np.float32)
    wanted = WANTED[name](data.astype(np.float64)).astype(np.float32)
    found = compute(name, data, float32, target, lanes)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=3e-45)
    zeros = wanted == 0
    if name != "sigmoid":
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", BUILD)
def test_float32_nans_of_any_bits(name: str, target: Target) -> None:
    """Also those whose low bits would reach an exponent."""
    bits = [0x7FC00000, 0x7FC00001, 0xFFC00081, 0x7FFFFFFF, 0xFFC0FFFF, 0x7FC00100]
    data = np.array(bits * 4, np.uint32).view(np.float32)
    assert np.isnan(compute(name, data, float32, target)).all()


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_tail_of_the_normal_distribution(target: Target) -> None:
    """Far below 0 ``1 + erf`` would cancel; the square of x is rounded, x^2 / 2 units of it."""
    data = np.linspace(-13, 0, 50001).astype(np.float32)
    wide = data.astype(np.float64)
    wanted = WANTED["normal_cdf"](wide)
    error = np.abs(compute("normal_cdf", data, float32, target) - wanted)
    assert np.all(error <= wanted * (4 + wide * wide / 2) * 2.0**-24 + 2.0**-149)


@pytest.mark.skipif(not RUNS_V3, reason="it runs what is compiled for x86-64-v3")
def test_gelu_and_its_slope_have_one_power(tmp_path: Path) -> None:
    gelu = pb.nn.functional.gelu
    x = np.ones(4096, np.float32)
    counts = []
    for name, f in (("value", gelu), ("slope", pb.grad(lambda x: pb.sum(gelu(x))))):
        own = pb.Options(target="x86-64-v3", dump=tmp_path / name, cache=None)
        pb.jit(f, options=own)(x)
        (code,) = (tmp_path / name).glob("*-assembly-*")
        counts.append(len(re.findall(r"vfn?m(?:add|sub)", code.read_text())))
    assert 0 < counts[1] <= counts[0] + 2, counts


def test_subnormal_results_of_exp() -> None:
    data = np.linspace(-104, -87, 5000).astype(np.float32)
    wanted = np.exp(data.astype(np.float64))
    for target in TARGETS:
        error = np.abs(compute("exp", data, float32, target) - wanted)
        assert error.max() <= 1.05 * 2.0**-149 + 1e-7 * wanted.max()


def test_sine_of_huge_arguments() -> None:
    data = np.array([1e9, 2.5e9, 1e20, -3e38, 123456.0] * 5, np.float32)
    found = compute("sin", data, float32, TARGETS[0])
    np.testing.assert_allclose(found, np.sin(data.astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "scalar"])
@pytest.mark.parametrize("name", BUILD)
def test_float64_accuracy(name: str, lanes: bool) -> None:
    random = np.random.default_rng(1)
    lo, hi = RANGES[name]
    data = random.uniform(lo, hi, 2000)
    found = compute(name, data, float64, TARGETS[0], lanes)
    np.testing.assert_allclose(found, WANTED[name](data), rtol=1e-15, atol=1e-300)


def long_erf(x: Floats) -> Floats:
    """``2 x e**-x**2 / sqrt pi`` times the sum of ``(2 x**2)**n / (1 * 3 * .. (2n + 1))``."""
    total = term = np.ones_like(x)
    for n in range(1, 160):
        term = term * (2 * x * x) / (2 * n + 1)
        total = total + term
    return 2 * x * np.exp(-x * x) * total / np.sqrt(4 * np.arctan(np.longdouble(1)))


LONG = WANTED | {"erf": long_erf}
POINTS = {"exp": 10**6, "log": 10**6, "sin": 10**6, "tanh": 500_000, "erf": 40_000}
ULPS64 = {"exp": 1.2, "log": 0.9, "sin": 1.0, "tanh": 2.4, "erf": 1.2}
RANGES64 = RANGES | {"exp": (-708.0, 709.0), "sin": (-1e5, 1e5)}


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 2e-19, reason="long double is not longer here")
@pytest.mark.parametrize("name", POINTS)
def test_float64_in_units_in_the_last_place(name: str) -> None:
    random = np.random.default_rng(2)
    count, (lo, hi) = POINTS[name] // 4, RANGES64[name]
    logarithmic = np.exp(random.uniform(-700, math.log(hi), count))
    near = np.arange(1.0, count + 1) * (math.pi / 2) if name == "sin" else logarithmic
    small = random.uniform(lo / 200, 3.0, count)
    data = np.concatenate([random.uniform(lo, hi, count), logarithmic, near[:60_000], small])
    if name == "log":
        data = np.abs(data)
    wanted = LONG[name](data.astype(np.longdouble))
    unit = np.spacing(np.abs(wanted.astype(np.float64)))
    for target in TARGETS:
        error = np.abs(compute(name, data, float64, target) - wanted) / unit
        assert error.max() <= ULPS64[name]


def test_float64_subnormal_results_and_arguments() -> None:
    data = np.linspace(-745.5, -707.0, 5000)
    wanted = np.exp(data.astype(np.longdouble))
    for target in TARGETS:
        error = np.abs(compute("exp", data, float64, target) - wanted)
        assert (error <= 1.05 * 2.0**-1074 + 3e-16 * wanted).all()
        tiny = np.array([5e-324, 1e-310, 2.2e-308, 1e-320] * 3)
        np.testing.assert_allclose(compute("log", tiny, float64, target), np.log(tiny), rtol=1e-15)


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float64_edges(name: str) -> None:
    data = np.array([*EDGES, 709.0, 710.0, -745.0, -750.0, 5e-324])
    found = compute(name, data, float64, TARGETS[0])
    wanted = WANTED[name](data)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=5e-324)
