"""The element types of GGUF files: how many elements a block has, and what lies where in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Kind:
    """`elements` of a row share a block, a NumPy record; those of one are plain numbers."""

    name: str
    code: int
    elements: int
    record: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return self.record.itemsize


_FLOATS = {0: ("f32", "<f4"), 1: ("f16", "<f2"), 30: ("bf16", ml_dtypes.bfloat16)}
_BLOCKS: dict[int, tuple[str, int, list[Any]]] = {
    2: ("q4_0", 32, [("d", "<f2"), ("q", "u1", (16,))]),
    8: ("q8_0", 32, [("d", "<f2"), ("q", "i1", (32,))]),
    12: (
        "q4_K", 256,
        [("d", "<f2"), ("least", "<f2"), ("scales", "u1", (12,)), ("q", "u1", (4, 32))],
    ),
    14: (
        "q6_K", 256,
        [("low", "u1", (2, 64)), ("high", "u1", (2, 32)), ("scales", "i1", (16,)), ("d", "<f2")],
    ),
}  # fmt: skip
KINDS: dict[int, Kind] = {
    code: Kind(name, code, 1, np.dtype(form)) for code, (name, form) in _FLOATS.items()
} | {
    code: Kind(name, code, elements, np.dtype(fields))
    for code, (name, elements, fields) in _BLOCKS.items()
}
# What else a file may say, so that it is refused by name.
NAMES = {
    3: "q4_1", 6: "q5_0", 7: "q5_1", 9: "q8_1", 10: "q2_K", 11: "q3_K", 13: "q5_K", 15: "q8_K",
    16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s",
    22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m",
    34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip


def named(name: str) -> Kind | None:
    """The kind of a name, such as `q8_0`."""
    return next((kind for kind in KINDS.values() if kind.name == name), None)
