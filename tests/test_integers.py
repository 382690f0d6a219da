"""Integers of every width, signed or not: NumPy's numbers, native and interpreted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import array_api as xp
from pullback.errors import DTypeError
from pullback.tensor.face.arrays import as_arrays

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
PAIRS = (
    *("add", "subtract", "multiply", "floor_divide", "remainder", "bitwise_and", "bitwise_or"),
    *("bitwise_xor", "less", "greater_equal", "equal", "maximum", "minimum"),
)
REDUCED = ("sum", "prod", "max", "min", "argmax", "sort", "cumulative_sum")
SINGLE = ("negative", "abs", "sign", "square", "bitwise_invert")
FLOATS = (0.0, -1.0, 1.5, -2.7, 200.0, 4e4, 7e4, 3e9, 5e9, 9.3e18, 1.9e19, 1e30, -1e30)
ODD = (np.nan, np.inf, -np.inf)

pytestmark = pytest.mark.parametrize("backend", ["llvm", "reference"])


@pytest.fixture(autouse=True)
def chosen(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", backend)


def drawn(kind: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers of the whole range, its ends and its middle among them."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    random = np.random.default_rng(seed)
    found = random.integers(low, high, 37, dtype=kind, endpoint=True)
    found[:6] = [low, high, 0, 1, high // 2, high // 2 + 1]
    return random.permutation(found)


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    arrays = as_arrays(found)
    for name, array in wanted.items():
        assert arrays[name].dtype == array.dtype, name
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_is_numpys(kind: str) -> None:
    a, b = drawn(kind), drawn(kind, 1)
    x, y = pb.tensor(a), pb.tensor(b)
    found = {name: getattr(xp, name)(x, y) for name in PAIRS}
    found |= {name: getattr(xp, name)(x) for name in (*REDUCED, *SINGLE)}
    found["literal"] = (x * 3 + int(a.max())) // 7
    found["product"] = x[:36].reshape((6, 6)) @ y[:36].reshape((6, 6))
    with np.errstate(all="ignore"):
        wanted = {name: getattr(np, name)(a, b) for name in PAIRS}
        wanted |= {name: np.asarray(getattr(np, name)(a)) for name in (*REDUCED, *SINGLE)}
        wanted["literal"] = (a * np.array(3, kind) + a.max()) // np.array(7, kind)
        wanted["product"] = a[:36].reshape(6, 6) @ b[:36].reshape(6, 6)
    for name in ("floor_divide", "remainder"):
        wanted[name] = np.where(b == 0, 0, wanted[name]).astype(kind)
    agree(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_casts_wrap_and_saturate(kind: str) -> None:
    a, x = drawn(kind), pb.tensor(drawn(kind))
    others = (*KINDS, "bool", "float16", "float32", "float64")
    with np.errstate(all="ignore"):
        wanted = {to: a.astype(to) for to in others}
    agree({to: x.astype(to) for to in others}, wanted)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    for wide in ("float32", "float64"):
        f = np.array((*FLOATS, *ODD), wide)
        clipped = [0 if v != v else int(min(max(v, float(low)), float(high))) for v in f.tolist()]
        np.testing.assert_array_equal(
            pb.tensor(f).astype(kind).numpy(), [min(v, high) for v in clipped]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_what_two_types_make(kind: str) -> None:
    a, x = drawn(kind), pb.tensor(drawn(kind))
    found, wanted = {}, {}
    for other in KINDS:
        b = drawn(other, 2)
        if np.promote_types(kind, other).kind == "f":
            with pytest.raises(DTypeError, match="E370"):
                x + pb.tensor(b)
            continue
        with np.errstate(all="ignore"):
            found[other], wanted[other] = x + pb.tensor(b), a + b
    agree(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_go_out_and_come_back(kind: str) -> None:
    a = drawn(kind)
    x = pb.tensor(a)
    np.testing.assert_array_equal(np.from_dlpack(x), a)
    np.testing.assert_array_equal(xp.from_dlpack(a).numpy(), a)
    np.testing.assert_array_equal(pb.take(x, pb.tensor(np.array([5, 0, 36], kind))), a[[5, 0, 36]])
    assert int(x[3]) == int(a[3]) and xp.iinfo(kind).max == np.iinfo(kind).max
    path = Path(tempfile.mkdtemp()) / "x.safetensors"
    pb.nn.save({"x": x}, path)
    np.testing.assert_array_equal(pb.nn.load(path)["x"].numpy(), a)
