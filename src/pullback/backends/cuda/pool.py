"""Memory of a device that nobody wants any more, kept for who wants some next.

Who has given memory back has waited for what used it, so the next one may write there at once. What
other libraries have seen is none of it: the driver frees that, and waits for all that runs.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from functools import cache

from pullback.backends.cuda.driver import Driver, out_of_memory

VARIABLE = "PULLBACK_CUDA_POOL"
ALIGNED = 256  # bytes: cuMemAlloc's own alignment


def rounded(size: int) -> int:
    """A size as it is kept: eight to each power of two, so that at most an eighth is wasted."""
    size = max(size, ALIGNED)
    step = max(ALIGNED, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


class Pool:
    """Memory of one device. `keeps`: what is given back is kept; else the driver has it at once,
    and nothing is rounded, so that its own tools see what is used after, or beyond, its end.
    """

    def __init__(self, on: Driver) -> None:
        self.on = on
        self.keeps = os.environ.get(VARIABLE) != "off"
        self._sizes: dict[int, int] = {}  # of what is lent or kept, by address
        self._free: dict[int, list[int]] = {}  # addresses by size
        self._given: deque[int] = deque()  # appended to at any time, even by the garbage collector
        self._lock = threading.RLock()

    @property
    def kept(self) -> int:
        """Bytes that nobody wants."""
        with self._lock:
            self._sort()
            return sum(size * len(own) for size, own in self._free.items())

    @property
    def lent(self) -> int:
        """Bytes that tensors and programs have."""
        with self._lock:
            return sum(self._sizes.values()) - self.kept

    def take(self, size: int, planned: str = "") -> int:
        """The address of so many bytes, not filled, with the device's context current.

        Raises: DeviceError, once all that is kept was given back to the driver.
        """
        with self._lock:
            self._sort()
            for wanted in (rounded(size), size):
                if self._free.get(wanted):
                    return self._free[wanted].pop()
            own = rounded(size) if self.keeps else size
            address = self.on.tried(own)
            if address is None:
                told = (
                    f"tensors and programs have {self.lent} bytes, {self.empty()} were given back"
                )
                own, address = size, self.on.tried(size)
                if address is None:
                    what = f"{planned}; {told}" if planned else told
                    out_of_memory(self.on.name, size, self.on.free_bytes(), what)
            self._sizes[address] = own
            return address

    def size(self, address: int) -> int:
        """Bytes that there are at an address that was taken."""
        with self._lock:
            return self._sizes[address]

    def give(self, address: int) -> None:
        """Nobody wants it any more. Calls nothing of the driver's, so that it may come at any time,
        in a capture too.
        """
        self._given.append(address)
        if not self.keeps:
            self.on.after_capture(self.empty)

    def drop(self, address: int) -> None:
        """The driver has it back, which waits for whoever uses it."""
        with self._lock:
            self._sizes.pop(address, None)
            self.on.free(address)

    def empty(self) -> int:
        """The driver has back what is kept: so many bytes."""
        with self._lock, self.on.here():
            size = self.kept
            free, self._free = self._free, {}
            for address in [address for own in free.values() for address in own]:
                self.drop(address)
            return size

    def _sort(self) -> None:
        while self._given:
            address = self._given.popleft()
            self._free.setdefault(self._sizes[address], []).append(address)


@cache
def pool_of(on: Driver) -> Pool:
    """The one of a device."""
    return Pool(on)
