"""Compiles the kernels of the small programs for GPUs that are not there; looks at the code.

`python scripts/gpu_offline.py [--every N] [--kind float32] [sm_80 sm_90 sm_100]`: a line for each
launch that breaks a rule, then a line for each GPU. Rules: sums of products are made by tensor
cores, shared memory is what a program may have, no thread spills registers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import pullback as pb
from pullback.backends.triton import machine, offline, plan
from pullback.backends.triton.backend import orders
from pullback.backends.triton.function import Launch
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.offline import Binary
from pullback.config import Options
from pullback.ir.kernel import Kernel
from pullback.ir.signature import kernel_digest
from small_programs import PROGRAMS

TARGETS = "sm_80", "sm_90", "sm_100"
INSTRUCTIONS = "mma.sync", "wgmma.mma_async", "tcgen05.mma"


@dataclass(frozen=True)
class Row:
    """A launch of a program, as code for a GPU."""

    program: str
    launch: Launch
    binary: Binary

    def faults(self, gpu: Gpu) -> Iterator[str]:
        """The rules that it breaks."""
        ptx, binary = self.binary.texts["ptx"], self.binary
        if "tl.dot" in self.launch.source and not any(name in ptx for name in INSTRUCTIONS):
            yield "a sum of products without tensor cores"
        if binary.shared > gpu.count("block_shared"):
            yield f"{binary.shared} bytes of shared memory"
        if binary.stack and ".local" not in ptx:  # that of sin and cos of large numbers is theirs
            yield f"{binary.stack} bytes of a thread's stack"
        if binary.registers > gpu.count("thread_registers"):
            yield f"{binary.registers} registers of a thread"


def kernels(function: Any, *arguments: Any) -> list[Kernel]:
    """What a program is fused to."""
    made = pb.jit(function, options=Options(backend="kernels", cache=None))
    made(*arguments)
    return list(made.program.kernels)


def suite(kind: str, every: int = 1) -> list[tuple[str, Kernel]]:
    """The kernels of the small programs, each structure once."""
    seen: dict[str, tuple[str, Kernel]] = {}
    for name in list(PROGRAMS)[::every]:
        function, arguments = PROGRAMS[name](kind)
        for kernel in kernels(function, *arguments):
            seen.setdefault(kernel_digest(kernel), (name, kernel))
    return list(seen.values())


def rows(work: Sequence[tuple[str, Kernel]], gpu: Gpu) -> list[Row]:
    """All launches, compiled."""
    choose = plan.chooser(gpu)
    made = [(name, plan.launches(kernel, choose)) for name, kernel in work]
    asked = [order for _, launches in made for order in orders(launches)]
    binaries = iter(offline.compiled(asked, gpu.capability))
    return [Row(name, launch, next(binaries)) for name, launches in made for launch in launches]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--kind", default="float32")
    asked = parser.parse_args()
    work = suite(asked.kind, asked.every)
    wrong = 0
    for target in asked.targets:
        gpu = machine.chosen(Options(target=target))
        made = rows(work, gpu)
        for row in made:
            for fault in row.faults(gpu):
                wrong += 1
                print(f"{target} {row.program}: {row.binary.name}: {fault}")
        dots = [r for r in made if "tl.dot" in r.launch.source]
        used = {n: sum(n in r.binary.texts["ptx"] for r in dots) for n in INSTRUCTIONS}
        said = ", ".join(f"{count} by {name}" for name, count in used.items() if count)
        most = max((r.binary.registers for r in made), default=0)
        shared = max((r.binary.shared for r in made), default=0)
        print(
            f"{target}: {len(made)} launches; {len(dots)} with products: {said}; "
            f"at most {most} registers, {shared} bytes of shared memory"
        )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
