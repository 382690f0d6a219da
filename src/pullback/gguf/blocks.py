"""What the blocks of GGUF files say, as definitions: integers of a few bits, scaled.

A tensor of blocks is kept as its fields: ``d`` is float16, the others are bytes. A function of
`ELEMENTS` says what one element is, from any layout of the fields. Each operation is rounded as the
`gguf` package rounds it: `dequantised` has its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.gguf.reader import Stored

Read = Callable[..., Any]  # field, row, block, places in the field -> a scalar
Element = Callable[[Read, Any, Any, Any], Any]  # of read, row, block, place in the block
Array = np.ndarray[Any, Any]


def dequantised(stored: Stored) -> pb.Tensor:
    """The tensor as float32: ``w[n, k]`` from the block of k in row n.

    Example:
        >>> rows = np.zeros((2, 34), np.uint8)  # two blocks of 32 elements
        >>> pb.gguf.write("m.gguf", {}, {"w": (rows, "q8_0")})
        >>> pb.gguf.dequantised(pb.gguf.read("m.gguf")["w"]).shape
        (2, 32)
    """
    if stored.kind.elements == 1:
        plain = np.ascontiguousarray(stored.raw.view(stored.kind.record))
        return pb.astype(pb.tensor(plain), pb.float32).reshape(stored.shape)
    fields = {name: np.ascontiguousarray(field) for name, field in fields_of(stored).items()}
    rows, blocks = stored.blocks.shape
    element, within = ELEMENTS[stored.kind.name], stored.kind.elements

    def whole(*given: pb.Tensor) -> pb.Tensor:
        parts = dict(zip(fields, given, strict=True))

        def read(field: str, n: Any, b: Any, *places: Any) -> Any:
            return parts[field][n, b, *places]

        made = pb.compute((rows, blocks, within), lambda n, b, e: element(read, n, b, e))
        return pb.reshape(made, stored.shape)

    made: pb.Tensor = pb.jit(whole)(*map(pb.tensor, fields.values()))
    return made


def fields_of(stored: Stored) -> dict[str, Array]:
    """The fields of all blocks, ``(rows, blocks a row, ..)`` each, as they lie in the file; of q4_K
    the scales one by one, of q6_K the bytes that belong together side by side.
    """
    blocks = stored.blocks
    fields: dict[str, Array] = {name: blocks[name] for name in blocks.dtype.names or ()}
    if stored.kind.name == "q4_K":
        fields["scale"], fields["low"] = groups_of(fields.pop("scales"))
    if stored.kind.name == "q6_K":
        fields["bits"] = beside(fields.pop("low"), fields.pop("high"))
    return fields


def f32(value: Any) -> Any:
    """A scalar as float32; float16 and bytes are exact there."""
    return pb.astype(value, pb.float32)


def q8_0(read: Read, n: Any, b: Any, e: Any) -> Any:
    """``d q[e]``"""
    return f32(read("q", n, b, e)) * f32(read("d", n, b))


def q4_0(read: Read, n: Any, b: Any, e: Any) -> Any:
    """``d (q[e] - 8)``: the low halves of the bytes, then the high ones"""
    byte = read("q", n, b, e % 16)
    number = pb.where(e < 16, byte & 15, byte >> 4)
    return f32(read("d", n, b)) * (f32(number) - 8.0)


def groups_of(packed: Any) -> tuple[Any, Any]:
    """Scales and least values of the eight groups of a block of q4_K, six bits each in twelve
    bytes ``[.., 12]``. Those of groups 4 to 7 are four bits of a byte of their own, and two that
    the bytes of groups 0 to 3 have to spare.
    """
    scale, least, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    upper = (rest & 15) | ((scale >> 2) & 48), (rest >> 4) | ((least >> 2) & 48)
    parts = ((scale & 63, upper[0]), (least & 63, upper[1]))
    made = tuple(np.concatenate(part, axis=-1) for part in parts)
    return made[0], made[1]


def q4_k(read: Read, n: Any, b: Any, e: Any) -> Any:
    """``(d scale[g]) q[e] - least low[g]`` in groups of 32; two groups share 32 bytes"""
    g = e // 32
    byte = read("q", n, b, e // 64, e % 32)
    number = pb.where(g % 2 < 1, byte & 15, byte >> 4)
    step = f32(read("d", n, b)) * f32(read("scale", n, b, g))
    return step * f32(number) - f32(read("least", n, b)) * f32(read("low", n, b, g))


def beside(low: Array, high: Array) -> Array:
    """Bytes of q6_K in the order in which products read them: the two of low bits and the one of
    high bits that four numbers share, ``[.., half, part, place, 3]``.
    """
    lead = low.shape[:-2]
    pairs = np.moveaxis(low.reshape(*lead, 2, 2, 2, 16), -3, -1)
    return np.concatenate([pairs, high.reshape(*lead, 2, 2, 16, 1)], axis=-1)


def q6_k(read: Read, n: Any, b: Any, e: Any) -> Any:
    """``(d scale[e // 16]) (q[e] - 32)``; of each half of 128 the four quarters share bytes: four
    low bits of two quarters, two high bits of all
    """
    half, quarter = e // 128, e // 32 % 4
    place = half, e % 32 // 16, e % 16
    low, high = read("bits", n, b, *place, quarter % 2), read("bits", n, b, *place, 2)
    four = pb.where(quarter < 2, low & 15, low >> 4)
    pairs = [(high >> 2 * t) & 3 for t in range(4)]
    first = pb.where(quarter < 1, pairs[0], pairs[1])
    last = pb.where(quarter < 3, pairs[2], pairs[3])
    number = four | (pb.where(quarter < 2, first, last) << 4)
    step = f32(read("d", n, b)) * f32(read("scales", n, b, e // 16))
    return step * (f32(number) - 32.0)


ELEMENTS: dict[str, Element] = {"q8_0": q8_0, "q4_0": q4_0, "q4_K": q4_k, "q6_K": q6_k}
