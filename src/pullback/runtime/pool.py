"""The thread pool: native workers that claim the tasks of a launch.

Tasks are claimed by compare-exchange on (launch number, tasks left), so the caller never waits for
a worker that has not started. One pool serves a process; a second program that runs at the same
time finds it busy and runs its launches alone.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pullback.backends.llvm.jit import CompileStats, ObjectStore, Symbols, compile_text
from pullback.runtime.native import PoolByte
from pullback.runtime.native_run import TEXT
from pullback.runtime.system import (
    Array,
    address,
    function_table,
    join_thread,
    memory,
    start_thread,
)

SPIN = 2000  # pauses before a worker sleeps: about 50 us, more than the gap between two launches


@dataclass(frozen=True, eq=False)
class Natives:
    """Entry points of the compiled machine."""

    run: Callable[[int], int]
    close: Callable[[int], None]
    worker: int
    rows: int
    table: Array
    code: Symbols


class Loader:
    """Compiles the machine, or loads it from a store, when it is first needed."""

    def __init__(self) -> None:
        self._natives: Natives | None = None

    def get(self, store: ObjectStore | None = None, stats: CompileStats | None = None) -> Natives:
        """The machine of this process."""
        if self._natives is None:
            self._natives = _load(store, stats)
        return self._natives


def _load(store: ObjectStore | None, stats: CompileStats | None) -> Natives:
    found = compile_text(TEXT, store, stats)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(found["pb_run"])
    close = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found["pb_close"])
    return Natives(run, close, found["pb_worker"], found["pb_rows"], function_table(), found)


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
    """The pool of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    def get(self, threads: int) -> Pool | None:
        """A pool of `threads` threads; None where one thread is enough."""
        if threads < 2:
            return None
        pool = self._pool
        if pool is None or pool.process != os.getpid() or pool.threads != threads:
            pool = self._pool = Pool(threads)
        return pool


pools = Pools()
