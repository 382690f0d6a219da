"""Floats of 8 bits beside those of ml_dtypes, on a backend: what its tests share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import pullback as pb
from pullback.config import Options
from pullback.conformance import run
from pullback.conformance.case import Cell
from pullback.conformance.cases import SECTIONS
from pullback.ir.dtype import bfloat16, dtype

Array = np.ndarray[Any, Any]
EIGHTHS: dict[str, Any] = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def narrow(values: Any, kind: str) -> Array:
    """As ml_dtypes rounds."""
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(EIGHTHS[kind])


def every(kind: str) -> Array:
    """All 256."""
    return np.arange(256, dtype=np.uint8).view(EIGHTHS[kind])


def numbers(kind: str, count: int) -> Array:
    """float32: between neighbours, at what lies half way and beside it, any bits, the ends."""
    rng = np.random.default_rng(7)
    known = np.sort(np.unique(every(kind).astype(np.float64)[np.isfinite(every(kind).astype("f"))]))
    ties = ((known[1:] + known[:-1]) / 2).astype(np.float32)
    up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    ends = [
        464,
        465,
        480,
        512,
        57344,
        61439.99,
        61440,
        65536,
        1e38,
        1e-45,
        1e-38,
        0,
        np.inf,
        np.nan,
    ]
    ends = np.array(ends, np.float32)
    plain = rng.standard_normal(count) * 10.0 ** rng.uniform(-7, 6, count)
    bits = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([ties, up, down, ends, -ends, plain.astype(np.float32), bits])


def check_conversions(options: Options, kind: str, given: Array) -> None:
    """Every value is widened, and `given` rounded, bit for bit."""
    wide, own = every(kind).astype(np.float32), given.astype(EIGHTHS[kind])
    function = pb.jit(lambda x, y: (pb.astype(x, "float32"), pb.astype(y, kind)), options=options)
    widened, rounded = (t.numpy() for t in function(every(kind), given))
    np.testing.assert_array_equal(widened, wide)
    np.testing.assert_array_equal(np.signbit(widened), np.signbit(wide))
    assert rounded.dtype == own.dtype
    np.testing.assert_array_equal(rounded.view(np.uint8), own.view(np.uint8))


def cells(step: int, start: int = 0) -> list[Cell]:
    """Every so many cells of conformance, of both types."""
    cases = [(s.name, c) for s in SECTIONS for c in s.cases if bfloat16 in c.kinds]
    return [Cell(name, c, dtype(k)) for name, c in cases for k in EIGHTHS][start::step]


def check_cells(backend: str, step: int, start: int = 0) -> None:
    wrong = [v for v in run.conformance(backend, cells(step, start)) if v.state != "pass"]
    assert not wrong, [(v.cell.name, v.why) for v in wrong]
