"""Products of narrow types: panels as they lie, dot instructions, epilogues."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb

Array = np.ndarray[Any, Any]
LAYOUTS = ("nn", "nt", "tn", "tt")
NARROW = {"bfloat16": (ml_dtypes.bfloat16, 1e-2), "float16": (np.float16, 1e-3)}


def sides(layout: str, m: int, k: int, n: int) -> tuple[Array, Array]:
    """Standard normal operands of an ``m x k`` by ``k x n`` product, as they lie."""
    rng = np.random.default_rng(m * k + n)
    a = rng.standard_normal((m, k) if layout[0] == "n" else (k, m))
    b = rng.standard_normal((k, n) if layout[1] == "n" else (n, k))
    return a, b


def plain(layout: str, a: Any, b: Any) -> Any:
    return (a if layout[0] == "n" else a.T) @ (b if layout[1] == "n" else b.T)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(33, 77, 65), (64, 64, 64), (40, 300, 50)])
def test_narrow_floats(kind: str, layout: str, size: tuple[int, int, int]) -> None:
    dtype, tolerance = NARROW[kind]
    a, b = (side.astype(dtype) for side in sides(layout, *size))
    found = pb.jit(lambda x, y: plain(layout, x, y))(pb.tensor(a), pb.tensor(b)).numpy()
    want = plain(layout, a.astype(np.float64), b.astype(np.float64))
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found.astype(np.float64), want, atol=tolerance * np.abs(want).max(), rtol=0
    )
