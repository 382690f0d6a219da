"""Batches to the device and snapshots from it, beside what it computes.

A batch: feeder -> pinned memory -> (second stream) staging on the device -> (first) its target.
Each arrow waits for what it overwrites to be done with, by events.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.backends.cuda.driver import Driver
from pullback.backends.cuda.pool import pool_of
from pullback.backends.host.exchange import box, call_feeder, call_receiver
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, Receive

Array = np.ndarray[Any, Any]


class Held:
    """What a program has of a device, each with the function that gives it back."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._ends: dict[int, Callable[[int], None]] = {}

    def keep(self, end: Callable[[int], None], handle: int) -> int:
        """The handle itself."""
        self._ends[handle] = end
        return handle

    def end(self, *handles: int) -> None:
        """Give these back; without any, all, the last one first."""
        for handle in handles or tuple(reversed(self._ends)):
            self._ends.pop(handle)(handle)


@dataclass
class Room:
    """Pinned memory for some variables, and as much on the device where that is asked for."""

    pinned: list[int]
    staging: list[int]
    filled: int  # the event after which the pinned memory is free, or has what was asked for
    taken: int  # the event after which the staging memory is free
    arrays: list[Array]


def room(driver: Driver, variables: Sequence[Variable], staged: bool, held: Held) -> Room:
    """Memory for one batch or snapshot."""
    arrays, pinned = [], []
    for variable in variables:
        shape, kind = box(variable), variable.dtype.numpy
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        pinned.append(held.keep(driver.free_pinned, driver.pinned(size)))
        buffer = (ctypes.c_ubyte * max(size, 1)).from_address(pinned[-1])
        arrays.append(np.frombuffer(memoryview(buffer), np.uint8)[:size].view(kind).reshape(shape))
    sizes = [a.nbytes for a in arrays] if staged else []
    pool = pool_of(driver)
    staging = [held.keep(pool.give, pool.take(size, "batches of a feeder")) for size in sizes]
    filled, taken = (held.keep(driver.end_event, driver.event()) for _ in range(2))
    return Room(pinned, staging, filled, taken, arrays)


class Feeding:
    """Feeders of a program: as many batches are on the way as each has depth."""

    def __init__(self, driver: Driver, stream: int, copies: int, held: Held) -> None:
        self.driver, self.stream, self.copies, self.held = driver, stream, copies, held
        self._rooms: dict[Feed, list[Room]] = {}
        self._given: dict[Feed, int] = {}

    def begin(self) -> None:
        """A run begins."""
        self._given.clear()

    def feed(self, item: Feed, targets: Sequence[int]) -> bool:
        """The next batch is on its way to its targets; False where there is none."""
        batch = call_feeder(item)
        if batch is None:
            return False
        driver, depth = self.driver, max(2, item.depth)
        rooms = self._rooms.setdefault(item, [])
        if len(rooms) < depth:
            rooms.append(room(driver, item.targets, True, self.held))
        number = self._given.get(item, 0)
        self._given[item] = number + 1
        own = rooms[number % len(rooms)]
        driver.reached(own.filled)
        for array, value in zip(own.arrays, batch, strict=True):
            array[...] = value
        driver.after(self.copies, own.taken)
        for to, source, array in zip(own.staging, own.pinned, own.arrays, strict=True):
            driver.to_device(to, source, array.nbytes, self.copies)
        driver.mark(own.filled, self.copies)
        driver.after(self.stream, own.filled)
        for to, source, array in zip(targets, own.staging, own.arrays, strict=True):
            driver.within(to, source, array.nbytes, self.stream)
        driver.mark(own.taken, self.stream)
        return True


class Outgoing:
    """Receivers of a program: snapshots are handed over in order, once the device has made them."""

    def __init__(self, driver: Driver, stream: int, held: Held) -> None:
        self.driver, self.stream, self.held = driver, stream, held
        self._free: dict[Receive, list[Room]] = {}
        self._reached: dict[Receive, int] = {}
        self._waiting: list[tuple[Receive, Room]] = []

    def begin(self) -> None:
        """A run begins."""
        self._reached.clear()
        for item, own in self._waiting:
            self._free[item].append(own)
        self._waiting.clear()

    def receive(self, item: Receive, sources: Sequence[int]) -> None:
        """A snapshot is on its way; those that are `depth` behind are handed over."""
        count = self._reached.get(item, 0) + 1
        self._reached[item] = count
        if count % item.every:
            return
        free = self._free.setdefault(item, [])
        if not free:
            free.append(room(self.driver, item.sources, False, self.held))
        own = free.pop()
        for to, source, array in zip(own.pinned, sources, own.arrays, strict=True):
            self.driver.to_host(to, source, array.nbytes, self.stream)
        self.driver.mark(own.filled, self.stream)
        self._waiting.append((item, own))
        while len(self._waiting) > max(1, item.depth):
            self._hand()

    def finish(self) -> None:
        """Everything is handed over."""
        while self._waiting:
            self._hand()

    def _hand(self) -> None:
        item, own = self._waiting.pop(0)
        self.driver.reached(own.filled)
        snapshot = tuple(np.array(array) for array in own.arrays)
        self._free[item].append(own)
        call_receiver(item, snapshot)
