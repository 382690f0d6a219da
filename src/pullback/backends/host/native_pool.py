"""The thread pool as LLVM IR text; see `native` for the layout of its memory.

The first word is (launch number, tasks left): a claim takes one from what is left, so no claim can
succeed between two launches, whatever of the next one a late worker has already read.
"""

from __future__ import annotations

SERIAL = r"""; All tasks of a launch in this thread.
define internal void @serial(ptr %body, ptr %block, i64 %n, ptr %scratch) nounwind {
entry:
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i1, %do ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %do, label %out
do:
  call void %body(ptr %block, i64 %i, ptr %scratch)
  %i1 = add i64 %i, 1
  br label %test
out:
  ret void
}
"""
POOL = (
    r"""
; One worker: {pool, number}. It spins for a while, then sleeps on the epoch.
define ptr @pb_worker(ptr %self) nounwind {
entry:
  %pool = load ptr, ptr %self
  %np = getelementptr i64, ptr %self, i64 1
  %number = load i64, ptr %np
  %epochp = getelementptr i8, ptr %pool, i64 4
  %donep = getelementptr i8, ptr %pool, i64 128
  %sleepp = getelementptr i8, ptr %pool, i64 256
  %bodyp = getelementptr i8, ptr %pool, i64 384
  %blockp = getelementptr i8, ptr %pool, i64 392
  %tasksp = getelementptr i8, ptr %pool, i64 400
  %scratchp = getelementptr i8, ptr %pool, i64 408
  %stridep = getelementptr i8, ptr %pool, i64 416
  %limitp = getelementptr i8, ptr %pool, i64 424
  %spinp = getelementptr i8, ptr %pool, i64 644
  %exitp = getelementptr i8, ptr %pool, i64 648
  %tablep = getelementptr i8, ptr %pool, i64 656
  %table = load ptr, ptr %tablep
  br label %outer
outer:
  %last = phi i64 [ 0, %entry ], [ %e, %finish ]
  %last32 = trunc i64 %last to i32
  br label %spin
spin:
  %c = phi i32 [ 0, %outer ], [ %c1, %spin1 ], [ %c1, %relax ], [ 0, %sleep ]
  %tk = load atomic i64, ptr %pool acquire, align 8
  %e = lshr i64 %tk, 32
  %new = icmp ne i64 %e, %last
  br i1 %new, label %work, label %spin0
spin0:
  call void @relax()
  %c1 = add i32 %c, 1
  %limit = load i32, ptr %spinp
  %more = icmp slt i32 %c1, %limit
  br i1 %more, label %spin1, label %sleep
spin1:
  %low = and i32 %c1, 255
  %rest = icmp eq i32 %low, 0
  br i1 %rest, label %relax, label %spin
relax:
  call void @yield(ptr %table)
  br label %spin
sleep:
  %s0 = atomicrmw add ptr %sleepp, i32 1 seq_cst
  call void @wait(ptr %table, ptr %epochp, i32 %last32, i64 -1)
  %s1 = atomicrmw sub ptr %sleepp, i32 1 seq_cst
  br label %spin
work:
  %quit = load atomic i32, ptr %exitp acquire, align 4
  %leave = icmp ne i32 %quit, 0
  br i1 %leave, label %out, label %job
job:
  ; These may be torn by the next launch; then the claim below fails: the next launch is written
  ; only when nothing is left of this one, and from then on the epoch differs.
  %body = load ptr, ptr %bodyp
  %block = load ptr, ptr %blockp
  %n = load i64, ptr %tasksp
  %base = load ptr, ptr %scratchp
  %stride = load i64, ptr %stridep
  %off = mul i64 %number, %stride
  %scratch = getelementptr i8, ptr %base, i64 %off
  %threads = load i64, ptr %limitp
  %invited = icmp slt i64 %number, %threads
  br i1 %invited, label %claim, label %finish
claim:
  %cur = phi i64 [ %tk, %job ], [ %cur2, %ran ], [ %old, %retry ]
  %ce = lshr i64 %cur, 32
  %same = icmp eq i64 %ce, %e
  %left = and i64 %cur, 4294967295
  %has = icmp ne i64 %left, 0
  %ok = and i1 %same, %has
  br i1 %ok, label %try, label %finish
try:
  %next = sub i64 %cur, 1
  %cx = cmpxchg ptr %pool, i64 %cur, i64 %next acq_rel acquire
  %old = extractvalue { i64, i1 } %cx, 0
  %won = extractvalue { i64, i1 } %cx, 1
  br i1 %won, label %exec, label %retry
retry:
  br label %claim
exec:
  %idx = sub i64 %n, %left
  call void %body(ptr %block, i64 %idx, ptr %scratch)
  %d = atomicrmw add ptr %donep, i32 1 release
  br label %ran
ran:
  %cur2 = load atomic i64, ptr %pool acquire, align 8
  br label %claim
finish:
  br label %outer
out:
  ret ptr null
}

"""
    + SERIAL
    + r"""
; All tasks of a launch, shared with whoever is awake of the first `limit` threads. False: the pool
; is used by another thread.
define internal i1 @parallel(
    ptr %pool, ptr %body, ptr %block, i64 %n, ptr %scratch, i64 %stride, i64 %limit) nounwind {
entry:
  %busyp = getelementptr i8, ptr %pool, i64 512
  %lock = cmpxchg ptr %busyp, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %lock, 1
  br i1 %mine, label %post, label %refuse
refuse:
  ret i1 false
post:
  %donep = getelementptr i8, ptr %pool, i64 128
  %sleepp = getelementptr i8, ptr %pool, i64 256
  %bodyp = getelementptr i8, ptr %pool, i64 384
  %blockp = getelementptr i8, ptr %pool, i64 392
  %tasksp = getelementptr i8, ptr %pool, i64 400
  %scratchp = getelementptr i8, ptr %pool, i64 408
  %stridep = getelementptr i8, ptr %pool, i64 416
  %limitp = getelementptr i8, ptr %pool, i64 424
  %tablep = getelementptr i8, ptr %pool, i64 656
  %table = load ptr, ptr %tablep
  store ptr %body, ptr %bodyp
  store ptr %block, ptr %blockp
  store i64 %n, ptr %tasksp
  store ptr %scratch, ptr %scratchp
  store i64 %stride, ptr %stridep
  store i64 %limit, ptr %limitp
  store atomic i32 0, ptr %donep monotonic, align 4
  %t0 = load atomic i64, ptr %pool monotonic, align 8
  %e0 = lshr i64 %t0, 32
  %e1 = add i64 %e0, 1
  %e2 = shl i64 %e1, 32
  %n1 = sub i64 %n, 1
  %t1 = or i64 %e2, %n1
  %x = atomicrmw xchg ptr %pool, i64 %t1 seq_cst
  %s = load atomic i32, ptr %sleepp seq_cst, align 4
  %asleep = icmp sgt i32 %s, 0
  br i1 %asleep, label %wake, label %go
wake:
  %epochp = getelementptr i8, ptr %pool, i64 4
  call void @wake(ptr %table, ptr %epochp)
  br label %go
go:
  br label %own
own:
  %k = phi i64 [ 0, %go ], [ %k1, %again ]
  %count = phi i64 [ 1, %go ], [ %count1, %again ]
  call void %body(ptr %block, i64 %k, ptr %scratch)
  %tk = load atomic i64, ptr %pool acquire, align 8
  br label %take
take:
  %cur = phi i64 [ %tk, %own ], [ %old, %try ]
  %left = and i64 %cur, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %join, label %try
try:
  %next = sub i64 %cur, 1
  %cx = cmpxchg ptr %pool, i64 %cur, i64 %next acq_rel acquire
  %old = extractvalue { i64, i1 } %cx, 0
  %won = extractvalue { i64, i1 } %cx, 1
  br i1 %won, label %again, label %take
again:
  %k1 = sub i64 %n, %left
  %count1 = add i64 %count, 1
  br label %own
join:
  %others = sub i64 %n, %count
  %others32 = trunc i64 %others to i32
  br label %wait
wait:
  %w = phi i32 [ 0, %join ], [ %w1, %spun ], [ 0, %rest ]
  %d = load atomic i32, ptr %donep acquire, align 4
  %all = icmp eq i32 %d, %others32
  br i1 %all, label %out, label %spun
spun:
  call void @relax()
  %w1 = add i32 %w, 1
  %long = icmp sgt i32 %w1, 1000
  br i1 %long, label %rest, label %wait
rest:
  call void @yield(ptr %table)
  br label %wait
out:
  store atomic i32 0, ptr %busyp release, align 4
  ret i1 true
}

; Tell the workers to leave.
define void @pb_close(ptr %pool) nounwind {
entry:
  %exitp = getelementptr i8, ptr %pool, i64 648
  %tablep = getelementptr i8, ptr %pool, i64 656
  %epochp = getelementptr i8, ptr %pool, i64 4
  %table = load ptr, ptr %tablep
  store atomic i32 1, ptr %exitp release, align 4
  %x = atomicrmw add ptr %pool, i64 4294967296 seq_cst
  call void @wake(ptr %table, ptr %epochp)
  ret void
}
"""
)
