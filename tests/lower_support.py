"""Kernels for tests of scheduling and lowering, and the ways to run what they become."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llvm_support import FUNCTION, Fenced
from pullback.backends.base import Code
from pullback.backends.host.processor import host_target, named_target
from pullback.backends.llvm.jit import compile_routines
from pullback.backends.reference.definitions import evaluate
from pullback.backends.reference.nests import run_routine
from pullback.backends.registry import named
from pullback.config import Options
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32
from pullback.ir.expr import Dim, Expr, Extent, upper
from pullback.ir.graph import Definition, Graph, Variable
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.nest import Routine
from pullback.lower import lower
from pullback.lower.whole import whole
from pullback.machine.machine import chosen
from pullback.schedule.choose import schedule_with
from pullback.schedule.schedule import Schedule
from pullback.verify.nest import verify_routine

Array = np.ndarray[Any, Any]
Outer = tuple[int | None, ...]
HOST = host_target()
# Its code by the tables of any such processor: where pages are known, products go by price.
TABLES = HOST.on(chosen(HOST.name)) if any(m.pages for m in HOST.profile.memories) else HOST
# The processor that the numbers in tests of choices were measured on.
ZEN5 = named_target("x86-64-v4").on(chosen("zen5"))
ZEN4 = named_target("x86-64-v4").on(chosen("zen4"))
start = named("llvm").start  # the whole schedule that a kernel runs by


def variable(name: str, *shape: Extent, kind: DType = float32) -> Variable:
    return Variable(name, shape, kind)


def num(value: float, kind: DType = float32) -> Expr:
    return E.const(value, kind)


def stage(definition: Definition, outer: Outer, store: Variable | None = None) -> Stage:
    return Stage(definition, definition.form, definition.body, outer, store)


def kernel(outer: tuple[Extent, ...], *stages: Stage, finish: tuple[Stage, ...] = ()) -> Kernel:
    return Kernel("test", outer, stages, finish)


def random_array(v: Variable, seed: int, sizes: Mapping[Dim, int], below: int = 5) -> Array:
    rng = np.random.default_rng(seed)
    shape = tuple(sizes[e] if isinstance(e, Dim) else e for e in v.shape)
    if v.dtype.is_float:
        return rng.standard_normal(shape).astype(v.dtype.numpy)
    if v.dtype.is_bool:
        return rng.random(shape) > 0.5
    return rng.integers(0, below, shape).astype(v.dtype.numpy)


def padded(array: Array, v: Variable) -> Array:
    """`array` in the corner of an array of the upper bounds."""
    fill = np.nan if v.dtype.is_float else 0
    found = np.full(tuple(upper(e) for e in v.shape), fill, v.dtype.numpy)
    found[tuple(slice(n) for n in array.shape)] = array
    return found


def routine_of(
    k: Kernel, tile: tuple[int, ...] | None = None, tasks: int = 1
) -> tuple[Schedule, Routine]:
    plan = start(k, HOST) if tile is None else schedule_with(k, HOST, tile, tasks)
    routine = lower(k, whole(k, plan, HOST))
    verify_routine(routine, "lower")
    return plan, routine


def check(
    k: Kernel,
    tile: tuple[int, ...] | None = None,
    tasks: int = 1,
    *,
    values: Mapping[Variable, Array] | None = None,
    sizes: Mapping[Dim, int] | None = None,
    native: bool = True,
    scalar: bool = False,
    tolerance: float = 1e-4,
) -> Routine:
    """The kernel's routine gives what its definitions mean, in the interpreter and natively."""
    _, routine = routine_of(k, tile, tasks)
    agree(k, routine, values, sizes or {}, native, scalar, tolerance)
    return routine


def agree(
    k: Kernel,
    routine: Routine,
    values: Mapping[Variable, Array] | None,
    sizes: Mapping[Dim, int],
    native: bool,
    scalar: bool,
    tolerance: float = 1e-4,
) -> None:
    given = {v: random_array(v, n, sizes) for n, v in enumerate(k.arguments)}
    given.update(values or {})
    stored = [s for s in k.stages + k.finish if s.store is not None]
    graph = Graph(tuple((s.store, s.target) for s in stored if s.store is not None))
    want = evaluate(graph, {v: a.copy() for v, a in given.items()})
    order = [sizes[d] for d in _dims(routine, sizes)]
    if scalar:
        arrays = [padded(given[v], v) for v in k.arguments]
        run_routine(routine, arrays, order)
        _compare(k, arrays, want, tolerance)
    if native:
        fenced = [Fenced(padded(given[v], v)).array for v in k.arguments]
        run_native(routine, fenced, order)
        _compare(k, fenced, want, tolerance)


def natively(k: Kernel, routine: Routine) -> list[Array]:
    """What every argument holds after a run on random numbers, in memory between fences."""
    given = (padded(random_array(v, n, {}), v) for n, v in enumerate(k.arguments))
    arrays = [Fenced(array).array for array in given]
    run_native(routine, arrays)
    return arrays


def _dims(routine: Routine, sizes: Mapping[Dim, int]) -> list[Dim]:
    named = {d.name: d for d in sizes}
    return [named[v.name] for v in routine.sizes]


@functools.lru_cache(64)
def native(routine: Routine) -> Code:
    """Its code for this processor, made once however often it runs."""
    return compile_routines([routine], Options(), HOST)[0]


def run_native(routine: Routine, arrays: Sequence[Array], sizes: Sequence[int] = ()) -> Array:
    """All tasks, then the finish; the error record."""
    code = native(routine)
    error = np.zeros(3, np.int64)
    shared = [np.full(size, 255, np.uint8) for size in code.stored.shared]
    slots = [a.ctypes.data for a in [*arrays, *shared]]
    block = np.array([*slots, *sizes, error.ctypes.data], np.int64)
    room = np.full(code.stored.scratch + 64, 255, np.uint8)
    scratch = -(-room.ctypes.data // 64) * 64
    for task in reversed(range(routine.tasks)):
        FUNCTION(code.body)(block.ctypes.data, task, scratch)
    if code.finish:
        FUNCTION(code.finish)(block.ctypes.data, 0, scratch)
    return error


def _compare(
    k: Kernel, arrays: Sequence[Array], want: Mapping[Variable, Array], tolerance: float
) -> None:
    for v, expected in want.items():
        found = arrays[k.arguments.index(v)][tuple(slice(n) for n in expected.shape)]
        np.testing.assert_allclose(
            found.astype(np.float64),
            expected.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=str(v),
        )
