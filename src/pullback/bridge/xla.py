"""XLA's calls of programs: buffers by address, nothing copied.

XLA calls a C function with a frame of addresses (`xla/ffi/api/c_api.h`, major version 0, minor 3 of
jaxlib 0.10). One function of `ctypes` serves all programs: an attribute of the call names which.
That costs some microseconds a call more than native code would, and needs no compiler.
"""

from __future__ import annotations

import ctypes
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.backends.host.system import array_at
from pullback.errors import UnsupportedError
from pullback.ir.dtype import DType
from pullback.ir.expr import upper
from pullback.tensor.record.trace import settled
from pullback.tensor.run.entry import Entry

TARGET = "pullback_call"  # what XLA calls it
NAMED = "program"  # the attribute
WORD = 8  # bytes
# Words of a frame: of the interface, of arguments, of results, of attributes.
EXTENSION, API, COUNT, ARGUMENTS, RESULT_COUNT, RESULTS, ATTRIBUTES = 1, 2, 7, 9, 12, 14, 20
FRAME = 22
DATA = 3  # the word of a buffer that is its address
CREATE_ERROR = 6  # the word of the interface
METADATA = 3  # the word of an extension that points to what it asks for; its kind is 1
MAJOR, MINOR = 0, 1  # of the interface that this is written for: later minors add to it
INTERNAL = 13  # a status: what runs is at fault

Go = Callable[[list[int]], None]
_words = {n: ctypes.c_int64 * n for n in range(FRAME + 1)}


class _Error(ctypes.Structure):
    """What an error is made of."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("status", ctypes.c_int),
    )


_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Error))
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Programs:
    """What XLA may call, by name. Names are of this process alone: no cache of XLA's mixes them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Go] = {}
        self._home = uuid.uuid4().hex
        self._lock = threading.Lock()
        self.handler = _HANDLER(self._called)

    def add(self, go: Go) -> str:
        """A name for a program."""
        with self._lock:
            name = f"{self._home}-{len(self._known)}"
            self._known[name.encode()] = go
        return name

    def program(self, name: bytes) -> Go:
        """The program of this name.

        Raises: UnsupportedError for one of another process, which exported it.
        """
        known = self._known.get(name)
        if known is None:
            what = "a call of a program that another process compiled"
            raise UnsupportedError(what, help="trace it again in this process", code="E398")
        return known

    def _called(self, at: int) -> int | None:
        """XLA calls: the address of an error, or nothing."""
        frame = _at(at, FRAME)
        if frame[EXTENSION]:
            _tell(frame[EXTENSION])
            return None
        try:
            (span,) = _at(frame[ATTRIBUTES], 1)
            text, size = _at(span, 2)
            given = [_data(b) for b in _at(frame[ARGUMENTS], frame[COUNT])]
            given += [_data(b) for b in _at(frame[RESULTS], frame[RESULT_COUNT])]
            self.program(ctypes.string_at(text, size))(given)
        except BaseException as error:
            return _failed(frame[API], f"{type(error).__name__}: {error}")
        return None


def _at(address: int, count: int) -> Any:
    """So many words there."""
    kind = _words.get(count) or _words.setdefault(count, ctypes.c_int64 * count)
    return kind.from_address(address) if count else ()


def _data(buffer: int) -> int:
    """Where its elements lie."""
    return int(ctypes.c_int64.from_address(buffer + WORD * DATA).value)


def _tell(extension: int) -> None:
    """XLA asks, once, which interface this is written for."""
    (metadata,) = _at(extension + WORD * METADATA, 1)
    version = (ctypes.c_int * 2).from_address(metadata + WORD * 3)
    version[0], version[1] = MAJOR, MINOR


def _failed(api: int, message: str) -> int | None:
    """An error of XLA's, which JAX raises."""
    (create,) = _at(api + WORD * CREATE_ERROR, 1)
    told = _Error(ctypes.sizeof(_Error), None, message.encode(), INTERNAL)
    made: int | None = _CREATE(create)(ctypes.byref(told))
    return made


def runs(entry: Entry, inputs: int) -> Go:
    """A program over addresses of its arguments, then of its results."""
    go = entry.executable.runner.go or _interpreted(entry)
    if not entry.read:
        return go

    def run(given: list[int]) -> None:
        captured = settled(entry.read)
        go([*given[:inputs], *[v.at for v in captured], *given[inputs:]])

    return run


def _interpreted(entry: Entry) -> Go:
    """Where a backend wants arrays."""
    state = entry.executable.program.state

    def run(given: Sequence[int]) -> None:
        pairs = zip(state, given, strict=True)
        shaped = {v: _array(at, tuple(map(upper, v.shape)), v.dtype) for v, at in pairs}
        entry.executable.run(shaped)

    return run


def _array(at: int, shape: tuple[int, ...], kind: DType) -> np.ndarray[Any, Any]:
    return array_at(at, shape, kind.numpy) if 0 not in shape else np.empty(shape, kind.numpy)
