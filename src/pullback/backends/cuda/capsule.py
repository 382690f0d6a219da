"""DLPack's structures: what a capsule holds, made and read (dlpack.h, version 1).

A capsule is named `dltensor`, or `dltensor_versioned`; who takes what is in it renames it, and
calls its deleter, once, in the end. What nobody took the capsule deletes itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from pullback.errors import UnsupportedError
from pullback.ir import dtype as D

CUDA, MANAGED = 2, 13  # kinds of devices: memory of a GPU's, and memory that moves by itself
READ_ONLY, COPIED = 1, 2
VERSION = (1, 0)
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}
SHORT = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
HELP = "cast, copy, or go by way of the host"


class Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", c_void_p), ("device", c_int32), ("ordinal", c_int32), ("rank", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)),
        ("offset", c_uint64),
    )  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p))


class Versioned(ctypes.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = (
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
        ("flags", c_uint64), ("tensor", Tensor),
    )  # fmt: skip


_API = ctypes.pythonapi
_named = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _API))
_place = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _API))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_SetName", _API))


@dataclass(frozen=True, slots=True)
class Lying:
    """Elements on a device: where, of which, how many, how far apart, of what type.

    `strides`, in elements, are None where rows follow one another.
    """

    address: int
    ordinal: int
    shape: tuple[int, ...]
    strides: tuple[float, ...] | None
    dtype: np.dtype[Any]
    flags: int = 0
    delete: Callable[[], None] = field(default=lambda: None, compare=False)

    def in_rows(self) -> Lying:
        """Itself. Raises: UnsupportedError where elements do not follow one another, the last
        axis' first.
        """
        step = 1
        for extent, stride in zip(self.shape[::-1], (self.strides or ())[::-1], strict=False):
            if extent != 1 and stride != step and 0 not in self.shape:
                what = f"shape {self.shape} with strides {self.strides}: rows do not follow"
                raise UnsupportedError(what, help="x.contiguous(), or a copy", code="E318")
            step *= extent
        return self


# --- out


def capsule(lying: Lying, versioned: bool, kept: object) -> Any:
    """A capsule of elements in rows; `kept` lives until who takes it has called its deleter.

    NumPy makes it, of an array over addresses that nobody looks at, and what is there is told to be
    of a device: its deleter holds where Python's state is any.
    """
    size = lying.dtype.itemsize
    memory = (ctypes.c_ubyte * (size * prod(lying.shape))).from_address(lying.address)
    setattr(memory, "kept", kept)  # noqa: B010  # ctypes has none that mypy knows
    words = np.dtype(f"u{size}")
    array: Any = np.frombuffer(memoryview(memory), words).reshape(lying.shape)
    array.flags.writeable = not versioned or not lying.flags & READ_ONLY
    held = array.__dlpack__(**({"max_version": VERSION} if versioned else {}))
    name, kind = (VERSIONED, Versioned) if versioned else (PLAIN, Managed)
    made = kind.from_address(_place(id(held), name) or 0)
    made.tensor.device, made.tensor.ordinal = CUDA, lying.ordinal
    made.tensor.code = _code(lying.dtype)
    if isinstance(made, Versioned):
        made.flags = lying.flags
    return held


def _code(kind: np.dtype[Any]) -> int:
    return SHORT.get(kind.name) or KINDS[kind.kind]


# --- in


def _delete(kind: type[Managed] | type[Versioned], place: int) -> None:
    deleter = kind.from_address(place).deleter
    if deleter:
        DELETER(deleter)(place)


def taken(held: Any, ordinal: int) -> Lying:
    """What is in a capsule, which is taken: `delete` gives it back, once.

    Raises: UnsupportedError for what is no capsule, or what it holds, which is left in it.
    """
    versioned = _named(id(held), VERSIONED)
    if not versioned and not _named(id(held), PLAIN):
        raise refused(f"{type(held).__name__} that is no capsule, or was taken before")
    name = VERSIONED if versioned else PLAIN
    place = _place(id(held), name) or 0
    kind: type[Managed] | type[Versioned] = Versioned if versioned else Managed
    made = kind.from_address(place)
    flags = 0
    if isinstance(made, Versioned):
        if made.major > VERSION[0]:
            raise refused(f"version {made.major}.{made.minor}")
        flags = made.flags
    lying = _read(made.tensor, flags, lambda: _delete(kind, place))
    if lying.ordinal != ordinal:
        raise refused(f"memory of cuda:{lying.ordinal} in an array of cuda:{ordinal}")
    _rename(id(held), _USED[name])
    return lying


_USED = {name: b"used_" + name for name in (PLAIN, VERSIONED)}  # PyCapsule keeps the address alone


def _read(tensor: Tensor, flags: int, delete: Callable[[], None]) -> Lying:
    if tensor.device not in (CUDA, MANAGED):
        raise refused(f"memory of device kind {tensor.device}")
    kind = _kind(tensor.code, tensor.bits, tensor.lanes)
    shape = tuple(tensor.shape[: tensor.rank])
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.offset
    return Lying(address, tensor.ordinal, shape, strides, kind, flags, delete).in_rows()


def _kind(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    for own in D.ALL:
        if (code, bits, lanes) == (_code(own.numpy), 8 * own.numpy.itemsize, 1):
            return own.numpy
    raise refused(f"elements of kind {code} with {bits} bits, {lanes} at a time")


def refused(what: str) -> UnsupportedError:
    """What is raised for what one of both sides does not know."""
    return UnsupportedError(f"DLPack: {what}", help=HELP, code="E318")
