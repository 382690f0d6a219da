"""Arrays that lie on a device: a program is bound to one in the place of an array of the host."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from pullback.backends.cuda.driver import Driver
from pullback.errors import DeviceError

Array = np.ndarray[Any, Any]


class Resident:
    """An array on a device, in order of its rows; its memory is given back with it."""

    flags = SimpleNamespace(c_contiguous=True)

    def __init__(
        self, on: Driver, shape: tuple[int, ...], kind: np.dtype[Any], planned: str = ""
    ) -> None:
        self.driver, self.shape, self.dtype = on, shape, kind
        self.ndim = len(shape)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        on.current()
        self.address = on.allocate(self.nbytes, planned or f"a tensor of {self.nbytes} bytes")
        weakref.finalize(self, _freed, on, self.address).atexit = False

    @property
    def device(self) -> str:
        """Where it lies."""
        return f"cuda:{self.driver.ordinal}"

    def write(self, array: Array) -> Resident:
        """Copy the elements of an array there. It is done when this returns."""
        kept = np.ascontiguousarray(array)
        stream = _ready(self.driver)
        self.driver.to_device(self.address, kept.ctypes.data, self.nbytes, stream)
        self.driver.wait(stream)
        return self

    def read(self, array: Array) -> None:
        """Copy its elements to an array of the host."""
        stream = _ready(self.driver)
        self.driver.to_host(array.ctypes.data, self.address, self.nbytes, stream)
        self.driver.wait(stream)

    def copy(self) -> Resident:
        """Another one with the same elements."""
        made, stream = Resident(self.driver, self.shape, self.dtype), _ready(self.driver)
        self.driver.within(made.address, self.address, self.nbytes, stream)
        self.driver.wait(stream)
        return made


@cache
def _stream(on: Driver) -> int:
    return on.stream()


def _ready(on: Driver) -> int:
    """The stream of copies, for this thread."""
    on.current()
    return _stream(on)


def _freed(on: Driver, address: int) -> None:
    with suppress(DeviceError):  # of another process, or after a failure that ended the context
        on.current()
        on.free(address)
