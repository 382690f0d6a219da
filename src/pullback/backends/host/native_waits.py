"""What the machine asks of its system and processor, as LLVM IR text.

Threads sleep on a word of memory: ``wait(at, value, ns)`` returns once somebody calls ``wake(at)``,
at once where `at` holds another value, after `ns` nanoseconds (-1: never), or for no reason.
C functions are called through a table of pointers, so the object code has no symbols to resolve.
"""

from __future__ import annotations

from dataclasses import dataclass

_COMMON = r"""
define internal ptr @function(ptr %table, i64 %n) alwaysinline {
  %at = getelementptr i64, ptr %table, i64 %n
  %f = load ptr, ptr %at
  ret ptr %f
}

define internal void @yield(ptr %table) nounwind {
  %f = call ptr @function(ptr %table, i64 3)
  %r = call i32 %f()
  ret void
}

define internal void @copy(ptr %table, ptr %to, ptr %from, i64 %size) nounwind {
  %f = call ptr @function(ptr %table, i64 4)
  %r = call ptr %f(ptr %to, ptr %from, i64 %size)
  ret void
}

; Add one to a semaphore {value, waiting}.
define internal void @give(ptr %table, ptr %sem) nounwind {
entry:
  %old = atomicrmw add ptr %sem, i32 1 seq_cst
  %waitingp = getelementptr i32, ptr %sem, i64 1
  %waiting = load atomic i32, ptr %waitingp seq_cst, align 4
  %asleep = icmp sgt i32 %waiting, 0
  br i1 %asleep, label %rouse, label %done
rouse:
  call void @wake(ptr %table, ptr %sem)
  br label %done
done:
  ret void
}

; Take one from a semaphore, waiting for at most `ns` (-1: for ever). True: taken.
define internal i1 @take(ptr %table, ptr %sem, i64 %ns) nounwind {
entry:
  %waitingp = getelementptr i32, ptr %sem, i64 1
  %begun = call i64 @now(ptr %table)
  br label %look
look:
  %value = load atomic i32, ptr %sem seq_cst, align 4
  %some = icmp sgt i32 %value, 0
  br i1 %some, label %try, label %late
try:
  %less = sub i32 %value, 1
  %cx = cmpxchg ptr %sem, i32 %value, i32 %less seq_cst seq_cst
  %won = extractvalue { i32, i1 } %cx, 1
  br i1 %won, label %yes, label %look
late:
  %t = call i64 @now(ptr %table)
  %spent = sub i64 %t, %begun
  %left = sub i64 %ns, %spent
  %ever = icmp slt i64 %ns, 0
  %soon = icmp sgt i64 %left, 0
  %go = or i1 %ever, %soon
  br i1 %go, label %sleep, label %no
sleep:
  %rest = select i1 %ever, i64 -1, i64 %left
  %s0 = atomicrmw add ptr %waitingp, i32 1 seq_cst
  call void @wait(ptr %table, ptr %sem, i32 0, i64 %rest)
  %s1 = atomicrmw sub ptr %waitingp, i32 1 seq_cst
  br label %look
yes:
  ret i1 true
no:
  ret i1 false
}

; The same for Python.
define i64 @pb_take(ptr %table, ptr %sem, i64 %ns) nounwind {
  %ok = call i1 @take(ptr %table, ptr %sem, i64 %ns)
  %word = zext i1 %ok to i64
  ret i64 %word
}

define void @pb_give(ptr %table, ptr %sem) nounwind {
  call void @give(ptr %table, ptr %sem)
  ret void
}
"""

# syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE or FUTEX_WAKE_PRIVATE, ..); clock 1: CLOCK_MONOTONIC.
_LINUX = r"""
define internal void @wait(ptr %table, ptr %at, i32 %value, i64 %ns) nounwind {
  %ts = alloca { i64, i64 }
  %s = sdiv i64 %ns, 1000000000
  %n = srem i64 %ns, 1000000000
  store i64 %s, ptr %ts
  %np = getelementptr { i64, i64 }, ptr %ts, i64 0, i32 1
  store i64 %n, ptr %np
  %ever = icmp slt i64 %ns, 0
  %limit = select i1 %ever, ptr null, ptr %ts
  %f = call ptr @function(ptr %table, i64 0)
  %r = call i64 (i64, ...) %f(
    i64 FUTEX, ptr %at, i32 128, i32 %value, ptr %limit, ptr null, i32 0)
  ret void
}

define internal void @wake(ptr %table, ptr %at) nounwind {
  %f = call ptr @function(ptr %table, i64 1)
  %r = call i64 (i64, ...) %f(
    i64 FUTEX, ptr %at, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}

define internal i64 @now(ptr %table) nounwind {
  %ts = alloca { i64, i64 }
  %f = call ptr @function(ptr %table, i64 2)
  %r = call i32 %f(i32 1, ptr %ts)
  %s = load i64, ptr %ts
  %np = getelementptr { i64, i64 }, ptr %ts, i64 0, i32 1
  %n = load i64, ptr %np
  %sn = mul i64 %s, 1000000000
  %t = add i64 %sn, %n
  ret i64 %t
}
"""

# __ulock_wait(UL_COMPARE_AND_WAIT, at, value, microseconds; 0: for ever), __ulock_wake(.. |
# ULF_WAKE_ALL, at, 0), clock_gettime_nsec_np(CLOCK_UPTIME_RAW): macOS 10.12 and later.
_MACOS = r"""
define internal void @wait(ptr %table, ptr %at, i32 %value, i64 %ns) nounwind {
  %us = sdiv i64 %ns, 1000
  %least = call i64 @llvm.smax.i64(i64 %us, i64 1)
  %most = call i64 @llvm.smin.i64(i64 %least, i64 4000000000)
  %ever = icmp slt i64 %ns, 0
  %limit = select i1 %ever, i64 0, i64 %most
  %limit32 = trunc i64 %limit to i32
  %wide = zext i32 %value to i64
  %f = call ptr @function(ptr %table, i64 0)
  %r = call i32 %f(i32 1, ptr %at, i64 %wide, i32 %limit32)
  ret void
}

define internal void @wake(ptr %table, ptr %at) nounwind {
  %f = call ptr @function(ptr %table, i64 1)
  %r = call i32 %f(i32 257, ptr %at, i64 0)
  ret void
}

define internal i64 @now(ptr %table) nounwind {
  %f = call ptr @function(ptr %table, i64 2)
  %t = call i64 %f(i32 8)
  ret i64 %t
}
"""

# WaitOnAddress(at, &value, 4, milliseconds; -1: for ever), WakeByAddressAll(at): Windows 8 and
# later. Ticks of the performance counter become nanoseconds, as time.perf_counter_ns has them.
_WINDOWS = r"""
define internal void @wait(ptr %table, ptr %at, i32 %value, i64 %ns) nounwind {
  %old = alloca i32
  store i32 %value, ptr %old
  %ms = sdiv i64 %ns, 1000000
  %least = call i64 @llvm.smax.i64(i64 %ms, i64 1)
  %most = call i64 @llvm.smin.i64(i64 %least, i64 4000000000)
  %ever = icmp slt i64 %ns, 0
  %limit = select i1 %ever, i64 -1, i64 %most
  %limit32 = trunc i64 %limit to i32
  %f = call ptr @function(ptr %table, i64 0)
  %r = call i32 %f(ptr %at, ptr %old, i64 4, i32 %limit32)
  ret void
}

define internal void @wake(ptr %table, ptr %at) nounwind {
  %f = call ptr @function(ptr %table, i64 1)
  call void %f(ptr %at)
  ret void
}

define internal i64 @now(ptr %table) nounwind {
  %ticksp = alloca i64
  %ratep = alloca i64
  %counter = call ptr @function(ptr %table, i64 2)
  %r0 = call i32 %counter(ptr %ticksp)
  %frequency = call ptr @function(ptr %table, i64 5)
  %r1 = call i32 %frequency(ptr %ratep)
  %ticks = load i64, ptr %ticksp
  %rate = load i64, ptr %ratep
  %s = sdiv i64 %ticks, %rate
  %rest = srem i64 %ticks, %rate
  %sn = mul i64 %s, 1000000000
  %rn = mul i64 %rest, 1000000000
  %n = sdiv i64 %rn, %rate
  %t = add i64 %sn, %n
  ret i64 %t
}
"""

_SMALLER = """
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

_X86 = """
declare void @llvm.x86.sse2.pause()

define internal void @relax() alwaysinline {
  call void @llvm.x86.sse2.pause()
  ret void
}
"""

_ARM = """
declare void @llvm.aarch64.isb(i32)

define internal void @relax() alwaysinline {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}
"""

FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of Linux's system call


@dataclass(frozen=True, slots=True)
class Waits:
    """How threads wait on one kind of system: C functions in the order of the table, and text."""

    functions: tuple[str, ...]
    text: str


def waits(system: str, processor: str) -> Waits:
    """Of "linux", "darwin" or "win32" on "x86_64" or "aarch64"."""
    relax = _ARM if processor == "aarch64" else _X86
    if system == "win32":
        names = "WaitOnAddress", "WakeByAddressAll", "QueryPerformanceCounter", "SwitchToThread"
        own = (*names, "memcpy", "QueryPerformanceFrequency")
        return Waits(own, relax + _SMALLER + _WINDOWS + _COMMON)
    if system == "darwin":
        names = "__ulock_wait", "__ulock_wake", "clock_gettime_nsec_np", "sched_yield"
        return Waits((*names, "memcpy"), relax + _SMALLER + _MACOS + _COMMON)
    text = _LINUX.replace("FUTEX", str(FUTEX[processor]))
    names = "syscall", "syscall", "clock_gettime", "sched_yield"
    return Waits((*names, "memcpy"), relax + text + _COMMON)
