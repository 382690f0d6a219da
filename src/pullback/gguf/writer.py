"""Small GGUF files: facts and tensors, of plain floats or of blocks that are given as bytes."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pullback.errors import StateError
from pullback.gguf.kinds import KINDS, Kind, named
from pullback.gguf.reader import ALIGNMENT, ARRAY, CODES, MAGIC, STRING
from pullback.nn.base.weights import write_atomically

Array = np.ndarray[Any, Any]


def write(
    path: str | os.PathLike[str], facts: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    """Write a GGUF file of version 3, whole or not at all.

    A fact is a bool, an int (32 bits, or 64 where it needs them), a float, a text, an array or a
    list of texts. A tensor is an array of float32, float16 or bfloat16, or of uint8 with the name
    of a kind beside it, ``(blocks, "q8_0")``: rows of the bytes of blocks.

    Raises: StateError for what has no place in such a file (E580).

    Example:
        >>> pb.gguf.write("m.gguf", {"general.name": "m"}, {"w": np.ones((2, 32), np.float32)})
        >>> sorted(pb.gguf.read("m.gguf").tensors)
        ['w']
    """
    head = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(facts))]
    head += [_text(key) + _fact(key, value) for key, value in facts.items()]
    bodies: list[bytes] = []
    offset = 0
    for name, given in tensors.items():
        kind, shape, data = _tensor(name, given)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_text(name) + dims + struct.pack("<IQ", kind.code, offset))
        bodies.append(_filled(data))
        offset += len(bodies[-1])
    write_atomically(Path(path), _filled(b"".join(head)) + b"".join(bodies))


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _fact(key: str, value: Any) -> bytes:
    """The type of a value, and the value."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        count = struct.pack("<IIQ", ARRAY, STRING, len(value))
        return count + b"".join(map(_text, value))
    if isinstance(value, bool | int | float):
        small = type(value) is int and -(2**31) <= value < 2**32
        whole = (np.uint32 if value >= 0 else np.int32) if small else np.int64
        number = np.asarray(value, {bool: np.bool_, int: whole, float: np.float32}[type(value)])
        return struct.pack("<I", CODES[number.dtype]) + number.tobytes()
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype in CODES:
        return struct.pack("<IIQ", ARRAY, CODES[value.dtype], len(value)) + value.tobytes()
    raise StateError(f"`{key}` is {value!r:.60}, which a GGUF file cannot say", code="E580")


def _tensor(name: str, given: Any) -> tuple[Kind, tuple[int, ...], bytes]:
    if isinstance(given, tuple):
        array, kind = np.asarray(given[0]), named(given[1])
        if kind is None or array.dtype != np.uint8 or array.shape[-1] % kind.size:
            what = f"`{name}` is {array.dtype} {array.shape}, no rows of blocks of {given[1]!r}"
            raise StateError(what, code="E580")
        row = array.shape[-1] // kind.size * kind.elements
        return kind, (*array.shape[:-1], row), array.tobytes()
    array = np.asarray(given)
    plain = (k for k in KINDS.values() if k.elements == 1 and k.record == array.dtype)
    kind = next(plain, None)
    if kind is None or not 1 <= array.ndim <= 4 or not math.prod(array.shape):
        what = f"`{name}` is {array.dtype} {array.shape}, which a GGUF file cannot hold"
        raise StateError(what, code="E580")
    return kind, array.shape, array.tobytes()
