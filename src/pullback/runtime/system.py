"""The C library's semaphores and threads, and aligned memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import addressof
from typing import Any

import numpy as np

from pullback.runtime.native import FUNCTIONS

Array = np.ndarray[Any, Any]
Block = tuple[Array, int]  # bytes, and the address among them where a cache line starts

_LIBC = ctypes.CDLL(None, use_errno=True)
_SEMAPHORE = 64  # bytes set aside for a sem_t, which has 32
LINE = 64  # bytes
_ALIGNMENT = 128  # bytes: two cache lines, so that neighbours are not prefetched together
_from_buffer: Callable[[Any], Any] = ctypes.c_char.from_buffer
SPARE_BLOCKS = 4
LARGEST_SPARE = 1 << 27  # bytes


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


@functools.cache
def room(size: int) -> Callable[[], Any]:
    """What makes zeroed memory in which `size` bytes from a cache line on have room.

    For small sizes: it is an eighth of the time that NumPy and `address` take.
    """
    return ctypes.c_char * (size + LINE)


def block(size: int) -> Block:
    """Memory for `size` bytes from a cache line on: rows of whole vectors then cross none."""
    raw = np.empty(size + LINE, np.uint8)
    return raw, (address(raw) + LINE - 1) & -LINE


class Spare:
    """Blocks that nobody uses any more, for the next ones of their size; the oldest goes first.

    The system clears large memory each time it hands it out, which costs more than to fill it.
    Collection may call `give` anywhere: each step on the table is one that Python does not split.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def take(self, size: int) -> Block:
        """A block of `size` bytes."""
        for at, known in self._blocks.copy().items():
            if len(known[0]) != size + LINE:
                continue
            found = self._blocks.pop(at, None)
            if found is not None:
                return found
        return block(size)

    def give(self, found: Block) -> None:
        """Keep a block that nobody refers to."""
        if len(found[0]) > LARGEST_SPARE:
            return
        self._blocks[found[1]] = found
        for at in list(self._blocks)[:-SPARE_BLOCKS]:
            self._blocks.pop(at, None)


spare = Spare()


def address(array: Array) -> int:
    """Where the array's first element is."""
    try:
        return addressof(_from_buffer(array))  # a tenth of the time of what follows
    except (BufferError, TypeError, ValueError):  # read-only, empty, or a type of ml_dtypes
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
