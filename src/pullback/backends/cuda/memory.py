"""Arrays that lie on a device: a program is bound to one in the place of an array of the host."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from pullback.backends.cuda.driver import Driver
from pullback.backends.cuda.pool import pool_of
from pullback.errors import DeviceError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    """Memory of another library: where, the event after which its contents are there, and what
    tells its owner that nobody wants it any more.
    """

    address: int
    ready: int
    release: Callable[[], object]


class Resident:
    """An array on a device, in order of its rows; its memory is given back with it.

    `lent`: it is another library's, and nobody writes to it. `ready`: the event after which it has
    its contents; 0: it has them.
    """

    flags = SimpleNamespace(c_contiguous=True)

    def __init__(
        self,
        on: Driver,
        shape: tuple[int, ...],
        kind: np.dtype[Any],
        planned: str = "",
        lent: Lent | None = None,
    ) -> None:
        self.driver, self.shape, self.dtype = on, shape, kind
        self.ndim = len(shape)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        self.lent, self.ready = lent is not None, 0
        self._seen: list[str] = []
        if lent is not None:
            self.address, self.ready = lent.address, lent.ready
            weakref.finalize(self, _returned, on, lent).atexit = False
            return
        with on.here():
            planned = planned or f"a tensor of {self.nbytes} bytes"
            self.address = pool_of(on).take(self.nbytes, planned)
        weakref.finalize(self, _freed, on, self.address, self._seen).atexit = False

    def shown(self) -> None:
        """Another library is told where it lies, and may use it until the driver frees it."""
        self._seen.append("by another library")

    @property
    def device(self) -> str:
        """Where it lies."""
        return f"cuda:{self.driver.ordinal}"

    def awaited(self, stream: int) -> None:
        """What the stream is given next comes after its contents are there."""
        if self.ready:
            self.driver.after(stream, self.ready)

    def write(self, array: Array) -> Resident:
        """Copy the elements of an array there. It is done when this returns."""
        kept, on = np.ascontiguousarray(array), self.driver
        with on.here():
            stream = stream_of(on)
            on.to_device(self.address, kept.ctypes.data, self.nbytes, stream)
            on.wait(stream)
        return self

    def take(self, other: Resident) -> Resident:
        """Copy the elements of an array of another device there, by no way of the host."""
        on = self.driver
        with on.here():
            stream = stream_of(on)
            other.awaited(stream)
            on.across(self.address, other.address, other.driver, self.nbytes, stream)
            on.wait(stream)
        return self

    def read(self, array: Array) -> None:
        """Copy its elements to an array of the host."""
        on = self.driver
        with on.here():
            stream = stream_of(on)
            self.awaited(stream)
            on.to_host(array.ctypes.data, self.address, self.nbytes, stream)
            on.wait(stream)

    def copy(self) -> Resident:
        """Another one with the same elements."""
        made, on = Resident(self.driver, self.shape, self.dtype), self.driver
        with on.here():
            stream = stream_of(on)
            self.awaited(stream)
            on.within(made.address, self.address, self.nbytes, stream)
            on.wait(stream)
        return made


class Pointed(Resident):
    """Memory of another library for one run, which stands in the order of its stream; whoever runs
    keeps it alive. `nbytes` of it are there: its last row may be shorter.
    """

    def __init__(
        self, on: Driver, shape: tuple[int, ...], kind: np.dtype[Any], address: int, nbytes: int
    ) -> None:
        self.driver, self.shape, self.dtype, self.address = on, shape, kind, address
        self.nbytes = nbytes
        self.lent, self.ready = True, 0


@cache
def stream_of(on: Driver) -> int:
    """The stream of copies to, from and on a device."""
    return on.stream()


def _freed(on: Driver, address: int, seen: list[str]) -> None:
    def end() -> None:
        with suppress(DeviceError), on.here():  # another process, or a context that failed
            (pool_of(on).drop if seen else pool_of(on).give)(address)

    on.after_capture(end) if seen else end()


def _returned(on: Driver, lent: Lent) -> None:
    lent.release()
    with suppress(DeviceError), on.here():
        if lent.ready:
            on.end_event(lent.ready)
