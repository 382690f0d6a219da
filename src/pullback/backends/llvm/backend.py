"""The backend that compiles through LLVM, and needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pullback.backends.base import Code, Job, Stored
from pullback.backends.host.processor import processor
from pullback.backends.llvm.emit import emit_routine
from pullback.backends.llvm.jit import (
    ASSEMBLED,
    DEFINES,
    assembly,
    compile_routines,
    load_codes,
    resumed,
)
from pullback.backends.llvm.whole import Objects
from pullback.backends.loops.backend import Loops, NestText, stored
from pullback.ir.nest import Routine
from pullback.ir.target import Target


class LLVM(Loops):
    """Routines as LLVM IR, a function each."""

    name = "llvm"

    def alone(self) -> Objects:
        """What compiles kernels for libraries, where nothing compiles C."""
        return Objects()

    def identity(self, target: Target) -> str:
        return processor(target)

    def emit(self, routines: Iterable[Routine], job: Job) -> list[Code]:
        return compile_routines(routines, job.options, job.target, job.store, job.stats)

    def load(self, kept: Sequence[Stored], job: Job) -> list[Code] | None:
        return None if job.store is None else load_codes(kept, job.store, job.stats)

    def reads(self, text: str) -> bool:
        return DEFINES in text or ASSEMBLED.search(text) is not None

    def resume(self, text: str, routine: Routine, target: Target) -> Code:
        return resumed(text, stored(routine, ""), target)

    def written(self) -> Mapping[str, NestText]:
        return {"llvm": emit_routine, "assembly": assembly}
