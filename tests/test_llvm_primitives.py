"""Every scalar primitive on every type, in lanes and as scalars, against its NumPy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llvm_support import TARGETS, load, loop, routine, vector
from pullback.ir import expr as E
from pullback.ir.dtype import ALL, DType, bool_, dtype, float32, int64, is_short
from pullback.ir.expr import Expr
from pullback.ir.meaning import apply
from pullback.ir.nest import Array, Load, Native, Store, Var
from pullback.ir.target import Target

N = 83
FLOATS = [t for t in ALL if t.is_float]
INTEGERS = [t for t in ALL if t.is_integer]
NUMERIC = FLOATS + INTEGERS


def samples(kind: DType, seed: int) -> np.ndarray[Any, Any]:
    """Random and special values."""
    random = np.random.default_rng(seed)
    if kind.is_bool:
        return random.random(N) < 0.5
    if kind.is_float:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 3.0, -2.5, 1e-40, 60000.0]
        data = np.concatenate([special, random.normal(size=N - len(special)) * 8])
        return random.permutation(data).astype(kind.numpy)
    lo, hi = kind.range()
    special = [lo, hi, 0, 1, 2, 3, hi - 1, lo + 1]
    small = random.integers(max(lo, -9), 9, 40)
    wide = random.integers(lo, hi, N - len(special) - 40, dtype=kind.numpy)
    data = np.concatenate([np.array(special, kind.numpy), small.astype(kind.numpy), wide])
    return random.permutation(data)


def binary(cls: type[Expr], kinds: list[DType]) -> list[Any]:
    return [pytest.param(cls, t, id=f"{cls.__name__}-{t}") for t in kinds]


CASES = [
    *binary(E.Add, ALL), *binary(E.Mul, ALL), *binary(E.Div, FLOATS),
    *binary(E.FloorDiv, NUMERIC), *binary(E.Mod, NUMERIC),
    *binary(E.Less, ALL), *binary(E.Equal, ALL),
    *binary(E.And, [bool_, *INTEGERS]), *binary(E.Or, [bool_, *INTEGERS]),
    *binary(E.Xor, [bool_, *INTEGERS]),
]  # fmt: skip


def evaluate(
    build: Any, inputs: list[np.ndarray[Any, Any]], kinds: list[DType], target: Target
) -> list[np.ndarray[Any, Any]]:
    """The expression over loads of the inputs: in a vector loop, and in a scalar one."""
    sources = [Array(f"x{n}", k, N) for n, k in enumerate(kinds)]
    var = Var("v", 0, N - 1)
    body = build(*(Load(s, var) for s in sources))
    out = Array("y", body.dtype, N)
    store = Store(out, var, body)
    arguments = [*sources, out]
    pair = [routine(arguments, [vector(var, N, store)]), routine(arguments, [loop(var, N, store)])]
    found = []
    for call in load(pair, target):
        result = np.zeros(N, body.dtype.numpy)
        call([*inputs, result])
        found.append(result)
    return found


def same(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], note: str = "") -> None:
    """Equal; NaN equals NaN (NumPy does not know that of types that it lacks)."""
    assert found.dtype == wanted.dtype, note
    if is_short(dtype(found.dtype)):
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(found, wanted, err_msg=note)


def check(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], kind: DType) -> None:
    """Equal, but for one rounding of short results and for fused arithmetic."""
    if not kind.is_float:
        np.testing.assert_array_equal(found, wanted)
        return
    tolerance = {8: 0.3, 16: 1e-2, 32: 2e-6, 64: 1e-14}[kind.bits]
    tiny = {8: 2e-2, 16: 1e-6, 32: 1e-37, 64: 1e-300}[kind.bits]
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tiny
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(("cls", "kind"), CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary(cls: type[Expr], kind: DType, target: Target) -> None:
    left, right = samples(kind, 1), samples(kind, 2)
    if (kind.bits == 16 or is_short(kind)) and cls in (E.FloorDiv, E.Mod):
        # their quotient is rounded to as many bits by NumPy before the floor
        left, right = np.round(left), np.where(right == 0, right, np.sign(right) * 2)
        left, right = left.astype(kind.numpy), right.astype(kind.numpy)
    node = cls(Load(Array("a", kind, N), E.index(0)), Load(Array("b", kind, N), E.index(0)))
    wanted = apply(node, [left, right])
    for found in evaluate(cls, [left, right], [kind, kind], target):
        check(found, wanted, node.dtype)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_cast(source: DType) -> None:
    data = samples(source, 3)
    for to in ALL:
        node = E.Cast(Load(Array("a", source, N), E.index(0)), to)
        wanted = apply(node, [data])
        for found in evaluate(lambda x, to=to: E.Cast(x, to), [data], [source], TARGETS[0]):
            same(found, wanted, f"{source} -> {to}")


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_select(kind: DType) -> None:
    flags, left, right = samples(bool_, 4), samples(kind, 5), samples(kind, 6)
    wanted = np.where(flags, left, right)
    for found in evaluate(E.If, [flags, left, right], [bool_, kind, kind], TARGETS[0]):
        same(found, wanted)


@pytest.mark.parametrize("kind", NUMERIC, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["maximum", "minimum", "abs"])
def test_native_order(name: str, kind: DType) -> None:
    count = 1 if name == "abs" else 2
    data = [samples(kind, 7 + n) for n in range(count)]
    if name == "abs" and kind.is_integer:
        data[0][data[0] == kind.range()[0]] = 0
    wanted = {"maximum": np.maximum, "minimum": np.minimum, "abs": np.abs}[name](*data)
    for found in evaluate(lambda *a: Native(name, tuple(a)), data, [kind] * count, TARGETS[0]):
        same(found, wanted)


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floor_and_fma(kind: DType) -> None:
    data = [samples(kind, n) for n in (10, 11, 12)]
    for found in evaluate(lambda a: Native("floor", (a,)), data[:1], [kind], TARGETS[0]):
        same(found, np.floor(data[0]))
    wide = [np.nan_to_num(d.astype(np.float64)) for d in data]
    bounded = [np.clip(d, -100, 100).astype(kind.numpy) for d in wide]
    exact = [b.astype(np.float64) for b in bounded]
    wanted = exact[0] * exact[1] + exact[2]
    if kind.bits == 8:  # too large ones are infinite, or NaN
        wanted = wanted.astype(kind.numpy).astype(np.float64)
    for found in evaluate(lambda *a: Native("fma", tuple(a)), bounded, [kind] * 3, TARGETS[0]):
        rtol = {8: 0.0, 16: 1e-2, 32: 1e-6, 64: 1e-15}[kind.bits]
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=rtol, atol=rtol)


def test_axis_values_and_index_arithmetic() -> None:
    """Index math in narrow lanes: ``((7 v + 3) // 5 % 4 - v) * 3`` and its float."""
    var, out, real = Var("v", 0, N - 1), Array("y", int64, N), Array("z", float32, N)
    quotient = E.FloorDiv(E.Add(E.Mul(var, E.index(7)), E.index(3)), E.index(5))
    value = E.Mul(E.subtract(E.Mod(quotient, E.index(4)), var), E.index(3))
    stores = [Store(out, var, value), Store(real, var, E.Cast(value, float32))]
    v = np.arange(N)
    wanted = ((7 * v + 3) // 5 % 4 - v) * 3
    for body in (vector(var, N, *stores), loop(var, N, *stores)):
        y, z = np.zeros(N, np.int64), np.zeros(N, np.float32)
        load([routine([out, real], [body])])[0]([y, z])
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(z, wanted)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, 64, -3, -8, -1, 0])
def test_division_by_literals(divisor: int) -> None:
    data = samples(int64, 20)
    with np.errstate(all="ignore"):
        safe = divisor or 1
        quotient, rest = data // safe, data % safe
    if divisor == 0:
        quotient, rest = np.zeros_like(data), np.zeros_like(data)
    for cls, wanted in ((E.FloorDiv, quotient), (E.Mod, rest)):
        build = lambda x, cls=cls: cls(x, E.index(divisor))
        for found in evaluate(build, [data], [int64], TARGETS[0]):
            same(found, wanted)


def test_a_deep_chain_is_not_recursion() -> None:
    var, out = Var("v", 0, N - 1), Array("y", float32, N)
    value: Expr = Load(out, var)
    for step in range(1500):
        value = E.Add(value, E.Const(float(step % 3), float32))
    y = np.zeros(N, np.float32)
    load([routine([out], [vector(var, N, Store(out, var, value), unroll=1)])])[0]([y])
    np.testing.assert_array_equal(y, 1500)
