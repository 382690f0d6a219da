"""The C library's semaphores and threads, and aligned memory."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from pullback.runtime.native import FUNCTIONS

Array = np.ndarray[Any, Any]

_LIBC = ctypes.CDLL(None, use_errno=True)
_SEMAPHORE = 64  # bytes set aside for a sem_t, which has 32
_LINE = 64  # bytes
_ALIGNMENT = 128  # bytes: two cache lines, so that neighbours are not prefetched together


def function(name: str) -> int:
    """The address of a C function."""
    found = ctypes.cast(getattr(_LIBC, name), ctypes.c_void_p).value
    if found is None:
        raise OSError(f"the C library has no {name}")
    return found


def function_table() -> Array:
    """Addresses of `native.FUNCTIONS`, in order."""
    return np.array([function(name) for name in FUNCTIONS], np.int64)


def memory(size: int) -> Array:
    """`size` zero bytes, aligned for vectors and against false sharing."""
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -address(raw) % _ALIGNMENT
    return raw[start : start + size]


def aligned(shape: tuple[int, ...], kind: Any) -> Array:
    """An uninitialised array that starts a cache line: rows of whole vectors then cross none."""
    kind = np.dtype(kind)
    size = math.prod(shape) * kind.itemsize
    if size < _LINE:
        return np.empty(shape, kind)
    raw = np.empty(size + _LINE, np.uint8)
    start = -address(raw) % _LINE
    found: Array = raw[start : start + size].view(kind).reshape(shape)
    return found


def address(array: Array) -> int:
    """Where the array's first element is."""
    return int(array.__array_interface__["data"][0])


class Semaphores:
    """Counting semaphores that native code and Python share."""

    def __init__(self, count: int) -> None:
        self._memory = memory(count * _SEMAPHORE)
        self._base = address(self._memory)
        for number in range(count):
            self.reset(number, 0)

    def at(self, number: int) -> int:
        """The address of one."""
        return self._base + number * _SEMAPHORE

    def reset(self, number: int, value: int) -> None:
        """Set one that nobody waits for."""
        _LIBC.sem_init(ctypes.c_void_p(self.at(number)), 0, value)

    def post(self, number: int) -> None:
        """Add one."""
        _LIBC.sem_post(ctypes.c_void_p(self.at(number)))

    def wait(self, number: int) -> None:
        """Take one; other Python threads run meanwhile."""
        while _LIBC.sem_wait(ctypes.c_void_p(self.at(number))) != 0:
            continue


def start_thread(entry: int, argument: int) -> int:
    """A native thread that runs ``entry(argument)``; its handle."""
    handle = ctypes.c_ulong()
    failed = _LIBC.pthread_create(
        ctypes.byref(handle), None, ctypes.c_void_p(entry), ctypes.c_void_p(argument)
    )
    if failed:
        raise OSError(failed, "pthread_create failed")
    return handle.value


def join_thread(handle: int) -> None:
    """Wait for a native thread to end."""
    _LIBC.pthread_join(ctypes.c_ulong(handle), None)
