"""Every elementary function in units in the last place: each 16-bit input, float32 at all sizes.

The references are float64, whose own error is a thousand times smaller. `benchmarks/functions.py`
writes the table of docs/accuracy.md from the same points.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from accuracy import BOUNDS, EDGES, POWER_EDGES, WANTED, points, powers, ulps
from llvm_support import TARGETS, load, loop, routine, vector
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, float32, float64
from pullback.ir.expr import Expr
from pullback.ir.nest import NATIVES, Array, Load, Native, Store, Var
from pullback.ir.node import walk
from pullback.ir.target import Target
from pullback.lower.natives import FORMS, with_natives
from pullback.simplify.rules import simplify
from pullback.tensor.values.functions import UNARY

Floats = np.ndarray[Any, Any]
ALL16 = np.arange(2**16, dtype=np.uint16)
STEP = 64  # of the million points, in the default run
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def everything(x: Floats) -> dict[str, Floats]:
    """All functions of `x` by one program."""
    run = pb.jit(lambda t: tuple(getattr(pb, name)(t) for name in BOUNDS))
    return {n: t.numpy() for n, t in zip(BOUNDS, run(pb.tensor(x)), strict=True)}


def check(found: dict[str, Floats], x: Floats) -> None:
    wide = x.astype(np.float64)
    worst = {n: float(ulps(y, WANTED[n](wide)).max()) for n, y in found.items()}
    assert {n: w for n, w in worst.items() if w > BOUNDS[n]} == {}


@pytest.mark.slow
def test_float32_at_a_sample_of_a_million_points() -> None:
    x = np.concatenate([points(10**6)[::STEP], np.array(EDGES, np.float32)])
    found = everything(x)
    check(found, x)
    for name, y in found.items():
        wanted = WANTED[name](x.astype(np.float64))
        sign = ~np.isnan(wanted) & (np.signbit(y) != np.signbit(wanted.astype(np.float32)))
        assert not sign.any(), f"{name}: the sign at {x[sign][:4]}"


@pytest.mark.slow
def test_float32_at_a_million_points() -> None:
    x = points(10**6)
    check(everything(x), x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_every_16_bit_input(kind: Any) -> None:
    """Computed in float32 and rounded once: 0.5 units and the little that float32 errs."""
    x = ALL16.view(kind)
    wide = x.astype(np.float64)
    for name, y in everything(x).items():
        exact = WANTED[name](wide)
        wanted = exact.astype(np.float32).astype(kind)
        same = (y == wanted) | (np.isnan(y.astype(np.float32)) & np.isnan(exact))
        away = np.abs(y.astype(np.float64) - exact)[~same]
        other = np.abs(wanted.astype(np.float64) - exact)[~same]
        assert (away <= other * 1.01 + 1e-7 * np.abs(exact[~same]) + 1e-44).all(), name


def test_powers() -> None:
    x, y = powers(10**6 // STEP)
    a, b = (v.ravel() for v in np.meshgrid(*2 * [np.array(POWER_EDGES, np.float32)]))
    x, y = np.concatenate([x, a]), np.concatenate([y, b])
    found = pb.pow(pb.tensor(x), pb.tensor(y)).numpy()
    wanted = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(found, wanted).max() <= 0.6
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(wanted[number]))
    constant = (pb.tensor(x) ** 2.7).numpy()
    wanted = np.power(x.astype(np.float64), float(np.float32(2.7)))
    assert ulps(constant, wanted).max() <= 0.6


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
def test_the_slope_of_a_sine_far_out_is_a_cosine(kind: DType) -> None:
    at = np.array([1e4, 12345.678, 1e6, math.pi / 2, 3 * math.pi / 2], kind.numpy)
    x = pb.tensor(at)
    slope = pb.grad(lambda t: pb.sum(pb.sin(t)))(x).numpy()
    assert (np.abs(slope - np.cos(at.astype(np.float64))) <= 3e-8 + 1e-7 * np.abs(slope)).all()
    bend = pb.grad(lambda t: pb.sum(pb.cos(t)))(x).numpy()
    np.testing.assert_allclose(bend, -np.sin(at.astype(np.float64)), rtol=2e-7)


NAMED = [form for forms in FORMS.values() for form in forms]


@pytest.mark.parametrize("form", NAMED, ids=lambda form: form.name)
def test_functions_are_recognised_after_simplification(form: Any) -> None:
    """Of a read, of a product (signs are folded into it), of a sum and of another function."""
    x = Load(Array("x", float32, 8), Var("v", 0, 7))
    scaled = E.Mul(x, E.const(0.7, float32))
    for argument in (x, scaled, E.Add(x, E.const(1.0, float32)), E.Sin(x), simplify(F.tanh(x))):
        found = with_natives(simplify(form.function(argument)))
        assert isinstance(found, Native)
        assert found.name == form.name


def test_a_program_calls_them() -> None:
    for name in ("tanh", "erf", "sigmoid", "cos", "log1p", "softplus"):
        x = Load(Array("x", float32, 8), Var("v", 0, 7))
        assert isinstance(with_natives(simplify(UNARY[name](x))), Native)


NATIVE = [n for n in NATIVES if n in WANTED]


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "scalar"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_natives_on_each_target(target: Target, lanes: bool) -> None:
    x = np.concatenate([points(1600), np.array(EDGES, np.float32)])
    count = len(x)
    source, var = Array("x", float32, count), Var("v", 0, count - 1)
    read = Load(source, var)
    values: dict[str, Expr] = {name: Native(name, (read,)) for name in (*NATIVE, "rint")}
    values["exp2"] = Native("power", (E.const(2.0, float32), read))
    outs = {name: Array(f"y{n}", float32, count) for n, name in enumerate(values)}
    body = []
    for name, out in outs.items():
        store = Store(out, var, values[name])
        body.append(vector(var, count, store) if lanes else loop(var, count, store))
    found = {name: np.zeros(count, np.float32) for name in outs}
    load([routine([source, *outs.values()], body)], target)[0]([x, *found.values()])
    np.testing.assert_array_equal(found.pop("rint"), np.rint(x))
    check(found, x)


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
def test_whole_numbers_are_powers_of_two_exactly(kind: DType) -> None:
    whole = np.arange(-150 if kind == float32 else -1075, 130, dtype=kind.numpy)
    np.testing.assert_array_equal(
        pb.exp2(pb.tensor(whole)).numpy(), np.ldexp(kind.numpy.type(1), whole.astype(int))
    )


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
def test_an_angle_holds_one_arctangent(kind: DType) -> None:
    """Its branches choose numbers, not arctangents: under their conditions those would differ."""
    var = Var("v", 0, 7)
    y, x = (Load(Array(name, kind, 8), var) for name in "yx")
    angle = with_natives(simplify(F.atan2(y, x)))
    quotients = [n for n in walk(angle) if isinstance(n, E.Div) and not E.is_const(n.left, 1)]
    arctangents = [n for n in walk(angle) if isinstance(n, Native) and n.name == "atan"]
    assert len(arctangents) == (kind == float32)
    assert len(quotients) == (1 if kind == float32 else 2)


@pytest.mark.parametrize("factor", [-1.0, 3.0, 0.25])
def test_a_cosine_of_a_multiple(factor: float) -> None:
    x = pb.tensor(np.linspace(-2, 2, 9, dtype=np.float32))
    found = pb.cos(x * factor).numpy()
    np.testing.assert_allclose(found, np.cos(x.numpy() * factor), rtol=0, atol=2e-7)
