"""What the system has: C functions, native threads, aligned memory, word of forks and ends."""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import math
import os
import platform
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof
from typing import Any, Protocol

import numpy as np

from pullback.backends.host.native_waits import Waits, waits
from pullback.errors import UnsupportedError

Array = np.ndarray[Any, Any]
Block = tuple[Array, int]  # bytes, and the address among them where a cache line starts

WINDOWS = sys.platform == "win32"
_LIBRARIES = ("api-ms-win-core-synch-l1-2-0", "kernel32", "msvcrt") if WINDOWS else (None,)
_LIBC = [ctypes.CDLL(name, use_errno=True) for name in _LIBRARIES]
_PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
LINE = 64  # bytes
_ALIGNMENT = 128  # bytes: two cache lines, so that neighbours are not prefetched together
# Bytes around a block: to start it on a line, and behind it, since a last vector that reaches into
# memory that is not there takes microseconds, even where those lanes are off.
_AROUND = 2 * LINE
_from_buffer: Callable[[Any], Any] = ctypes.c_char.from_buffer
SPARE_BLOCKS = 4
LARGEST_SPARE = 1 << 27  # bytes


def function(name: str) -> Any:
    """A C function.

    Raises: UnsupportedError where this system has none of that name.
    """
    for library in _LIBC:
        try:
            return getattr(library, name)
        except AttributeError:
            continue
    raise UnsupportedError(f"the C library of this system has no {name}", code="E528")


@functools.cache
def own_waits() -> Waits:
    """How threads of this process wait."""
    machine = platform.machine().lower()
    return waits(sys.platform, _PROCESSORS.get(machine, machine))


def function_table(names: Sequence[str]) -> Array:
    """Addresses of C functions, in order."""
    places = [ctypes.cast(function(name), ctypes.c_void_p).value for name in names]
    return np.array(places, np.int64)


def memory(size: int) -> Array:
    """`size` zero bytes, aligned for vectors and against false sharing."""
    raw = np.zeros(size + _ALIGNMENT + LINE, np.uint8)
    start = -address(raw) % _ALIGNMENT
    return raw[start : start + size]


def array_at(at: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    """The elements at an address, as they lie; whoever asks holds their memory."""
    size = math.prod(shape) * kind.itemsize
    raw: Any = (ctypes.c_char * size).from_address(at) if size else bytearray()
    return np.ndarray(shape, kind, raw)


@functools.cache
def room(size: int) -> Callable[[], Any]:
    """What makes zeroed memory in which `size` bytes from a cache line on have room.

    For small sizes: it is an eighth of the time that NumPy and `address` take.
    """
    return ctypes.c_char * (size + LINE)


def block(size: int) -> Block:
    """Memory for `size` bytes from a cache line on: rows of whole vectors then cross none."""
    raw = np.empty(size + _AROUND, np.uint8)
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
            if len(known[0]) != size + _AROUND:
                continue
            spare_block = self._blocks.pop(at, None)
            if spare_block is not None:
                return spare_block
        return block(size)

    def give(self, given: Block) -> None:
        """Keep a block that nobody refers to."""
        if len(given[0]) > LARGEST_SPARE:
            return
        self._blocks[given[1]] = given
        for at in list(self._blocks)[:-SPARE_BLOCKS]:
            self._blocks.pop(at, None)


spare = Spare()


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's search for cycles waits. A compiler makes many objects and no cycles, and each
    search looks at all that live: a tenth of its time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def address(array: Array) -> int:
    """Where the array's first element is."""
    try:
        return addressof(_from_buffer(array))  # a tenth of the time of what follows
    except (BufferError, TypeError, ValueError):  # read-only, empty, or a type of ml_dtypes
        return int(array.__array_interface__["data"][0])


class Lasting(Protocol):
    """What holds locks, or runs native code, for as long as it is referred to."""

    def forked(self) -> None:
        """In a child process: no thread but the one that forked is there."""

    def ended(self) -> None:
        """The interpreter is about to take itself apart."""


class Process:
    """Tells what lasts of forks and of the end."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Lasting] = weakref.WeakValueDictionary()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._ended)

    def tell(self, one: Lasting) -> None:
        """From now on."""
        self._known[id(one)] = one

    def _alive(self) -> list[Lasting]:
        return [one for ref in self._known.valuerefs() if (one := ref()) is not None]

    def _forked(self) -> None:
        for one in self._alive():
            one.forked()

    def _ended(self) -> None:
        for one in self._alive():
            one.ended()


process = Process()


def start_thread(entry: int, argument: int) -> int:
    """A native thread that runs ``entry(argument)``; its handle. Signals go to other threads."""
    if WINDOWS:
        return _start_windows(entry, argument)
    handle = ctypes.c_ulong()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        failed = function("pthread_create")(
            ctypes.byref(handle), None, ctypes.c_void_p(entry), ctypes.c_void_p(argument)
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if failed:
        raise _refused(os.strerror(failed))
    return handle.value


def _refused(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"the system starts no thread: {why}",
        help="pb.set_num_threads(1), or fewer processes at a time",
        code="E528",
    )


def _start_windows(entry: int, argument: int) -> int:
    create = function("CreateThread")
    create.restype = ctypes.c_void_p
    handle = create(None, ctypes.c_size_t(0), *map(ctypes.c_void_p, (entry, argument)), 0, None)
    if not handle:
        raise _refused("CreateThread failed")
    return int(handle)


def join_thread(handle: int) -> None:
    """Wait for a native thread to end."""
    if WINDOWS:
        function("WaitForSingleObject")(ctypes.c_void_p(handle), ctypes.c_uint32(0xFFFFFFFF))
        function("CloseHandle")(ctypes.c_void_p(handle))
        return
    function("pthread_join")(ctypes.c_ulong(handle), None)
