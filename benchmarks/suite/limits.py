"""What this processor can do at most, measured on the spot: multiply-adds and memory.

The multiply-adds are 16 independent chains of vector registers, the bytes a copy by NumPy of
working sets from the second-level cache's size to the main memory's; on each thread at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Clock = Callable[[], float]
CHAINS = 16  # more than latency times ports
TURNS = 4_000_000
TRIES = 7
SETS = (1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 28)  # bytes of source and target on a thread


@dataclass(frozen=True)
class Limits:
    """`flops` a second by threads; `bandwidth`: bytes a second by threads and working set."""

    flops: dict[int, float]
    bandwidth: dict[int, dict[int, float]]

    def seconds(self, flops: float, moved: float, threads: int) -> float:
        """The least time of a workload that reads and writes its arrays once."""
        rates = self.bandwidth[threads]
        near = [s for s in rates if s * threads >= moved]
        rate = rates[min(near) if near else max(rates)]
        return max(flops / self.flops[threads], moved / rate)


def measured(counts: Sequence[int], clock: Clock) -> Limits:
    """Both, on each number of threads."""
    spin, lanes = _chains()
    flops, rates = {}, {}
    for threads in counts:
        work = 2.0 * CHAINS * lanes * TURNS * threads
        flops[threads] = work / _short(lambda: spin(TURNS), threads, clock)
        rates[threads] = {size: _copied(size, threads, clock) for size in SETS}
    return Limits(flops, rates)


def _copied(size: int, threads: int, clock: Clock) -> float:
    """Bytes a second that copies on all threads read and write."""
    sources = [np.ones(size // 8, np.float32) for _ in range(threads)]
    targets = [np.zeros_like(s) for s in sources]
    turns = max(1, (1 << 27) // size)
    places = iter(range(1 << 30))

    def copy() -> None:
        n = next(places) % threads
        for _ in range(turns):
            np.copyto(targets[n], sources[n])

    return turns * size * threads / _short(copy, threads, clock)


def _short(call: Callable[[], object], threads: int, clock: Clock) -> float:
    """Seconds until `threads` calls at once are done: a short try, none that the clock missed."""
    found = []
    for _ in range(TRIES):
        workers = [threading.Thread(target=call) for _ in range(threads)]
        start = clock()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found.append(clock() - start)
    return sorted(found)[TRIES // 4]


def _chains() -> tuple[Callable[[int], None], int]:
    """A loop of fused multiply-adds, and how many float32 a register has."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    kind = f"<{lanes} x float>"
    names = range(CHAINS)
    start = "\n".join(
        f"  %a{n} = phi {kind} [ zeroinitializer, %entry ], [ %b{n}, %loop ]" for n in names
    )
    turn = "\n".join(
        f"  %b{n} = call {kind} @llvm.fma(({kind} %a{n}, {kind} %a{n}, {kind} %a{n})" for n in names
    ).replace("((", "(")
    ends = [f"  %c0 = fadd {kind} %b0, %b0"]
    ends += [f"  %c{n} = fadd {kind} %c{n - 1}, %b{n}" for n in range(1, CHAINS)]
    suffix = f".v{lanes}f32"
    text = f"""
declare {kind} @llvm.fma{suffix}({kind}, {kind}, {kind})
define void @spin(i64 %turns, ptr %to) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{start}
{turn.replace("@llvm.fma", "@llvm.fma" + suffix)}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %turns
  br i1 %more, label %loop, label %done
done:
{chr(10).join(ends)}
  store {kind} %c{CHAINS - 1}, ptr %to, align 4
  ret void
}}"""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    address = engine.get_function_address("spin")
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(address)

    def spin(turns: int, kept: object = engine) -> None:
        room = np.zeros(lanes, np.float32)
        call(turns, room.ctypes.data)

    return spin, lanes
