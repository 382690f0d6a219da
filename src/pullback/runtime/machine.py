"""Runs an assembled program: no Python per step but the user's callbacks."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from pullback.errors import FeedError, IndexRangeError, InvalidIR
from pullback.ir.graph import Variable
from pullback.ir.program import Feed
from pullback.runtime.assemble import Image
from pullback.runtime.native import Code, RingWord, Word
from pullback.runtime.pool import Pool, loader, pools
from pullback.runtime.rings import Consumer, Producer
from pullback.runtime.system import Array, address

_CLEARED = np.array(
    [Word.PC, Word.STOP, Word.LAUNCHES, Word.BARRIERS, Word.MOVED, Word.EVENT_HEAD, Word.ERROR]
)
SLICE = 50_000_000  # ns that the machine runs before it lets Python look for signals


class Machine:
    """An image with its arena, queues and counters; one run at a time.

    `launches`, `barriers`, `moved` (bytes) count the last run.
    """

    def __init__(
        self,
        image: Image,
        arena: Array,
        offsets: Mapping[Variable, int],
        sites: Mapping[int, tuple[str, ...]],
        threads: int,
    ) -> None:
        self._image = image
        self._arena = arena
        self._sites = sites
        self._threads = threads
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._state = np.zeros(Word.COUNT, np.int64)
        self._at = address(self._state)
        self._producers = [Producer(rings, calls) for rings, calls in image.producers]
        receives = [r for r in image.rings if not isinstance(r.item, Feed)]
        for number, ring in enumerate(receives):
            ring.words[RingWord.NUMBER] = number
        self._consumer = Consumer(receives, self.stop)
        self._wire(offsets)
        self._where: dict[Variable, int] = {}

    def _wire(self, offsets: Mapping[Variable, int]) -> None:
        """Everything whose address does not change from run to run."""
        state, words = self._state, self._image.words
        state[Word.CODE] = address(words)
        state[Word.SLICE] = SLICE
        state[Word.TABLE] = address(loader.get().table)
        state[Word.EVENTS] = address(self._consumer.events)
        state[Word.EVENT_SIZE] = len(self._consumer.events)
        state[Word.EVENT_SEMAPHORE] = self._consumer.semaphores.at(0)
        words[self._image.errors] = address(state) + 8 * Word.ERROR
        self._fed: dict[Variable, list[tuple[Array, int]]] = {}
        for ring in self._image.rings:
            item = ring.item
            variables = item.targets if isinstance(item, Feed) else item.sources
            for row, variable in enumerate(variables):
                self._fed.setdefault(variable, []).append((ring.table, row))
        base = address(self._arena)
        for variable, offset in offsets.items():
            self._place(variable, base + offset)

    def _place(self, variable: Variable, at: int) -> None:
        places = self._image.patches.get(variable)
        if places:
            self._image.words[places] = at
        for table, row in self._fed.get(variable, ()):
            table[row, 0] = at

    @property
    def launches(self) -> int:
        return int(self._state[Word.LAUNCHES])

    @property
    def barriers(self) -> int:
        return int(self._state[Word.BARRIERS])

    @property
    def moved(self) -> int:
        return int(self._state[Word.MOVED])

    def stop(self) -> None:
        """Ask the running program to stop after the current step."""
        self._state[Word.STOP] = 1

    def run(self, bindings: Mapping[Variable, Array], sizes: Mapping[str, int]) -> None:
        """Run on `bindings`: contiguous arrays of the state variables, written in place.

        Raises: what a callback raised, FeedError, IndexRangeError, KeyboardInterrupt; the state
        is then that of the last whole step.
        """
        if not self._lock.acquire(timeout=600):
            raise InvalidIR("the program has been running for too long")
        try:
            for variable, array in bindings.items():
                at = address(array)
                if self._where.get(variable) != at:
                    self._place(variable, at)
                    self._where[variable] = at
            for name, places in self._image.sizes.items():
                self._image.words[places] = sizes[name]
            self._run()
        finally:
            self._lock.release()

    def _run(self) -> None:
        state = self._state
        self._pool = pools.get(self._threads)
        state[Word.POOL] = 0 if self._pool is None else self._pool.at
        state[_CLEARED] = 0
        interrupted: list[BaseException] = []
        code = Code.STOPPED
        try:
            self._consumer.start()
            for producer in self._producers:
                producer.start()
            code = Code.AGAIN
        except KeyboardInterrupt as error:
            interrupted.append(error)
        while code == Code.AGAIN:
            try:
                code = Code(loader.get().run(self._at))
            except KeyboardInterrupt as error:
                interrupted.append(error)
                self.stop()
        self._finish(interrupted)
        self._raise(code, interrupted)

    def _finish(self, interrupted: list[BaseException]) -> None:
        """Let the threads end: all snapshots are delivered, no feeder is called again."""
        while True:
            try:
                for producer in self._producers:
                    producer.stop(wait=not interrupted)
                self._consumer.finish(int(self._state[Word.EVENT_HEAD]))
                return
            except KeyboardInterrupt as error:
                if len(interrupted) > 1:
                    raise
                interrupted.append(error)

    def _raise(self, code: Code, interrupted: list[BaseException]) -> None:
        if code == Code.FEED_FAILED:
            self._feed_failed()
        if code == Code.BAD_INDEX:
            self._bad_index()
        if self._consumer.error is not None:
            raise self._consumer.error
        if interrupted:
            raise interrupted[0]

    def _feed_failed(self) -> None:
        for producer in self._producers:
            if producer.error is not None:
                raise producer.error
        raise FeedError("a feeder failed")

    def _bad_index(self) -> None:
        _, site, value = self._state[Word.ERROR : Word.ERROR + 3].tolist()
        sites = self._sites[int(self._state[Word.PC])]
        raise IndexRangeError(f"index {value} is out of range: {sites[site]}")
