"""Bounded queues between the machine and Python callbacks, and the threads that serve them.

A feed's ring is filled by a producer thread: one call a step, in order, at most `depth` ahead and
never beyond the last step. What the machine has not taken stays in the ring for the next run.
A receive's ring is emptied by the consumer thread, in the order in which snapshots were made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pullback.backends.host.exchange import OUTSIDE, box, call_feeder, call_receiver
from pullback.backends.host.native import RingWord
from pullback.backends.host.pool import loader
from pullback.backends.host.profile import Clock
from pullback.backends.host.system import Array, address, memory
from pullback.errors import FeedError
from pullback.ir.program import Feed, Receive

_LINE = 64
_DATA, _END, _FAILED = 0, 1, 2
_SEMAPHORE = 64  # bytes: a line each


class Server(threading.Thread):
    """Calls back for a program while the thread that runs it waits.

    `master`: the thread that somebody outside started; what it holds is held for this one too.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.master = master()


def master() -> int:
    """The thread on whose behalf this one runs: itself, but for one that calls back."""
    thread = threading.current_thread()
    return thread.master if isinstance(thread, Server) else threading.get_ident()


class Semaphores:
    """Counting semaphores that native code and Python share: {value, how many wait for it}."""

    def __init__(self, count: int) -> None:
        self._memory = memory(count * _SEMAPHORE)
        self._base = address(self._memory)
        self._natives = loader.get()
        self._table = address(self._natives.table)

    def at(self, number: int) -> int:
        """The address of one."""
        return self._base + number * _SEMAPHORE

    def reset(self, number: int, value: int) -> None:
        """Set one that nobody waits for."""
        start = number * _SEMAPHORE
        self._memory[start : start + 8].view(np.int32)[:] = value, 0

    def post(self, number: int) -> None:
        """Add one."""
        self._natives.give(self._table, self.at(number))

    def wait(self, number: int) -> None:
        """Take one; other Python threads run meanwhile."""
        self._natives.take(self._table, self.at(number), -1)


class Ring:
    """`depth` slots, each with room for all arrays of one batch or snapshot.

    `words` is what the machine sees; `table` has a row per array, whose first word (the address
    of its buffer) the machine's owner fills in.
    """

    def __init__(self, item: Feed | Receive, number: int) -> None:
        variables = item.targets if isinstance(item, Feed) else item.sources
        sizes = [int(np.prod(box(v))) * v.dtype.itemsize for v in variables]
        offsets = np.cumsum([0, *(-(-s // _LINE) * _LINE for s in sizes)])
        self.item = item
        self.depth = max(1, item.depth)
        self.semaphores = Semaphores(2)
        self._slots = memory(int(offsets[-1]) * self.depth)
        self._status = np.zeros(self.depth, np.int64)
        self.table = np.zeros((len(variables), 3), np.int64)
        self.table[:, 1] = offsets[:-1]
        self.table[:, 2] = sizes
        self.words = np.zeros(RingWord.COUNT, np.int64)
        self.words[RingWord.FILLED] = self.semaphores.at(0)
        self.words[RingWord.FREE] = self.semaphores.at(1)
        self.words[RingWord.DEPTH] = self.depth
        self.words[RingWord.SLOTS] = address(self._slots)
        self.words[RingWord.STRIDE] = offsets[-1]
        self.words[RingWord.PARTS] = len(variables)
        self.words[RingWord.TABLE] = address(self.table)
        self.words[RingWord.STATUS] = address(self._status)
        self.words[RingWord.EVERY] = item.every if isinstance(item, Receive) else 1
        self.words[RingWord.NUMBER] = number
        self.views = [
            tuple(
                self._slots[base + low : base + low + size].view(v.dtype.numpy).reshape(box(v))
                for v, low, size in zip(variables, offsets[:-1].tolist(), sizes, strict=True)
            )
            for base in range(0, max(1, int(offsets[-1])) * self.depth, max(1, int(offsets[-1])))
        ]

    @property
    def taken(self) -> int:
        """Batches that the machine has taken, or snapshots that it has made."""
        return int(self.words[RingWord.HEAD])

    def publish(self, number: int, status: int, batch: tuple[Array, ...]) -> None:
        """Fill slot `number`, of which the caller has taken the `free` semaphore."""
        for view, array in zip(self.views[number % self.depth], batch, strict=False):
            view[...] = array
        self._status[number % self.depth] = status
        self.semaphores.post(0)


@dataclass(frozen=True, slots=True)
class Calls:
    """How often a group of feeds is reached: `rounds` runs of a loop of `steps`.

    `known`: exactly so often, unless it ends; else batches are made only when asked for. `ends`:
    whether there is a loop that ends where the batches do.
    """

    rounds: int
    steps: int
    known: bool
    ends: bool


class Producer:
    """Calls the feeders of one block, in order, on a thread of its own."""

    def __init__(self, rings: list[Ring], calls: Calls) -> None:
        self.rings = rings
        self.calls = calls
        self.error: BaseException | None = None
        self.clock: Clock | None = None
        self._made = [0] * len(rings)
        self._phase = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        for ring in rings:
            ring.words[RingWord.DEMAND] = int(not calls.known)

    def start(self) -> None:
        """Begin a run; batches left from an interrupted one come first."""
        if self._thread is not None:
            self._thread.join()
        left = [m - r.taken for m, r in zip(self._made, self.rings, strict=True)]
        if self.error is not None and not any(left):
            self.error = None
            self._phase = 0
        for ring, count in zip(self.rings, left, strict=True):
            asked = max(0, int(ring.words[RingWord.ASKED]) - count)
            ring.semaphores.reset(0, count)
            ring.semaphores.reset(1, ring.depth - count if self.calls.known else asked)
        self._stop.clear()
        if self.error is None:
            self._thread = Server(self._serve, "pullback-feeder")
            self._thread.start()

    def stop(self, wait: bool) -> None:
        """Make no further call. A call that is going on still delivers its batch."""
        self._stop.set()
        for ring in self.rings:
            ring.semaphores.post(1)
        if wait and self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        steps = self.calls.steps
        place = self._made[0] - self.rings[0].taken
        for _ in range(self.calls.rounds):
            while place < steps:
                goes_on = self._step()
                if goes_on is None:
                    return
                if not goes_on:
                    break
                place += 1
            place = 0

    def _step(self) -> bool | None:
        """One batch of every feeder. False: the loop ends; None: so does the program.

        A step that was interrupted between two feeders goes on with the second.
        """
        while self._phase < len(self.rings):
            status = self._call(self._phase)
            if status == _FAILED:
                return None
            self._phase += 1
            if status == _END:
                self._phase = 0
                return False
        self._phase = 0
        return True

    def _call(self, number: int) -> int:
        ring = self.rings[number]
        ring.semaphores.wait(1)
        if self._stop.is_set() or not isinstance(ring.item, Feed):
            return _FAILED
        batch: tuple[Array, ...] | None = None
        status = _FAILED
        try:
            began = time.perf_counter_ns()
            batch = call_feeder(ring.item)
            if self.clock is not None:
                self.clock.note("feeder", began)
            if batch is None and not self.calls.ends:
                raise FeedError(OUTSIDE, origin=ring.item.origin, code="E413")
            status = _END if batch is None else _DATA
        except BaseException as error:
            self.error = error
        place = self._made[number]
        self._made[number] += 1
        ring.publish(place, status, batch or ())
        return status


class Consumer:
    """Hands snapshots to their callbacks, in order, on a thread of its own.

    `events` lists ring numbers in the order of the snapshots; `fail` is told about an error.
    """

    def __init__(self, rings: list[Ring], fail: Callable[[], None]) -> None:
        self.rings = rings
        self.fail = fail
        self.error: BaseException | None = None
        self.clock: Clock | None = None
        self.semaphores = Semaphores(1)
        self.events = np.zeros(1 + sum(r.depth for r in rings), np.int64)
        self._seen = 0
        self._last: int | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin a run."""
        self.error = None
        self._seen = 0
        self._last = None
        self.semaphores.reset(0, 0)
        for ring in self.rings:
            ring.words[RingWord.HEAD] = 0
            ring.words[RingWord.REACHED] = 0
            ring.semaphores.reset(1, ring.depth)
        if self.rings:
            self._thread = Server(self._serve, "pullback-receiver")
            self._thread.start()

    def finish(self, made: int) -> None:
        """Wait until all `made` snapshots are delivered."""
        if self._thread is None:
            return
        self._last = made
        self.semaphores.post(0)
        self._thread.join()
        self._thread = None

    def _serve(self) -> None:
        counts = [0] * len(self.rings)
        while True:
            self.semaphores.wait(0)
            if self._seen == self._last:
                return
            number = int(self.events[self._seen % len(self.events)])
            self._seen += 1
            ring = self.rings[number]
            views = ring.views[counts[number] % ring.depth]
            counts[number] += 1
            arrays = tuple(np.array(v) for v in views)
            ring.semaphores.post(1)
            self._deliver(ring, arrays)

    def _deliver(self, ring: Ring, arrays: tuple[Array, ...]) -> None:
        if self.error is not None or not isinstance(ring.item, Receive):
            return
        try:
            began = time.perf_counter_ns()
            call_receiver(ring.item, arrays)
            if self.clock is not None:
                self.clock.note("receiver", began)
        except BaseException as error:
            self.error = error
            self.fail()
