"""The thread pool: every task of every launch runs once, whoever comes late."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from pullback.backends.host.engine import compile_text
from pullback.backends.host.native_pool import POOL
from pullback.backends.host.pool import Pool
from pullback.backends.host.system import address, own_waits

LONG, SHORT = 7, 2  # tasks

STRESS = r"""
define internal void @count(ptr %counters, i64 %task, ptr %scratch) {
  %at = getelementptr i64, ptr %counters, i64 %task
  %old = atomicrmw add ptr %at, i64 1 monotonic
  ret void
}

; Launches of LONG and SHORT tasks in turn, each with counters of its own. The rounds not refused.
define i64 @stress(ptr %pool, ptr %long, ptr %short, i64 %rounds) {
entry:
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i1, %do ]
  %done = phi i64 [ 0, %entry ], [ %done1, %do ]
  %more = icmp slt i64 %i, %rounds
  br i1 %more, label %do, label %out
do:
  %a = call i1 @parallel(ptr %pool, ptr @count, ptr %short, i64 SHORT, ptr null, i64 0, i64 THREADS)
  %b = call i1 @parallel(ptr %pool, ptr @count, ptr %long, i64 LONG, ptr null, i64 0, i64 THREADS)
  %ok = and i1 %a, %b
  %won = zext i1 %ok to i64
  %done1 = add i64 %done, %won
  %i1 = add i64 %i, 1
  br label %test
out:
  ret i64 %done
}
"""


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_no_task_is_lost_or_run_twice(threads: int) -> None:
    rounds = 60_000
    text = (
        own_waits().text
        + POOL
        + STRESS.replace("LONG", str(LONG))
        .replace("SHORT", str(SHORT))
        .replace("THREADS", str(threads))
    )
    code = compile_text(text)
    stress = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int64)(
        code["stress"]
    )
    pool = Pool(threads)
    long, short = np.zeros(LONG, np.int64), np.zeros(SHORT, np.int64)
    done: list[int] = []
    runner = threading.Thread(
        target=lambda: done.append(stress(pool.at, address(long), address(short), rounds)),
        daemon=True,
    )
    runner.start()
    runner.join(100)
    assert not runner.is_alive(), "a launch waits for a task that nobody runs"
    assert done == [rounds]
    assert long.tolist() == [rounds] * LONG
    assert short.tolist() == [rounds] * SHORT


def test_only_invited_workers_take_tasks() -> None:
    """Of a pool of five, launches for two: the scratch of the others is not there."""
    text = own_waits().text + POOL + WHO
    code = compile_text(text)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)(code["who"])
    pool = Pool(5)
    scratch = np.arange(5, dtype=np.int64)
    counts = np.zeros(5, np.int64)
    for _ in range(300):
        assert run(pool.at, address(counts), address(scratch)) == 1
    assert counts.sum() == 300 * 64 and counts[2:].sum() == 0


WHO = r"""
define internal void @note(ptr %counts, i64 %task, ptr %scratch) {
entry:
  br label %pause
pause:
  %i = phi i64 [ 0, %entry ], [ %i1, %pause ]
  call void @relax()
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, 200
  br i1 %more, label %pause, label %done
done:
  %number = load i64, ptr %scratch
  %at = getelementptr i64, ptr %counts, i64 %number
  %old = atomicrmw add ptr %at, i64 1 monotonic
  ret void
}

define i64 @who(ptr %pool, ptr %counts, ptr %scratch) {
  %ok = call i1 @parallel(ptr %pool, ptr @note, ptr %counts, i64 64, ptr %scratch, i64 8, i64 2)
  %found = zext i1 %ok to i64
  ret i64 %found
}
"""


CHILD = """
import os, signal, time
from pullback.backends.host import pool
load, begun = pool._load, []
def slow(*args):
    begun.append(1)
    time.sleep(0.5)
    return load(*args)
pool._load = slow
pool.loader.begin()
while not begun: time.sleep(0.01)
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(int(pool.loader.get().rows == 0))
assert os.waitpid(child, 0)[1] == 0
assert pool.loader.get() is pool.loader.get() and len(begun) == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_compiles_its_own_machine() -> None:
    """The thread that does it for the parent is not there."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], check=True, timeout=60)
