"""Runs an assembled program: no Python per step but the user's callbacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from pullback.backends.host.assemble import WIDTH, Assembled, named
from pullback.backends.host.exchange import box, call_host, shown
from pullback.backends.host.native import Code, RingWord, Word
from pullback.backends.host.pool import loader, pools
from pullback.backends.host.profile import Clock, Profile
from pullback.backends.host.rings import Consumer, Producer, master
from pullback.backends.host.system import LINE, Array, address, array_at, memory, process
from pullback.config import processors
from pullback.errors import BackendError, DeviceError, FeedError, IndexRangeError, UnsupportedError
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Feed

SLICE = 50_000_000  # ns that the machine runs before it lets Python look for signals
PATIENCE = 5.0  # seconds that the end of the process waits for a step to end
_PC, _STOP, _POOL, _THREADS = map(int, (Word.PC, Word.STOP, Word.POOL, Word.THREADS))


@dataclass(frozen=True, slots=True)
class Crew:
    """How many threads a program has working memory for, and which setting it goes by.

    `follows`: `pb.set_num_threads`; else it always runs on so many. `grows`: beyond that number
    it takes more memory.
    """

    threads: int
    follows: bool = False
    grows: bool = False


class VirtualMachine:
    """An image with its arena, queues and counters; one run at a time.

    `launches`, `barriers`, `moved` (bytes) count the last run. `alike` makes another machine of the
    program: a call while this one runs goes there, and calls of several threads do not wait for
    each other; None: they do.
    """

    def __init__(
        self,
        image: Assembled,
        state: Sequence[Variable],
        arena: Array,
        offsets: Mapping[Variable, int],
        sites: Mapping[int, tuple[str, ...]],
        crew: Crew,
        clock: Clock | None = None,
        alike: Callable[[], VirtualMachine] | None = None,
    ) -> None:
        self._image = image
        self._clock = clock
        self._alike = None if image.rings or image.hosts else alike
        self._beside: list[VirtualMachine] = []
        self._growing = threading.Lock()
        self._arena = arena
        self._sites = sites
        self._crew = crew
        self._scratch: Array | None = None
        self._lock = threading.Lock()
        self._master = 0  # who runs it now, where it calls back
        self._ending = False
        self._state = np.zeros(Word.COUNT, np.int64)
        self._words = self._state.data
        self._at = address(self._state)
        self._variables = state
        self._native = loader.get().run
        self._producers = [Producer(rings, calls) for rings, calls in image.producers]
        receives = [r for r in image.rings if not isinstance(r.item, Feed)]
        for number, ring in enumerate(receives):
            ring.words[RingWord.NUMBER] = number
        self._consumer = Consumer(receives, self.stop)
        self._serves = bool(image.rings)
        self._consumer.clock = clock
        for producer in self._producers:
            producer.clock = clock
        self._wire(offsets)
        self._listen()
        process.tell(self)

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
        if self._clock is not None:
            self._time(self._clock)
        self._fed: dict[Variable, list[tuple[Array, int]]] = {}
        for ring in self._image.rings:
            item = ring.item
            variables = item.targets if isinstance(item, Feed) else item.sources
            for row, variable in enumerate(variables):
                self._fed.setdefault(variable, []).append((ring.table, row))
        base = address(self._arena)
        for variable, offset in offsets.items():
            self._place(variable, base + offset)

    def _time(self, clock: Clock) -> None:
        """Give every launch its clock."""
        self._state[Word.LOG] = address(clock.log)
        self._state[Word.LOG_SIZE] = len(clock.log)
        for row, place in enumerate(clock.places):
            self._image.words[place * WIDTH + 7] = address(clock.rows[row])

    def profile(self, kernels: Sequence[Kernel]) -> Profile | None:
        """The times of all runs so far; `kernels` in program order. None where none are taken."""
        if self._clock is None:
            return None
        moved = {place: call.moved for place, call in self._image.launches.items()}
        return self._clock.profile(kernels, moved, int(self._state[Word.LOGGED]))

    def _place(self, variable: Variable, at: int) -> None:
        places = self._image.patches.get(variable)
        if places:
            self._image.words[places] = at
        for table, row in self._fed.get(variable, ()):
            table[row, 0] = at

    def _listen(self) -> None:
        """Which word wants which of the addresses and sizes that a run is given."""
        image, variables = self._image, self._variables
        words = address(image.words)
        rows: list[tuple[int, int]] = []
        for number, variable in enumerate(variables):
            rows += [(number, words + 8 * place) for place in image.patches.get(variable, ())]
            rows += [(number, address(t[row])) for t, row in self._fed.get(variable, ())]
        for number, places in enumerate(image.sizes.values(), len(variables)):
            rows += [(number, words + 8 * place) for place in places]
        count = len(variables) + len(image.sizes)
        given = np.zeros(count, np.int64)
        self._given = given.data
        self._rows = np.array(rows, np.int64)
        self._pack = Struct(f"{count}n").pack_into  # "n" is 64 bits here, and quicker than "q"
        image.words[1:4] = address(given), address(self._rows), len(rows)

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
        given = [address(bindings[variable]) for variable in self._variables]
        self.go([*given, *(sizes[name] for name in self._image.sizes)])

    @property
    def sizes(self) -> Sequence[str]:
        """Names of the symbolic extents, in the order in which `go` wants their sizes."""
        return tuple(self._image.sizes)

    def go(self, given: Sequence[int]) -> None:
        """Run on the addresses of the state variables, in order; the caller holds their memory.

        Raises: as `run`.
        """
        if self._serves and self._lock.locked() and self._master == master():
            what = "a program is called by a feeder or receiver of its own"
            raise UnsupportedError(what, help="it would wait for itself", code="E320")
        words, crew, lock = self._words, self._crew, self._lock
        if not lock.acquire(False):
            if (other := self._idle()) is not None:
                other.go(given)
                return
            lock.acquire()
        try:
            if self._ending:
                self._end()
            self._pack(self._given, 0, *given)
            threads = pools.threads if crew.follows else crew.threads
            if threads > crew.threads:
                threads = self._widened(threads)
            if threads != 1 or words[_THREADS] != 1:
                pool = pools.get(threads)
                words[_POOL] = 0 if pool is None else pool.at
                words[_THREADS] = threads
            words[_PC] = 0
            words[_STOP] = 0
            if self._serves:
                self._serve()
                return
            while code := self._native(self._at):
                if code == Code.STOPPED:
                    self._end()
                    return
                if code == Code.HOST:
                    self._host()
                elif code != Code.AGAIN:
                    self._raise(code, [])
        finally:
            lock.release()

    def _idle(self) -> VirtualMachine | None:
        """Another machine of the program that does nothing; None where there may be none, or as
        many as processors are at work.
        """
        if self._alike is None or self._ending:
            return None
        with self._growing:
            for other in self._beside:
                if not other._lock.locked():
                    return other
            if len(self._beside) + 1 >= processors():
                return None
            self._beside.append(self._alike())
            return self._beside[-1]

    def _host(self) -> None:
        """Make the call of the host that the machine has come to, and go past it."""
        began, place = time.perf_counter_ns(), self._words[Word.PC]
        call, at = self._image.hosts[place]
        names, variables = named(call), (*call.sources, *call.targets)
        words = self._image.words[at : at + len(variables) + len(names)].tolist()
        sizes = dict(zip(names, words[len(variables) :], strict=True))
        pairs = zip(variables, words, strict=False)
        arrays = [array_at(word, box(v), v.dtype.numpy) for v, word in pairs]
        count = len(call.sources)
        made = arrays[count:] if call.writes else []
        results = call_host(call, arrays[:count], sizes, made)
        for target, array, result in zip(call.targets, arrays[count:], results, strict=True):
            if result is not array:
                shown(target, array, sizes)[...] = result
        self._words[Word.PC] = place + 1
        if self._clock is not None:
            self._clock.note("host", began)

    def _widened(self, threads: int) -> int:
        """As many threads as there is working memory for, or can be."""
        if self._crew.grows:
            self._widen(threads)
            self._crew = Crew(threads, True, True)
        return self._crew.threads

    def _widen(self, threads: int) -> None:
        """Working memory for more threads than the arena has it for: one piece for all launches."""
        shared = [(p, c) for p, c in self._image.launches.items() if c.tasks > 1]
        stride = max((-(-c.scratch // LINE) * LINE for _, c in shared), default=0)
        self._scratch = memory(stride * threads)
        words = self._image.words
        for place, _ in shared:
            start = (int(words[place * WIDTH + 2]) - address(words)) // 8
            words[start - 2 : start] = address(self._scratch), stride

    def forked(self) -> None:
        """A child: whoever ran this is not there."""
        self._lock, self._growing = threading.Lock(), threading.Lock()

    def ended(self) -> None:
        """Stop after the current step: code and memory are about to go."""
        self._ending = True
        self.stop()
        if self._lock.acquire(timeout=PATIENCE):
            self._lock.release()

    def _end(self) -> None:
        """What other threads than the first do at the end: nothing more."""
        if threading.current_thread() is not threading.main_thread():
            self._lock.release()
            threading.Event().wait()

    def _serve(self) -> None:
        """Run beside threads that feed and receive."""
        interrupted: list[BaseException] = []
        code: int = Code.STOPPED
        self._master = master()
        try:
            self._consumer.start()
            for producer in self._producers:
                producer.start()
            code = Code.AGAIN
        except KeyboardInterrupt as error:
            interrupted.append(error)
        while code == Code.AGAIN:
            try:
                code = self._native(self._at)
                if code == Code.HOST:
                    self._host()
                    code = Code.AGAIN
            except KeyboardInterrupt as error:
                interrupted.append(error)
                self.stop()
            except BaseException as error:  # SystemExit of a function of the user's, too
                interrupted.append(error)
                code = Code.STOPPED
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

    def _raise(self, code: int, interrupted: list[BaseException]) -> None:
        if code == Code.FEED_FAILED:
            self._feed_failed()
        if code == Code.BAD_INDEX:
            self._bad_index()
        if code == Code.CALL_FAILED:
            call, _ = self._image.hosts[self._words[_PC]]
            what = f"{call.name} by {call.library}: error {self._words[Word.RETURNED]}"
            raise BackendError(what, origin=call.origin, code="E616")
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
        if site < 0:
            raise DeviceError(f"{sites[-1]} fails: error {value}", code="E365")
        raise IndexRangeError.checked(value, sites[site])
