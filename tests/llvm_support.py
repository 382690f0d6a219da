"""Running one routine from a test: buffers between guard pages, a call through ctypes."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pullback.backends.base import Code
from pullback.backends.host.processor import host_target
from pullback.backends.llvm.jit import compile_routines
from pullback.config import Options
from pullback.ir.dtype import DType
from pullback.ir.expr import Const, Expr, index
from pullback.ir.nest import Array, For, LoopKind, Routine, Stmt, Var
from pullback.ir.target import Target

PAGE = mmap.PAGESIZE
HOST = host_target()
RUNS_V3 = HOST.name in ("x86-64-v3", "x86-64-v4")
AVX2 = replace(HOST, name="avx2", vector=32, vectors=16, powers=False)
AVX512 = replace(HOST, name="avx512", vector=64, vectors=32)
TARGETS = [HOST, AVX2] if HOST.vector == 64 else [HOST]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
TASK = Var("task", 0, 1 << 20)


class Fenced:
    """An array whose first or last byte touches a page that may not be touched."""

    def __init__(self, data: np.ndarray[Any, Any], at_end: bool = True) -> None:
        size = -(-max(data.nbytes, 1) // PAGE) * PAGE
        self.memory = mmap.mmap(-1, size + 2 * PAGE)
        self.anchor = ctypes.c_char.from_buffer(self.memory)
        start = ctypes.addressof(self.anchor)
        for page in (start, start + PAGE + size):
            assert LIBC.mprotect(page, PAGE, 0) == 0
        offset = PAGE + (size - data.nbytes if at_end else 0)
        raw = (ctypes.c_char * data.nbytes).from_buffer(self.memory, offset)
        self.array = np.frombuffer(raw, data.dtype).reshape(data.shape)
        self.array[...] = data


@dataclass
class Loaded:
    """Compiled code with what a call needs."""

    code: Code

    def __call__(
        self, arrays: Sequence[np.ndarray[Any, Any]], sizes: Sequence[int] = (), task: int = 0
    ) -> np.ndarray[Any, Any]:
        """Run the body (then the finish); the error record."""
        error = np.zeros(3, np.int64)
        shared = [np.zeros(size, np.uint8) for size in self.code.stored.shared]
        slots = [a.ctypes.data for a in [*arrays, *shared]]
        block = np.array([*slots, *sizes, error.ctypes.data], np.int64)
        room = np.zeros(self.code.stored.scratch + 64, np.uint8)
        scratch = -(-room.ctypes.data // 64) * 64
        FUNCTION(self.code.body)(block.ctypes.data, task, scratch)
        if self.code.finish:
            FUNCTION(self.code.finish)(block.ctypes.data, 0, scratch)
        return error


def load(routines: Sequence[Routine], target: Target = HOST) -> list[Loaded]:
    """Compile routines together."""
    return [Loaded(c) for c in compile_routines(routines, Options(), target)]


def routine(
    arguments: Sequence[Array],
    body: Sequence[Stmt],
    sizes: Sequence[Var] = (),
    scratch: Sequence[Array] = (),
    finish: Sequence[Stmt] = (),
    shared: Sequence[Array] = (),
) -> Routine:
    """A routine of one task."""
    return Routine(
        "test", tuple(arguments), tuple(sizes), tuple(scratch), tuple(shared), TASK, 1,
        tuple(body), tuple(finish),
    )  # fmt: skip


def vector(var: Var, hi: Expr | int, *body: Stmt, unroll: int = 2, lo: Expr | int = 0) -> For:
    """A vector loop over ``lo .. hi``."""
    bounds = [index(e) if isinstance(e, int) else e for e in (lo, hi)]
    return For(var, bounds[0], bounds[1], tuple(body), LoopKind.VECTOR, 1, unroll)


def loop(var: Var, hi: Expr | int, *body: Stmt, unroll: bool = False) -> For:
    """A loop over ``0 .. hi`` in order, or written out."""
    kind = LoopKind.UNROLL if unroll else LoopKind.SEQ
    return For(var, index(0), index(hi) if isinstance(hi, int) else hi, tuple(body), kind)


def zero(kind: DType) -> Const:
    """0 of a type."""
    return Const(False if kind.is_bool else 0.0 if kind.is_float else 0, kind)
