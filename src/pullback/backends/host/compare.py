"""Results by two schedules: the same, but for the order in which sums were added up."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.ir.dtype import DType

Array = np.ndarray[Any, Any]

# The error that is allowed, of the largest result: half of the digits of a float with so many bits.
HALF_DIGITS = {8: 2.0**-2, 16: 2.0**-4, 32: 2.0**-12, 64: 2.0**-26}


def close(array: Array, wanted: Array, kind: DType) -> bool:
    """Whether results agree: exactly, or as sums of floats in another order do."""
    if not kind.is_float:
        return np.array_equal(array, wanted)
    exact = wanted.astype(np.float64)
    largest = np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact))
    error = largest * HALF_DIGITS[kind.bits]
    return np.allclose(array.astype(np.float64), exact, rtol=0.0, atol=error, equal_nan=True)
