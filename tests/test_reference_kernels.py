"""The interpreters of kernels and loop nests agree with definitions, and catch planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphs
from kernel_runner import random_values
from pullback.backends.reference.definitions import evaluate, evaluate_values
from pullback.backends.reference.kernels import run_kernel
from pullback.backends.reference.nests import run_routine
from pullback.errors import IndexRangeError, InvalidIR
from pullback.fuse.entry import fuse
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import float32, int32, int64
from pullback.ir.expr import Axis, Expr, const, index
from pullback.ir.graph import (
    MAX,
    SUM,
    Accumulate,
    Definition,
    Graph,
    Scan,
    Variable,
    define,
    read,
)
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target

X = Variable("x", (5, 7), float32)
OUT = Variable("out", (5, 7), float32)
DATA = np.random.default_rng(0).normal(size=(5, 7)).astype("f4")


def stage(d: Definition, *outer: int | None, store: Variable | None = None) -> Stage:
    return Stage(d, d.form, d.body, outer, store)


def softmax() -> tuple[Definition, ...]:
    top = define("top", (5,), lambda i, k: read(X, i, k), over=(7,), combiner=MAX)
    e = define("e", (5, 7), lambda i, j: E.Exp(E.subtract(read(X, i, j), read(top, i))))
    norm = define("norm", (5,), lambda i, k: read(e, i, k), over=(7,))
    out = define("out", (5, 7), lambda i, j: E.Div(read(e, i, j), read(norm, i)))
    return top, e, norm, out


def test_softmax_row_by_row() -> None:
    top, e, norm, out = softmax()
    kernel = Kernel(
        "softmax", (5,), (stage(top, 0), stage(e, 0), stage(norm, 0), stage(out, 0, store=OUT))
    )
    for tile in (1, 2, 5):
        found = run_kernel(kernel, {X: DATA}, [tile])[OUT]
        assert np.allclose(found, evaluate_values([out], {X: DATA})[0], rtol=1e-6)


def test_parts_of_a_launch_are_run_each() -> None:
    other = Variable("other", (7,), float32)
    rows = Kernel(
        "r", (5,), (stage(define("e", (5, 7), lambda i, j: E.Exp(read(X, i, j))), 0, store=OUT),)
    )
    last = define("l", (7,), lambda j: E.negate(read(X, index(4), j)))
    found = run_kernel(
        Kernel("k", (), (), parts=(rows, Kernel("l", (7,), (stage(last, 0, store=other),)))),
        {X: DATA},
    )
    assert np.allclose(found[OUT], np.exp(DATA), rtol=1e-6)
    assert np.array_equal(found[other], -DATA[4])


def test_scratch_of_another_tile_is_not_visible() -> None:
    e = define("e", (5, 7), lambda i, j: E.Exp(read(X, i, j)))
    last = define("l", (5, 7), lambda i, j: read(e, E.Add(index(4), E.negate(i)), j))
    kernel = Kernel("k", (5,), (stage(e, 0), stage(last, 0, store=OUT)))
    with pytest.raises(IndexRangeError):
        run_kernel(kernel, {X: DATA})


def test_partials_are_combined_before_finish() -> None:
    part = define("part", (7,), lambda j, k: read(X, k, j), over=(5,))
    double = define("double", (7,), lambda j: E.Mul(read(part, j), const(2, float32)))
    kept, twice = (Variable(n, (7,), float32) for n in ("kept", "twice"))
    kernel = Kernel("k", (5,), (stage(part, 1, store=kept),), (stage(double, None, store=twice),))
    found = run_kernel(kernel, {X: DATA})
    assert np.allclose(found[kept], DATA.sum(0), rtol=1e-6)
    assert np.allclose(found[twice], 2 * DATA.sum(0), rtol=1e-6)


def test_scans_and_accumulating_writes() -> None:
    total = Definition("s", (5, 7), read(X, Axis(0, 5), Axis(1, 7)), Scan(SUM, 1))
    at = (Axis(0, 5), E.Mod(Axis(1, 7), index(3)))
    body = read(total, Axis(0, 5), Axis(1, 7))
    thirds = Definition("a", (5, 3), body, Accumulate(SUM, (5, 7), at))
    kept = Variable("kept", (5, 3), float32)
    kernel = Kernel("k", (5,), (stage(total, 0), stage(thirds, 0, store=kept)))
    want = evaluate_values([thirds], {X: DATA})[0]
    assert np.allclose(run_kernel(kernel, {X: DATA})[kept], want, rtol=1e-6)


def test_an_overwrite_before_its_last_read_shows() -> None:
    """Row sums after the row was doubled are wrong; before it they are right."""
    double = define("double", (5, 7), lambda i, j: E.Mul(read(X, i, j), const(2, float32)))
    total = define("total", (5,), lambda i, k: read(X, i, k), over=(7,))
    sums = Variable("sums", (5,), float32)
    write, add = stage(double, 0, store=X), stage(total, 0, store=sums)
    right = run_kernel(Kernel("k", (5,), (add, write)), {X: DATA})
    wrong = run_kernel(Kernel("k", (5,), (write, add)), {X: DATA})
    assert np.allclose(right[sums], DATA.sum(1), rtol=1e-5)
    assert np.allclose(right[X], 2 * DATA)
    assert not np.allclose(wrong[sums], DATA.sum(1), rtol=1e-2)


STEPS: dict[str, Callable[[], Graph]] = {
    "net": lambda: graphs.net_step(2, 9),
    "encoder": lambda: graphs.encoder_step(1, 8, 2, 12, 2),
    "gpt": lambda: graphs.gpt_step(1, 8, 2, 5, 2, 11),
}


@pytest.mark.parametrize("name", STEPS)
def test_fused_steps(name: str) -> None:
    graph = STEPS[name]()
    memory: dict[Variable, Any] = dict(random_values(graph))
    want = evaluate(graph, memory)
    for kernel in fuse(graph, Target()):
        memory.update(run_kernel(kernel, memory))
    for variable, array in want.items():
        assert np.allclose(memory[variable], array, rtol=1e-3, atol=1e-5), variable.name


SRC = N.Array("src", float32, 6)
DST = N.Array("dst", float32, 6)
SUMS = N.Array("sums", float32, 1)
TASK = N.Var("task", 0, 0)
I5 = N.Var("i", 0, 5)


def routine(body: Sequence[N.Stmt], sites: tuple[str, ...] = ()) -> N.Routine:
    return N.Routine("r", (SRC, DST, SUMS), (), (), (), TASK, 1, tuple(body), (), sites)


def loop(*body: N.Stmt, kind: N.LoopKind = N.LoopKind.SEQ, hi: int = 6) -> N.For:
    return N.For(I5, index(0), index(hi), body, kind)


def ran(*body: N.Stmt, sites: tuple[str, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    arrays = [np.arange(6, dtype="f4"), np.zeros(6, "f4"), np.zeros(1, "f4")]
    run_routine(routine(body, sites), arrays)
    return arrays[1], arrays[2]


def test_loops_registers_and_combining() -> None:
    total = N.Register("total", float32)
    load = N.Load(SRC, I5)
    found, sums = ran(
        N.Declare(total, const(0, float32)),
        loop(
            N.Store(DST, I5, E.Mul(load, load)),
            N.Combine(total, (), SUM, load),
            N.Guard(E.Less(I5, index(2)), (N.StoreCombine(SUMS, index(0), MAX, load),)),
            kind=N.LoopKind.VECTOR,
        ),
        N.StoreCombine(SUMS, index(0), SUM, N.Peek(total, ())),
    )
    assert found.tolist() == [0, 1, 4, 9, 16, 25]
    assert sums.tolist() == [16]


def test_vector_loops_run_backwards() -> None:
    """A loop marked VECTOR whose iterations depend on each other gives another result."""
    previous = N.Load(DST, E.maximum(E.Add(I5, index(-1)), index(0)))
    body = N.Store(DST, I5, E.Add(previous, N.Load(SRC, I5)))
    assert ran(loop(body))[0].tolist() == [0, 1, 3, 6, 10, 15]
    assert ran(loop(body, kind=N.LoopKind.VECTOR))[0].tolist() != [0, 1, 3, 6, 10, 15]


def test_untaken_loads_touch_nothing() -> None:
    shifted = N.Load(SRC, E.Add(I5, index(1)))
    body = N.Store(DST, I5, E.If(E.Less(I5, index(5)), shifted, const(-1, float32)))
    assert ran(loop(body))[0].tolist() == [1, 2, 3, 4, 5, -1]


def test_transpose_panel() -> None:
    move = N.Transpose(DST, index(0), 2, SRC, index(0), 3, index(2), index(3))
    assert ran(move)[0].tolist() == [0, 3, 1, 4, 2, 5]


def test_natives() -> None:
    x = N.Load(SRC, index(1))
    for name, want in (
        ("tanh", math.tanh(1)),
        ("erf", math.erf(1)),
        ("sigmoid", 1 / (1 + math.exp(-1))),
    ):
        found = ran(N.Store(DST, index(0), N.Native(name, (x,))))[0]
        assert np.isclose(found[0], want, rtol=1e-6)


def test_checks_keep_the_first_failure() -> None:
    check = N.Check(E.Add(I5, index(3)), index(6), 0)
    with pytest.raises(IndexRangeError, match=r"index 6 is out of range: tokens at user\.py:3"):
        ran(loop(check), sites=("tokens at user.py:3",))


UNDECLARED = N.Register("u", float32)
FAULTS: dict[str, tuple[N.Stmt, ...]] = {
    "outside": (loop(N.Store(DST, E.Add(I5, index(1)), const(0, float32))),),
    "not declared": (N.Set(UNDECLARED, (), const(0, float32)),),
    "is not bound": (N.Store(DST, I5, const(0, float32)),),
    "i = 6": (loop(hi=7),),
    "not an array": (N.Store(N.Array("other", float32, 6), index(0), const(0, float32)),),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults_of_nests(message: str) -> None:
    with pytest.raises(InvalidIR, match=message):
        ran(*FAULTS[message])


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(InvalidIR, match="wants 6"):
        run_routine(routine(()), [np.zeros(5, "f4"), np.zeros(6, "f4"), np.zeros(1, "f4")])


def test_scratch_is_fresh_in_each_task_and_finish_runs_last() -> None:
    kept = N.Array("kept", int64, 1, "scratch")
    both = N.Array("both", int64, 2, "shared")
    out = N.Array("out", int64, 1)
    task = N.Var("task", 0, 1)
    body: tuple[N.Stmt, ...] = (
        N.Store(both, task, N.Load(kept, index(0))),
        N.Store(kept, index(0), index(0)),
        N.Store(both, task, E.Add(N.Load(both, task), E.negate(N.Load(both, task)))),
    )
    total: Expr = E.Add(N.Load(both, index(0)), N.Load(both, index(1)))
    made = N.Routine(
        "r", (out,), (), (kept,), (both,), task, 2, body, (N.Store(out, index(0), total),)
    )
    data = np.full(1, 5)
    run_routine(made, [data])
    assert data.tolist() == [0]
    seen = replace(made, body=(N.Store(both, task, N.Load(kept, index(0))),))
    run_routine(seen, [data])
    assert data.tolist() == [-2]


def test_scalars_of_every_type() -> None:
    small = N.Array("small", int32, 1)
    made = N.Routine(
        "r",
        (small,),
        (),
        (),
        (),
        TASK,
        1,
        (N.Store(small, index(0), E.Add(N.Load(small, index(0)), const(1, int32))),),
    )
    data = np.full(1, 2**31 - 1, "i4")
    run_routine(made, [data])
    assert data.tolist() == [-(2**31)]
