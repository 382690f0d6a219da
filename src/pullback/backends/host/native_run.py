"""The machine as LLVM IR text; see `native` for its instructions and the layout of its memory."""

from __future__ import annotations

from pullback.backends.host.native_pool import POOL
from pullback.backends.host.native_waits import Waits

# Words of memory, as other native texts read them too.
READS = r"""
define internal i64 @word(ptr %p, i64 %n) alwaysinline {
  %at = getelementptr i64, ptr %p, i64 %n
  %v = load i64, ptr %at
  ret i64 %v
}

define internal ptr @pointer(ptr %p, i64 %n) alwaysinline {
  %at = getelementptr i64, ptr %p, i64 %n
  %v = load ptr, ptr %at
  ret ptr %v
}
"""

_RUN = r"""
define internal void @put(ptr %p, i64 %n, i64 %v) alwaysinline {
  %at = getelementptr i64, ptr %p, i64 %n
  store i64 %v, ptr %at
  ret void
}

define internal void @bump(ptr %p, i64 %n, i64 %by) alwaysinline {
  %at = getelementptr i64, ptr %p, i64 %n
  %v = load i64, ptr %at
  %w = add i64 %v, %by
  store i64 %w, ptr %at
  ret void
}

; Copy the parts of a ring between buffers and slot `slot`; `out`: from the buffers.
define internal void @parts(ptr %table, ptr %ring, ptr %slot, i1 %out) nounwind {
entry:
  %n = call i64 @word(ptr %ring, i64 6)
  %list = call ptr @pointer(ptr %ring, i64 7)
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i1, %do ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %do, label %end
do:
  %i3 = mul i64 %i, 3
  %row = getelementptr i64, ptr %list, i64 %i3
  %buffer = call ptr @pointer(ptr %row, i64 0)
  %off = call i64 @word(ptr %row, i64 1)
  %size = call i64 @word(ptr %row, i64 2)
  %place = getelementptr i8, ptr %slot, i64 %off
  %to = select i1 %out, ptr %place, ptr %buffer
  %from = select i1 %out, ptr %buffer, ptr %place
  call void @copy(ptr %table, ptr %to, ptr %from, i64 %size)
  %i1 = add i64 %i, 1
  br label %test
end:
  ret void
}

define internal ptr @slot(ptr %ring) alwaysinline {
  %head = call i64 @word(ptr %ring, i64 2)
  %depth = call i64 @word(ptr %ring, i64 3)
  %place = urem i64 %head, %depth
  %stride = call i64 @word(ptr %ring, i64 5)
  %base = call ptr @pointer(ptr %ring, i64 4)
  %off = mul i64 %place, %stride
  %p = getelementptr i8, ptr %base, i64 %off
  ret ptr %p
}

; 0: a batch was copied in; 1: no more; 2: the callback failed; 3: not yet.
define internal i64 @feed(ptr %table, ptr %ring) nounwind {
entry:
  %filled = call ptr @pointer(ptr %ring, i64 0)
  %free = call ptr @pointer(ptr %ring, i64 1)
  %demand = call i64 @word(ptr %ring, i64 9)
  %asked = call i64 @word(ptr %ring, i64 13)
  %lazy = icmp ne i64 %demand, 0
  %fresh = icmp eq i64 %asked, 0
  %ask = and i1 %lazy, %fresh
  br i1 %ask, label %request, label %wait
request:
  call void @put(ptr %ring, i64 13, i64 1)
  call void @give(ptr %table, ptr %free)
  br label %wait
wait:
  %ok = call i1 @take(ptr %table, ptr %filled, i64 20000000)
  br i1 %ok, label %look, label %late
late:
  ret i64 3
look:
  %head = call i64 @word(ptr %ring, i64 2)
  %depth = call i64 @word(ptr %ring, i64 3)
  %place = urem i64 %head, %depth
  %statuses = call ptr @pointer(ptr %ring, i64 8)
  %status = call i64 @word(ptr %statuses, i64 %place)
  %data = icmp eq i64 %status, 0
  br i1 %data, label %copy, label %taken
copy:
  %slot = call ptr @slot(ptr %ring)
  call void @parts(ptr %table, ptr %ring, ptr %slot, i1 false)
  br label %taken
taken:
  call void @put(ptr %ring, i64 13, i64 0)
  call void @bump(ptr %ring, i64 2, i64 1)
  br i1 %lazy, label %done, label %release
release:
  call void @give(ptr %table, ptr %free)
  br label %done
done:
  ret i64 %status
}

; False: the queue is full, come back.
define internal i1 @receive(ptr %state, ptr %table, ptr %ring) nounwind {
entry:
  %reached = call i64 @word(ptr %ring, i64 11)
  %every = call i64 @word(ptr %ring, i64 10)
  %next = add i64 %reached, 1
  %rest = urem i64 %next, %every
  %due = icmp eq i64 %rest, 0
  br i1 %due, label %wait, label %done
wait:
  %free = call ptr @pointer(ptr %ring, i64 1)
  %ok = call i1 @take(ptr %table, ptr %free, i64 20000000)
  br i1 %ok, label %copy, label %full
full:
  ret i1 false
copy:
  %slot = call ptr @slot(ptr %ring)
  call void @parts(ptr %table, ptr %ring, ptr %slot, i1 true)
  call void @bump(ptr %ring, i64 2, i64 1)
  %events = call ptr @pointer(ptr %state, i64 11)
  %head = call i64 @word(ptr %state, i64 12)
  %size = call i64 @word(ptr %state, i64 13)
  %place = urem i64 %head, %size
  %number = call i64 @word(ptr %ring, i64 12)
  call void @put(ptr %events, i64 %place, i64 %number)
  call void @bump(ptr %state, i64 12, i64 1)
  %sem = call ptr @pointer(ptr %state, i64 14)
  call void @give(ptr %table, ptr %sem)
  br label %done
done:
  call void @put(ptr %ring, i64 11, i64 %next)
  ret i1 true
}

; One task of a launch of several routines: block[task] and block[task + 1] bound its rows
; {body, block, task}.
define void @pb_rows(ptr %block, i64 %task, ptr %scratch) nounwind {
entry:
  %first = call ptr @pointer(ptr %block, i64 %task)
  %after = add i64 %task, 1
  %end = call ptr @pointer(ptr %block, i64 %after)
  br label %test
test:
  %row = phi ptr [ %first, %entry ], [ %next, %do ]
  %more = icmp ult ptr %row, %end
  br i1 %more, label %do, label %out
do:
  %body = call ptr @pointer(ptr %row, i64 0)
  %own = call ptr @pointer(ptr %row, i64 1)
  %number = call i64 @word(ptr %row, i64 2)
  call void %body(ptr %own, i64 %number, ptr %scratch)
  %next = getelementptr i64, ptr %row, i64 3
  br label %test
out:
  ret void
}

; Add a launch that began at `start` to its clock, and to the log while that has room.
define internal void @timed(ptr %state, ptr %clock, i64 %pc, i64 %start) nounwind {
entry:
  %table = call ptr @pointer(ptr %state, i64 15)
  %end = call i64 @now(ptr %table)
  %spent = sub i64 %end, %start
  call void @bump(ptr %clock, i64 0, i64 %spent)
  call void @bump(ptr %clock, i64 1, i64 1)
  %n = call i64 @word(ptr %state, i64 20)
  %size = call i64 @word(ptr %state, i64 21)
  %room = icmp slt i64 %n, %size
  br i1 %room, label %log, label %done
log:
  %rows = call ptr @pointer(ptr %state, i64 19)
  %n3 = mul i64 %n, 3
  %row = getelementptr i64, ptr %rows, i64 %n3
  call void @put(ptr %row, i64 0, i64 %pc)
  call void @put(ptr %row, i64 1, i64 %start)
  call void @put(ptr %row, i64 2, i64 %end)
  call void @bump(ptr %state, i64 20, i64 1)
  br label %done
done:
  ret void
}

define i64 @pb_run(ptr %state) nounwind {
entry:
  %table = call ptr @pointer(ptr %state, i64 15)
  %code = call ptr @pointer(ptr %state, i64 2)
  %pool = call ptr @pointer(ptr %state, i64 3)
  %threads = call i64 @word(ptr %state, i64 4)
  %alone = icmp slt i64 %threads, 2
  %t0 = call i64 @now(ptr %table)
  %slice = call i64 @word(ptr %state, i64 9)
  %deadline = add i64 %t0, %slice
  %pc0 = call i64 @word(ptr %state, i64 0)
  br label %fetch
fetch:
  %pc = phi i64 [ %pc0, %entry ], [ %goto, %go ]
  %pcw = shl i64 %pc, 3
  %at = getelementptr i64, ptr %code, i64 %pcw
  %op = load i64, ptr %at
  %a = call i64 @word(ptr %at, i64 1)
  %b = call i64 @word(ptr %at, i64 2)
  %c = call i64 @word(ptr %at, i64 3)
  %ap = inttoptr i64 %a to ptr
  %bp = inttoptr i64 %b to ptr
  %cp = inttoptr i64 %c to ptr
  %next = add i64 %pc, 1
  switch i64 %op, label %end [
    i64 0, label %launch
    i64 1, label %set
    i64 2, label %test
    i64 3, label %jump
    i64 4, label %branch
    i64 5, label %feeds
    i64 6, label %receives
    i64 7, label %step
    i64 8, label %copy
    i64 10, label %begin
    i64 11, label %hosts
    i64 12, label %call
  ]
go:
  %goto = phi i64 [ %next, %launched ], [ %next, %set ], [ %c, %test ], [ %next, %enter ],
    [ %a, %jump ], [ %chosen, %branch ], [ %next, %fed ], [ %b, %ended ], [ %next, %received ],
    [ %next, %stepped ], [ %next, %copy ], [ %next, %begun ], [ %next, %call ]
  br label %fetch

launch:
  %clock = call ptr @pointer(ptr %at, i64 7)
  %timed = icmp ne ptr %clock, null
  br i1 %timed, label %watch, label %dispatch
watch:
  %began = call i64 @now(ptr %table)
  br label %dispatch
dispatch:
  %since = phi i64 [ 0, %launch ], [ %began, %watch ]
  %finish = call ptr @pointer(ptr %at, i64 4)
  %bytes = call i64 @word(ptr %at, i64 5)
  call void @bump(ptr %state, i64 6, i64 1)
  call void @bump(ptr %state, i64 8, i64 %bytes)
  %scratch = call ptr @pointer(ptr %bp, i64 -2)
  %stride = call i64 @word(ptr %bp, i64 -1)
  %few = icmp slt i64 %c, 2
  %solo = or i1 %few, %alone
  br i1 %solo, label %one, label %many
one:
  call void @serial(ptr %ap, ptr %bp, i64 %c, ptr %scratch)
  br label %ran
many:
  %shared = call i1 @parallel(
    ptr %pool, ptr %ap, ptr %bp, i64 %c, ptr %scratch, i64 %stride, i64 %threads)
  %barrier = zext i1 %shared to i64
  call void @bump(ptr %state, i64 7, i64 %barrier)
  br i1 %shared, label %ran, label %one
ran:
  %last = icmp eq ptr %finish, null
  br i1 %last, label %look, label %tail
tail:
  call void %finish(ptr %bp, i64 0, ptr %scratch)
  br label %look
look:
  br i1 %timed, label %stamp, label %stamped
stamp:
  call void @timed(ptr %state, ptr %clock, i64 %pc, i64 %since)
  br label %stamped
stamped:
  %checks = call i64 @word(ptr %at, i64 6)
  %unchecked = icmp eq i64 %checks, 0
  br i1 %unchecked, label %launched, label %check
check:
  %bad = call i64 @word(ptr %state, i64 16)
  %good = icmp eq i64 %bad, 0
  br i1 %good, label %launched, label %wrong
wrong:
  call void @put(ptr %state, i64 0, i64 %pc)
  ret i64 4
launched:
  br label %go

set:
  store i64 %b, ptr %ap
  br label %go

test:
  %turn = load i64, ptr %ap
  %more = icmp slt i64 %turn, %b
  br i1 %more, label %enter, label %go
enter:
  %counter = call ptr @pointer(ptr %at, i64 4)
  %start = call i64 @word(ptr %at, i64 5)
  %by = call i64 @word(ptr %at, i64 6)
  %far = mul i64 %turn, %by
  %place = add i64 %start, %far
  store i64 %place, ptr %counter
  %turn1 = add i64 %turn, 1
  store i64 %turn1, ptr %ap
  br label %go

jump:
  br label %go

branch:
  %truth = load i8, ptr %ap
  %holds = icmp ne i8 %truth, 0
  %chosen = select i1 %holds, i64 %next, i64 %b
  br label %go

feeds:
  %halt = call i64 @word(ptr %state, i64 1)
  %going = icmp eq i64 %halt, 0
  %within = icmp eq i64 %c, 0
  %on = or i1 %going, %within
  br i1 %on, label %take, label %stop
take:
  %status = call i64 @feed(ptr %table, ptr %ap)
  switch i64 %status, label %again [
    i64 0, label %fed
    i64 1, label %ended
    i64 2, label %failed
  ]
fed:
  br label %go
ended:
  br label %go
failed:
  %which = call i64 @word(ptr %ap, i64 12)
  call void @put(ptr %state, i64 10, i64 %which)
  ret i64 3

receives:
  %room = call i1 @receive(ptr %state, ptr %table, ptr %ap)
  br i1 %room, label %received, label %again
received:
  br label %go

step:
  %flagp = getelementptr i64, ptr %state, i64 1
  %flag = load atomic i64, ptr %flagp monotonic, align 8
  %flagged = icmp ne i64 %flag, 0
  br i1 %flagged, label %stop, label %late
late:
  %t = call i64 @now(ptr %table)
  %over = icmp sgt i64 %t, %deadline
  br i1 %over, label %pause, label %stepped
pause:
  call void @put(ptr %state, i64 0, i64 %next)
  ret i64 1
stepped:
  br label %go

copy:
  call void @copy(ptr %table, ptr %ap, ptr %bp, i64 %c)
  br label %go

; Clear what counts, and pass on the addresses that this run was given.
begin:
  call void @put(ptr %state, i64 6, i64 0)
  call void @put(ptr %state, i64 7, i64 0)
  call void @put(ptr %state, i64 8, i64 0)
  call void @put(ptr %state, i64 12, i64 0)
  call void @put(ptr %state, i64 16, i64 0)
  br label %given
given:
  %n = phi i64 [ 0, %begin ], [ %n1, %pass ]
  %left = icmp slt i64 %n, %c
  br i1 %left, label %pass, label %begun
pass:
  %n2 = shl i64 %n, 1
  %row = getelementptr i64, ptr %bp, i64 %n2
  %number = call i64 @word(ptr %row, i64 0)
  %where = call ptr @pointer(ptr %row, i64 1)
  %value = call i64 @word(ptr %ap, i64 %number)
  store i64 %value, ptr %where
  %n1 = add i64 %n, 1
  br label %given
begun:
  br label %go

again:
  call void @put(ptr %state, i64 0, i64 %pc)
  ret i64 1
hosts:
  call void @put(ptr %state, i64 0, i64 %pc)
  ret i64 5

; A C function of up to 8 words: what it does not take, it does not look at.
call:
  %w0 = call i64 @word(ptr %bp, i64 0)
  %w1 = call i64 @word(ptr %bp, i64 1)
  %w2 = call i64 @word(ptr %bp, i64 2)
  %w3 = call i64 @word(ptr %bp, i64 3)
  %w4 = call i64 @word(ptr %bp, i64 4)
  %w5 = call i64 @word(ptr %bp, i64 5)
  %w6 = call i64 @word(ptr %bp, i64 6)
  %w7 = call i64 @word(ptr %bp, i64 7)
  %returned = call i32 %ap(
    i64 %w0, i64 %w1, i64 %w2, i64 %w3, i64 %w4, i64 %w5, i64 %w6, i64 %w7)
  %fine = icmp eq i32 %returned, 0
  br i1 %fine, label %go, label %broken
broken:
  %reason = sext i32 %returned to i64
  call void @put(ptr %state, i64 5, i64 %reason)
  call void @put(ptr %state, i64 0, i64 %pc)
  ret i64 6
stop:
  call void @put(ptr %state, i64 0, i64 %pc)
  ret i64 2
end:
  ret i64 0
}
"""


def machine_text(waits: Waits) -> str:
    """The machine and its pool for a system."""
    return waits.text + POOL + READS + _RUN
