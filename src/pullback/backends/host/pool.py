"""The thread pool: native workers that claim the tasks of a launch.

Tasks are claimed by compare-exchange on (launch number, tasks left), so the caller never waits for
a worker that has not started. One pool serves a process, with as many workers as were ever asked
for; each run says how many of them take part. A second program that runs at the same time finds
the pool busy and runs its launches alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from pullback.backends.base import CompileStats, ObjectStore
from pullback.backends.host.engine import Symbols, compile_text
from pullback.backends.host.native import PoolByte
from pullback.backends.host.native_run import machine_text
from pullback.backends.host.processor import host_target, processor
from pullback.backends.host.system import (
    Array,
    address,
    function_table,
    join_thread,
    memory,
    own_waits,
    process,
    start_thread,
)
from pullback.config import default_threads
from pullback.errors import OptionError

SPIN = 2000  # pauses before a worker sleeps: about 50 us, more than the gap between two launches


@dataclass(frozen=True, eq=False)
class Natives:
    """Entry points of the compiled machine."""

    run: Callable[[int], int]
    close: Callable[[int], None]
    take: Callable[[int, int, int], int]
    give: Callable[[int, int], None]
    worker: int
    rows: int
    table: Array
    code: Symbols


class Loader:
    """Compiles the machine, or loads it from a store, in a thread beside the first passes: it takes
    as long as a small program, and Python's lock is not held meanwhile.
    """

    def __init__(self) -> None:
        self._natives: Natives | None = None
        self._begun: Future[Natives] | None = None
        self._stats = CompileStats()
        self._lock = threading.Lock()
        process.tell(self)

    def begin(self, store: ObjectStore | None = None) -> Future[Natives]:
        """The machine will be needed: import LLVM and compile it."""
        with self._lock:
            if self._begun is None:
                beside = ThreadPoolExecutor(1, "pullback-machine")
                self._begun = beside.submit(_load, store, self._stats)
                beside.shutdown(wait=False)
            return self._begun

    def get(self, store: ObjectStore | None = None, stats: CompileStats | None = None) -> Natives:
        """The machine of this process; who waits for it first has its `stats`."""
        if self._natives is not None:
            return self._natives
        begun = self.begin(store)
        try:
            self._natives = begun.result()
        except BaseException:
            self._begun = None
            raise
        if stats is not None:
            stats.add(self._stats)
        return self._natives

    def forked(self) -> None:
        """A child lacks the thread that compiles."""
        self._lock = threading.Lock()
        if self._natives is None:
            self._begun = None

    def ended(self) -> None:
        """The thread ends by itself."""


def _load(store: ObjectStore | None, stats: CompileStats) -> Natives:
    # What the passes ask of LLVM first: while it compiles, it answers nobody.
    processor(host_target())
    system = own_waits()
    symbols = compile_text(machine_text(system), store, stats)
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    run = ctypes.CFUNCTYPE(word, pointer)(symbols["pb_run"])
    close = ctypes.CFUNCTYPE(None, pointer)(symbols["pb_close"])
    take = ctypes.CFUNCTYPE(word, pointer, pointer, word)(symbols["pb_take"])
    give = ctypes.CFUNCTYPE(None, pointer, pointer)(symbols["pb_give"])
    table = function_table(system.functions)
    return Natives(run, close, take, give, symbols["pb_worker"], symbols["pb_rows"], table, symbols)


loader = Loader()


class Pool:
    """`threads - 1` workers, started at once. They end with the pool."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process = os.getpid()
        code = loader.get()
        self._memory = memory(PoolByte.SIZE)
        self.at = address(self._memory)
        numbers = self._memory.view(np.int32)
        numbers[PoolByte.THREADS // 4] = threads
        numbers[PoolByte.SPIN // 4] = SPIN
        self._memory.view(np.int64)[PoolByte.TABLE // 8] = address(code.table)
        self._workers = np.zeros((threads, 2), np.int64)
        self._workers[:, 0] = self.at
        self._workers[:, 1] = np.arange(threads)
        where = address(self._workers)
        handles = [start_thread(code.worker, where + 16 * n) for n in range(1, threads)]
        keep = (self._memory, self._workers, code)
        weakref.finalize(self, _close, self.process, self.at, handles, keep)


def _close(process: int, at: int, handles: list[int], keep: tuple[Array, Array, Natives]) -> None:
    """End the workers before their code goes away. A forked child has none."""
    if os.getpid() != process:
        return
    keep[2].close(at)
    for handle in handles:
        join_thread(handle)


class Pools:
    """The pool of this process, made when it is first needed, and how many threads programs use."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self.threads = 0  # 0: nobody has asked yet
        process.tell(self)

    def known(self) -> int:
        """How many threads a program runs on that does not say so itself."""
        if self.threads == 0:
            self.threads = default_threads()
        return self.threads

    def get(self, threads: int) -> Pool | None:
        """A pool of at least `threads` threads; None where one thread is enough."""
        if threads < 2:
            return None
        pool = self._pool
        if pool is None or pool.threads < threads:
            with self._lock:
                pool = self._pool
                if pool is None or pool.threads < threads:
                    pool = self._pool = Pool(threads)
        return pool

    def forked(self) -> None:
        """A child has none of the workers."""
        self._pool = None
        self._lock = threading.Lock()

    def ended(self) -> None:
        """Pools end by themselves."""


pools = Pools()


def set_num_threads(threads: int) -> None:
    """Run programs on so many threads from now on, the caller's included, compiled ones too.

    Results do not change by a bit. Programs with a number of their own (`Options.threads`) keep
    it; those with a memory budget use no more threads than they were compiled for.

    Raises: OptionError for less than one.

    Example:
        >>> pb.set_num_threads(pb.get_num_threads())
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        what = f"set_num_threads({threads!r}): a whole number from 1 on is needed"
        raise OptionError(what, help="the caller is one of the threads", code="E523")
    pools.threads = threads


def get_num_threads() -> int:
    """How many threads programs run on: `set_num_threads`, PULLBACK_THREADS, or all processors.

    Example:
        >>> pb.get_num_threads() >= 1
        True
    """
    return pools.known()
