"""The backend that compiles through LLVM, and needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from pullback.backends.base import Code, CompileStats, ObjectStore
from pullback.backends.host.processor import chosen_target
from pullback.backends.llvm.jit import compile_routines
from pullback.config import Options
from pullback.ir.nest import Routine
from pullback.ir.target import Target


class LLVM:
    """Routines as LLVM IR, a function each."""

    name = "llvm"
    recorded = True

    def target(self, options: Options) -> Target:
        return chosen_target(options.target, options.machine)

    def compile(
        self,
        routines: Iterable[Routine],
        options: Options,
        target: Target,
        store: ObjectStore | None,
        stats: CompileStats,
    ) -> list[Code]:
        return compile_routines(routines, options, target, store, stats)
