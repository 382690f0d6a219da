"""How much memory the arrays of a nest take."""

from __future__ import annotations

from pullback.ir.nest import Array

ALIGNMENT = 64  # bytes, of scratch arrays
WORD = 8  # bytes, of those below a cache line


def array_bytes(array: Array) -> int:
    """Size in memory, bytes: whole cache lines, or whole words where less than one line."""
    size = array.size * array.dtype.itemsize
    unit = WORD if size < ALIGNMENT else ALIGNMENT
    return -(-size // unit) * unit
