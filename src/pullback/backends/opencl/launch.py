"""Launches without Python: a function by the code ABI for each routine, which enqueues its kernels.

Words of a routine's record: lock, functions of the runtime, queue, place of the error's address in
the block, function {body}, function {finish} or 0. Words of a function: kernel, work-items, number
of arguments, then for each {what, place in the block}.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pullback.backends.base import ObjectStore
from pullback.backends.host.engine import Symbols, compile_text
from pullback.backends.host.native_run import READS

POINTER, NUMBER, SCRATCH = range(3)  # what an argument is
FAILED = -1  # the site of a launch that the device refuses; the value is OpenCL's error
STUBS = 32  # routines of one text, which is compiled once and kept

_TEXT = r"""
; Pass the arguments and enqueue one kernel: the errors of all calls, or-ed.
define internal i32 @enqueue(ptr %api, ptr %queue, ptr %own, ptr %block, ptr %scratch) nounwind {
entry:
  %share = call ptr @pointer(ptr %api, i64 1)
  %set = call ptr @pointer(ptr %api, i64 2)
  %start = call ptr @pointer(ptr %api, i64 3)
  %kernel = call ptr @pointer(ptr %own, i64 0)
  %count = call i64 @word(ptr %own, i64 2)
  %list = getelementptr i64, ptr %own, i64 3
  br label %test
test:
  %n = phi i64 [ 0, %entry ], [ %n1, %next ]
  %bad = phi i32 [ 0, %entry ], [ %bad1, %next ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %do, label %go
do:
  %n2 = shl i64 %n, 1
  %row = getelementptr i64, ptr %list, i64 %n2
  %what = call i64 @word(ptr %row, i64 0)
  %place = call i64 @word(ptr %row, i64 1)
  %at = getelementptr i64, ptr %block, i64 %place
  %k = trunc i64 %n to i32
  switch i64 %what, label %memory [ i64 1, label %number i64 2, label %working ]
memory:
  %where = load ptr, ptr %at
  %r0 = call i32 %share(ptr %kernel, i32 %k, ptr %where)
  br label %next
number:
  %r1 = call i32 %set(ptr %kernel, i32 %k, i64 8, ptr %at)
  br label %next
working:
  %r2 = call i32 %share(ptr %kernel, i32 %k, ptr %scratch)
  br label %next
next:
  %r = phi i32 [ %r0, %memory ], [ %r1, %number ], [ %r2, %working ]
  %bad1 = or i32 %bad, %r
  %n1 = add i64 %n, 1
  br label %test
go:
  %items = getelementptr i64, ptr %own, i64 1
  %r3 = call i32 %start(ptr %queue, ptr %kernel, i32 1, ptr null, ptr %items, ptr @one, i32 0,
    ptr null, ptr null)
  %all = or i32 %bad, %r3
  ret i32 %all
}

@one = internal constant i64 1

define internal void @launch(ptr %record, ptr %block, ptr %scratch) nounwind {
entry:
  %api = call ptr @pointer(ptr %record, i64 1)
  %queue = call ptr @pointer(ptr %record, i64 2)
  %body = call ptr @pointer(ptr %record, i64 4)
  %finish = call ptr @pointer(ptr %record, i64 5)
  %finishes = icmp ne ptr %finish, null
  %lives = call i64 @word(ptr %api, i64 0)
  %dead = icmp eq i64 %lives, 0
  br i1 %dead, label %failed, label %spin
spin:
  %taken = cmpxchg ptr %record, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %first, label %spin
first:
  %e0 = call i32 @enqueue(ptr %api, ptr %queue, ptr %body, ptr %block, ptr %scratch)
  br i1 %finishes, label %second, label %free
second:
  %e1 = call i32 @enqueue(ptr %api, ptr %queue, ptr %finish, ptr %block, ptr %scratch)
  br label %free
free:
  %e2 = phi i32 [ 0, %first ], [ %e1, %second ]
  store atomic i64 0, ptr %record release, align 8
  %wait = call ptr @pointer(ptr %api, i64 4)
  %e3 = call i32 %wait(ptr %queue)
  %e4 = or i32 %e0, %e2
  %e5 = or i32 %e4, %e3
  %good = icmp eq i32 %e5, 0
  br i1 %good, label %done, label %failed
failed:
  %status = phi i32 [ 0, %entry ], [ %e5, %free ]
  %value = sext i32 %status to i64
  %place = call i64 @word(ptr %record, i64 3)
  %error = call ptr @pointer(ptr %block, i64 %place)
  %site = getelementptr i64, ptr %error, i64 1
  %told = getelementptr i64, ptr %error, i64 2
  store i64 1, ptr %error
  store i64 -1, ptr %site
  store i64 %value, ptr %told
  br label %done
done:
  ret void
}
"""

_STUB = """
define void @stub_{n}(ptr %block, i64 %task, ptr %scratch) nounwind {{
  %at = getelementptr ptr, ptr @records, i64 {n}
  %record = load ptr, ptr %at
  call void @launch(ptr %record, ptr %block, ptr %scratch)
  ret void
}}
"""


def text() -> str:
    """The launches of `STUBS` routines, whose records the table `records` names."""
    table = f"@records = global [{STUBS} x ptr] zeroinitializer\n"
    return table + READS + _TEXT + "".join(_STUB.format(n=n) for n in range(STUBS))


class Stubs:
    """Functions by the code ABI for the launches of some records, and what keeps them alive."""

    def __init__(self, store: ObjectStore | None) -> None:
        self._store = store
        self._texts: list[Symbols] = []
        self._kept: list[np.ndarray[Any, Any]] = []
        self._count = 0

    def function(self, record: np.ndarray[Any, Any], *functions: np.ndarray[Any, Any]) -> int:
        """The address of the launch of a record, of which `functions` are parts."""
        number = self._count % STUBS
        if number == 0:
            self._texts.append(compile_text(text(), self._store))
        symbols = self._texts[-1]
        table = symbols.engine.address("records")
        (ctypes.c_int64 * STUBS).from_address(table)[number] = record.ctypes.data
        self._kept += [record, *functions]
        self._count += 1
        return symbols[f"stub_{number}"]
