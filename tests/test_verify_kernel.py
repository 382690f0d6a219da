"""The verifiers of kernels and loop nests name each planted fault and pass what is sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import graphs
from pullback.errors import InvalidIR
from pullback.fuse.entry import fuse
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import bool_, float32, float64, int32, int64
from pullback.ir.expr import Axis, Dim, Expr, const, index
from pullback.ir.graph import (
    SUM,
    Accumulate,
    Definition,
    Graph,
    Scan,
    Value,
    Variable,
    define,
    read,
)
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.verify.kernel import verify_kernel
from pullback.verify.nest import verify_routine

X = Variable("x", (4, 4), float32)
OUT = Variable("out", (4, 4), float32)
ROW = Variable("row", (4,), float32)
TARGET = Target()

STEPS: dict[str, Callable[[], Graph]] = {
    "net": lambda: graphs.net_step(2, 9),
    "encoder": lambda: graphs.encoder_step(2, 8, 2, 12, 2),
    "gpt": lambda: graphs.gpt_step(1, 8, 2, 5, 2, 11),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_fusion_and_lowering_make_passes(name: str) -> None:
    for kernel in fuse(STEPS[name](), TARGET):
        verify_kernel(kernel, "fuse")
        verify_routine(lower(kernel, scheduled(kernel, TARGET)), "lower")


def stage(d: Definition, *outer: int | None, store: Variable | None = None) -> Stage:
    return Stage(d, d.form, d.body, outer, store)


def exp(value: Value, name: str = "e") -> Definition:
    return define(name, (4, 4), lambda i, j: E.Exp(read(value, i, j)))


def flipped(value: Value, name: str = "f") -> Definition:
    last = index(3)
    return define(name, (4, 4), lambda i, j: E.Exp(read(value, E.Add(last, E.negate(i)), j)))


def turned(value: Value) -> Definition:
    return define("turned", (4, 4), lambda i, j: E.Exp(read(value, j, i)))


def rows(value: Value) -> Definition:
    return define("rows", (4,), lambda i, k: read(value, i, k), over=(4,))


def columns(value: Value) -> Definition:
    return define("columns", (4,), lambda j, k: read(value, k, j), over=(4,))


E1 = exp(X)
ROWS = rows(E1)
COLUMNS = columns(X)
DOUBLE = define("double", (4,), lambda j: E.Mul(read(COLUMNS, j), const(2, float32)))
SCAN = Definition("scan", (4, 4), read(X, Axis(0, 4), Axis(1, 4)), Scan(SUM, 0))
SCATTER = Definition(
    "scatter",
    (4,),
    read(X, Axis(0, 4), Axis(1, 4)),
    Accumulate(SUM, (4, 4), (E.Mod(Axis(0, 4), index(2)),)),
)
PLAIN = Definition(
    "plain", (4,), read(X, Axis(0, 4), Axis(1, 4)), Accumulate(SUM, (4, 4), (Axis(0, 4),))
)
AFTER = define("after", (4,), lambda i: read(PLAIN, i))
MEETS = define("meets", (4,), lambda i: read(SCATTER, i))
LINE = Variable("line", (4,), float32)


def kernel(*stages: Stage, finish: tuple[Stage, ...] = (), outer: int = 4) -> Kernel:
    return Kernel("k", (outer,), stages, finish)


def beside(first: Definition, second: Definition) -> Kernel:
    """One launch of two parts; they write `out` and `other`."""
    parts = kernel(stage(first, 0, store=OUT)), kernel(stage(second, 0, store=OTHER))
    return Kernel("k", (), (), parts=parts)


OTHER = Variable("other", (4, 4), float32)
DONE = kernel(stage(E1, 0, store=OUT))
GOOD = {
    "side by side": beside(exp(X), turned(X)),
    "rows": kernel(stage(E1, 0), stage(ROWS, 0, store=ROW)),
    "partial": kernel(stage(COLUMNS, 1), finish=(stage(DOUBLE, None, store=ROW),)),
    "in place": kernel(stage(exp(X), 0, store=X)),
    "read, then overwritten": kernel(stage(rows(X), 0, store=ROW), stage(exp(X), 0, store=X)),
    "overwritten at the end": kernel(
        stage(COLUMNS, 1),
        stage(exp(ROW_SOURCE := Variable("s", (4, 4), float32)), 0, store=OUT),
        finish=(stage(DOUBLE, None, store=ROW),),
    ),
    "scattered by rows": kernel(stage(PLAIN, 0, store=ROW)),
    "scattered, then read": kernel(stage(PLAIN, 0, store=ROW), stage(AFTER, 0, store=LINE)),
    "recomputed": kernel(stage(E1, None), stage(flipped(E1), 0, store=OUT)),
    "one tile": kernel(stage(E1, None, store=OUT), outer=1),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_kernels_pass(name: str) -> None:
    verify_kernel(GOOD[name], "fuse")


LATE = exp(E1, "late")
WIDE = define("wide", (4, 4), lambda i, j: E.Cast(read(X, i, j), float64))
OUTSIDE = define("outside", (4, 4), lambda i, j: read(X, E.Add(i, index(1)), j))
BAD = {
    "bound_axes: count": kernel(stage(E1, 0, 1, store=OUT)),
    "bound_axes: extent": kernel(stage(E1, 0, store=OUT), outer=3),
    "bound_axes: twice": Kernel("k", (4, 4), (stage(E1, 0, 0, store=OUT),)),
    "bound_axes: finish": kernel(stage(COLUMNS, 1), finish=(stage(DOUBLE, 0, store=ROW),)),
    "scanned_whole": kernel(stage(SCAN, 0, store=OUT)),
    "stage_order: later": kernel(stage(LATE, 0, store=OUT), stage(E1, 0)),
    "stage_order: absent": kernel(stage(ROWS, 0, store=ROW)),
    "whole_when_read: partial": kernel(stage(COLUMNS, 1), stage(DOUBLE, 0, store=ROW)),
    "whole_when_read: scatter": kernel(stage(SCATTER, 0), stage(MEETS, 0, store=ROW)),
    "whole_when_read: gone": kernel(stage(E1, 0), finish=(stage(ROWS, None, store=ROW),)),
    "same_coordinates: flip": kernel(stage(E1, 0), stage(flipped(E1), 0, store=OUT)),
    "same_coordinates: transpose": kernel(stage(E1, 0), stage(turned(E1), 0, store=OUT)),
    "same_coordinates: lacking": kernel(stage(E1, 0), stage(ROWS, None)),
    "one_writer: stages": kernel(stage(E1, 0, store=OUT), stage(exp(X, "b"), 0, store=OUT)),
    "one_writer: tiles": kernel(stage(E1, None, store=OUT)),
    "one_writer: scatter": kernel(stage(SCATTER, 0, store=ROW)),
    "stored_alike: shape": kernel(stage(E1, 0, store=ROW)),
    "stored_alike: type": kernel(stage(WIDE, 0, store=OUT)),
    "partial_sums: again": Kernel("k", (4, 4), (stage(COLUMNS, 1, None),)),
    "in_place: flip": kernel(stage(flipped(X), 0, store=X)),
    "in_place: square transpose": kernel(stage(turned(X), 0, store=X)),
    "in_place: other stage": kernel(stage(columns(X), 0, store=ROW), stage(exp(X), 0, store=X)),
    "in_place: later": kernel(stage(exp(X), 0, store=X), stage(rows(X), 0, store=ROW)),
    "in_place: finish": kernel(
        stage(COLUMNS, 1, store=ROW),
        finish=(stage(define("l", (4,), lambda i: read(ROW, i)), None),),
    ),
    "in_place: scatter": kernel(
        stage(
            Definition(
                "self",
                (4,),
                E.Add(read(X, Axis(0, 4), Axis(1, 4)), read(ROW, Axis(0, 4))),
                Accumulate(SUM, (4, 4), (Axis(0, 4),)),
            ),
            0,
            store=ROW,
        )
    ),
    "reads_inside": kernel(stage(OUTSIDE, 0, store=OUT)),
    "side_by_side: reads": beside(exp(X), exp(OUT)),
    "side_by_side: writes": Kernel(
        "k", (), (), parts=(DONE, kernel(stage(turned(X), 0, store=OUT)))
    ),
    "side_by_side: partial": Kernel("k", (), (), parts=(DONE, kernel(stage(COLUMNS, 1)))),
}


@pytest.mark.parametrize("name", BAD)
def test_faults_of_kernels(name: str) -> None:
    check = name.split(":")[0]
    with pytest.raises(InvalidIR, match=rf"after planting: k: .*\({check}\)"):
        verify_kernel(BAD[name], "planting")


A = N.Array("a", float32, 12)
B = N.Array("b", float32, 12)
S = N.Register("s", float32)
R = N.Register("r", float32, (3,))
WHOLE = N.Register("w", int64)
I3, I11 = N.Var("i", 0, 3), N.Var("j", 0, 11)
K2 = N.Var("k", 0, 2)
SIZE = N.Var("n", 1, 12)
ZERO = const(0, float32)


def routine(*body: N.Stmt) -> N.Routine:
    return N.Routine("r", (A, B), (SIZE,), (), (), N.Var("task", 0, 0), 1, body, (), ("site",))


def loop(var: N.Var, *body: N.Stmt, hi: int | Expr | None = None, step: int = 1) -> N.For:
    last = index(var.hi + 1) if hi is None else index(hi) if isinstance(hi, int) else hi
    return N.For(var, index(0), last, body, N.LoopKind.SEQ, step)


def store(offset: Expr, value: Expr = ZERO) -> N.Store:
    return N.Store(A, offset, value)


def rowwise(extra: int = 0) -> Expr:
    return E.Add(E.Mul(I3, index(3)), index(extra))


SOUND: dict[str, Sequence[N.Stmt]] = {
    "plain": [loop(I11, store(I11, N.Load(B, I11)))],
    "strided": [loop(I3, store(rowwise(2)))],
    "guard": [loop(I11, N.Guard(E.Less(I11, index(11)), (store(E.Add(I11, index(1))),)))],
    "choice": [
        loop(I11, store(I11, E.If(E.Less(index(0), I11), N.Load(B, E.Add(I11, index(-1))), ZERO)))
    ],
    "run-time bound": [loop(I11, store(I11), hi=SIZE)],
    "register": [N.Declare(S, ZERO), N.Set(S, (), N.Load(A, index(0))),
                 N.Combine(S, (), SUM, N.Peek(S, ()))],
    "register array": [N.Declare(R, ZERO), loop(K2, N.Set(R, (K2,), ZERO))],
    "named offset": [N.Declare(WHOLE, E.minimum(E.maximum(E.Cast(N.Load(A, index(0)), int64),
                                                          index(0)), index(3))),
                     store(E.Mul(N.Peek(WHOLE, ()), index(3)))],
    "named value": [N.For(I3, E.Mod(SIZE, index(4)), E.Add(E.Mod(SIZE, index(4)), index(1)),
                          (store(rowwise()),))],
    "transpose": [N.Transpose(A, index(0), 4, B, index(0), 3, index(4), index(3))],
    "native": [store(index(0), N.Native("tanh", (N.Load(A, index(1)),)))],
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_nests_pass(name: str) -> None:
    verify_routine(routine(*SOUND[name]), "lower")


FAULTS: dict[str, Sequence[N.Stmt]] = {
    "accesses_inside: store": [loop(I11, store(E.Add(I11, index(1))))],
    "accesses_inside: below": [loop(I11, store(E.Add(I11, index(-1))))],
    "accesses_inside: load": [loop(I3, store(I3, N.Load(B, rowwise(3))))],
    "accesses_inside: inner load": [
        loop(I3, store(I3, N.Load(B, E.Cast(N.Load(A, I3), int64))))
    ],
    "accesses_inside: wrong guard": [
        loop(I3, loop(I11, N.Guard(E.Less(I3, index(2)), (store(E.Add(I11, index(1))),))))
    ],
    "accesses_inside: weak guard": [
        loop(I11, N.Guard(E.Less(index(5), I11), (store(E.Add(I11, index(1))),)))
    ],
    "accesses_inside: wrong branch": [
        loop(I11, store(I11, E.If(E.Equal(I11, index(0)), N.Load(B, E.Add(I11, index(-1))), ZERO)))
    ],
    "accesses_inside: combine": [
        loop(I11, N.StoreCombine(A, E.Mul(I11, index(2)), SUM, ZERO))
    ],
    "accesses_inside: transpose": [
        N.Transpose(A, index(1), 4, B, index(0), 3, index(4), index(3))
    ],
    "accesses_inside: changed register": [
        N.Declare(WHOLE, index(0)), N.Set(WHOLE, (), index(50)), store(N.Peek(WHOLE, ())),
    ],
    "registers_declared: peek": [store(index(0), N.Peek(S, ()))],
    "registers_declared: scope": [loop(I3, N.Declare(S, ZERO)), N.Set(S, (), ZERO)],
    "register_shape: rank": [N.Declare(R, ZERO), N.Set(R, (), ZERO)],
    "register_shape: index": [N.Declare(R, ZERO), loop(I3, N.Set(R, (I3,), ZERO))],
    "variables_bound": [store(I3)],
    "variables_bound: after its loop": [loop(I3, store(I3)), store(I3)],
    "typed: store": [store(index(0), const(0, float64))],
    "typed: set": [N.Declare(S, ZERO), N.Set(S, (), const(0, int32))],
    "typed: offset": [N.Store(A, const(0, int32), ZERO)],
    "typed: guard": [N.Guard(index(1), ())],
    "typed: declare": [N.Declare(S, const(True, bool_))],
    "arrays_known": [N.Store(N.Array("c", float32, 12), index(0), ZERO)],
    "known_nodes: axis": [store(Axis(0, 4))],
    "known_nodes: native": [store(index(0), N.Native("cbrt", (ZERO,)))],
    "known_nodes: size": [store(E.Size(Dim("n", 1, 4)))],
    "declared_once": [N.Declare(S, ZERO), store(index(0)), N.Declare(S, ZERO)],
    "loops_advance": [loop(I3, step=0)],
    "sites_exist": [N.Check(index(0), index(1), 1)],
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_nests(name: str) -> None:
    check = name.split(":")[0]
    with pytest.raises(InvalidIR, match=rf"after planting: r: .*\({check}\)"):
        verify_routine(routine(*FAULTS[name]), "planting")
