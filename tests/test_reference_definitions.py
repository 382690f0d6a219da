"""The oracle itself, against plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pullback.backends.reference import definitions as reference
from pullback.backends.reference.definitions import blocks, evaluate, evaluate_values
from pullback.errors import IndexRangeError, InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, bool_, float16, float32, float64, int8, int32, int64
from pullback.ir.expr import Axis, Const, Dim, Expr, const, index
from pullback.ir.graph import (
    ALL,
    ANY,
    MAX,
    MIN,
    PROD,
    SUM,
    Accumulate,
    Combiner,
    Definition,
    Graph,
    Reduce,
    Scan,
    Value,
    Variable,
    define,
    read,
)

RNG = np.random.default_rng(3)
A = RNG.normal(size=(5, 4)).astype("f4")
a = Variable("a", (5, 4), float32)


def run(value: Value, **arrays: np.ndarray) -> np.ndarray:
    env = {a: A}
    for v in reference.variables([value]):
        if v.name in arrays:
            env[v] = arrays[v.name]
    return evaluate_values([value], env)[0]


def scalar(e: Expr) -> Any:
    return run(define("s", (), lambda: e))[()]


def literal(value: float, kind: DType) -> Const:
    return const(value, kind)


@pytest.mark.parametrize(
    ("e", "want"),
    [
        (E.Add(literal(2**31 - 1, int32), literal(1, int32)), -(2**31)),
        (E.Mul(literal(100, int8), literal(3, int8)), 44),
        (E.FloorDiv(index(-7), index(2)), -4),
        (E.FloorDiv(index(-7), index(0)), 0),
        (E.FloorDiv(index(-(2**63)), index(-1)), -(2**63)),
        (E.Mod(index(-7), index(3)), 2),
        (E.Mod(index(7), index(-3)), -2),
        (E.Mod(index(7), index(0)), 0),
        (E.FloorDiv(literal(-7, float64), literal(2, float64)), -4.0),
        (E.Mod(literal(-7, float64), literal(2, float64)), 1.0),
        (E.Div(literal(1, float64), literal(-0.0, float64)), -math.inf),
        (E.Cast(literal(-3.9, float32), int32), -3),
        (E.Cast(literal(3e9, float32), int32), 2**31 - 1),
        (E.Cast(literal(2.0**31, float32), int32), 2**31 - 1),
        (E.Cast(literal(-(2.0**31), float32), int32), -(2**31)),
        (E.Cast(literal(2.0**63, float64), int64), 2**63 - 1),
        (E.Cast(literal(1e19, float64), int64), 2**63 - 1),
        (E.Cast(literal(-math.inf, float64), int64), -(2**63)),
        (E.Cast(literal(math.nan, float32), int32), 0),
        (E.Cast(index(300), int8), 44),
        (E.Cast(literal(math.nan, float32), bool_), True),
        (E.Less(literal(math.nan, float32), literal(1, float32)), False),
        (E.Equal(literal(math.nan, float32), literal(math.nan, float32)), False),
        (E.Xor(literal(True, bool_), literal(True, bool_)), False),
        (E.And(index(6), index(3)), 2),
        (E.Add(literal(1, bfloat16), literal(1 / 512, bfloat16)), 1.0),
        (E.Mul(literal(60000, float16), literal(2, float16)), math.inf),
        (E.Sqrt(literal(2, float64)), math.sqrt(2)),
    ],
)
def test_primitives(e: Expr, want: Any) -> None:
    assert scalar(e) == want


def test_extremes_of_nan() -> None:
    nan = literal(math.nan, float32)
    one = literal(1, float32)
    for make in (E.maximum, E.minimum):
        assert math.isnan(scalar(make(nan, one))) and math.isnan(scalar(make(one, nan)))


@pytest.mark.parametrize(
    ("combiner", "want"),
    [(SUM, A.sum(1)), (PROD, A.prod(1)), (MAX, A.max(1)), (MIN, A.min(1))],
)
def test_reductions(combiner: Combiner, want: np.ndarray) -> None:
    d = define("d", (5,), lambda i, k: read(a, i, k), over=(4,), combiner=combiner)
    assert np.allclose(run(d), want, rtol=1e-6)


def test_logical_reductions() -> None:
    for combiner, want in ((ANY, (A > 0).any(1)), (ALL, (A > 0).all(1))):
        d = define(
            "d",
            (5,),
            lambda i, k: E.Less(const(0, float32), read(a, i, k)),
            over=(4,),
            combiner=combiner,
        )
        assert (run(d) == want).all()


def test_sums_of_integers_wrap_and_of_floats_are_exact() -> None:
    x = Variable("x", (3,), int8)
    d = define("d", (), lambda k: read(x, k), over=(3,))
    assert run(d, x=np.array([100, 100, 100], "i1"))[()] == 44
    y = Variable("y", (10_001,), float32)
    d = define("d", (), lambda k: read(y, k), over=(10_001,))
    many = np.full(10_001, 0.1, "f4")
    assert run(d, y=many)[()] == np.float32(many.astype("f8").sum())


@pytest.mark.parametrize("combiner", [SUM, PROD, MAX, MIN])
def test_scans(combiner: Combiner) -> None:
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    for axis in (0, 1):
        d = Definition("d", (5, 4), read(a, Axis(0, 5), Axis(1, 4)), Scan(combiner, axis))
        assert np.allclose(run(d), ufunc[combiner.name].accumulate(A, axis), rtol=1e-5)


def test_accumulate() -> None:
    t = Variable("t", (5,), int64)
    rows = np.array([2, 0, 2, 1, 2])
    at = (read(t, Axis(0, 5)), Axis(1, 4))
    for combiner, ufunc in ((SUM, np.add), (MAX, np.maximum)):
        d = Definition(
            "d", (3, 4), read(a, Axis(0, 5), Axis(1, 4)), Accumulate(combiner, (5, 4), at)
        )
        want = np.full((3, 4), combiner.identity(float32).value, "f4")
        ufunc.at(want, rows, A)
        assert np.allclose(run(d, t=rows), want)
        with pytest.raises(IndexRangeError, match="index 3 is outside axis 0 of d"):
            run(d, t=np.array([2, 0, 3, 1, 2]))


def test_own_combiners() -> None:
    lse = Combiner("lse", E.lowest, lambda p, q: E.Log(E.Add(E.Exp(p), E.Exp(q))))
    want = np.log(np.exp(A.astype("f8")).sum(1))
    d = define("d", (5,), lambda i, k: read(a, i, k), over=(4,), combiner=lse)
    assert np.allclose(run(d), want, rtol=1e-5)
    s = Definition("s", (5, 4), read(a, Axis(0, 5), Axis(1, 4)), Scan(lse, 1))
    assert np.allclose(run(s)[:, -1], want, rtol=1e-5)
    e = Definition(
        "e", (5,), read(a, Axis(0, 5), Axis(1, 4)), Accumulate(lse, (5, 4), (Axis(0, 5),))
    )
    assert np.allclose(run(e), want, rtol=1e-5)


def test_untaken_branches_are_not_read() -> None:
    y = define(
        "y",
        (5,),
        lambda i: E.If(
            E.And(E.Less(index(0), i), E.Less(i, index(4))),
            E.Add(read(a, E.Add(i, index(-1)), index(0)), read(a, E.Add(i, index(1)), index(0))),
            const(0, float32),
        ),
    )
    want = np.zeros(5, "f4")
    want[1:4] = A[:3, 0] + A[2:, 0]
    assert (run(y) == want).all()


@pytest.mark.parametrize(
    ("lo", "message"),
    [(0, "index 5 is outside axis 0 of a"), (1, "index 5 is outside axis 0 of a")],
)
def test_taken_branches_are_checked(lo: int, message: str) -> None:
    y = define(
        "y",
        (5,),
        lambda i: E.If(
            E.Less(index(lo), i), read(a, E.Add(i, index(1)), index(0)), const(0, float32)
        ),
    )
    with pytest.raises(IndexRangeError, match=message):
        run(y)


def test_a_guard_may_itself_read_out_of_range() -> None:
    y = define(
        "y",
        (5,),
        lambda i: E.If(
            E.Less(read(a, E.Add(i, index(1)), index(0)), const(0, float32)),
            const(1, float32),
            const(0, float32),
        ),
    )
    with pytest.raises(IndexRangeError, match="index 5"):
        run(y)


def test_negative_data_indices_never_wrap() -> None:
    t = Variable("t", (2,), int64)
    d = define("d", (2,), lambda i: read(a, read(t, i), index(1)))
    assert (run(d, t=np.array([4, 0])) == A[[4, 0], 1]).all()
    with pytest.raises(IndexRangeError, match="index -1 is outside axis 0 of a"):
        run(d, t=np.array([4, -1]))


def test_empty_and_scalar_shapes() -> None:
    e = Variable("e", (0, 3), float32)
    none = np.zeros((0, 3), "f4")
    assert run(define("d", (0, 3), lambda i, j: read(e, i, j)), e=none).shape == (0, 3)
    total = define("t", (3,), lambda j, k: read(e, k, j), over=(0,))
    assert (run(total, e=none) == 0).all()
    least = define("t", (3,), lambda j, k: read(e, k, j), over=(0,), combiner=MIN)
    assert (run(least, e=none) == np.inf).all()
    s = Variable("s", (), float32)
    assert run(define("d", (), lambda: E.Exp(read(s))), s=np.float32(0)).shape == ()


def test_matmul_fast_path_agrees_with_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Variable("b", (4, 6), float32)
    B = RNG.normal(size=(4, 6)).astype("f4")

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        return E.Mul(read(a, i, k), read(b, k, j))

    c = define("c", (5, 6), body, over=(4,))
    quick = run(c, b=B)
    never: Callable[..., None] = lambda *_: None
    monkeypatch.setattr(reference, "_contraction", never)
    monkeypatch.setattr(reference, "BUDGET", 1)
    assert np.allclose(run(c, b=B), quick, rtol=1e-6, atol=1e-6)
    assert np.allclose(quick, A.astype("f8") @ B, rtol=1e-7)
    wide = define("c", (5, 6), body, over=(5,))
    with pytest.raises(IndexRangeError):
        run(wide, b=B)


def test_blocks_cover_the_box_once() -> None:
    for limit in (1, 5, 24, 1000):
        seen = np.zeros((3, 2, 7), int)
        for ranges in blocks((3, 2, 7), limit):
            seen[tuple(slice(*r) for r in ranges)] += 1
        assert (seen == 1).all()


def test_symbolic_extents_follow_the_arrays() -> None:
    n = Dim("n", 1, 8)
    x = Variable("x", (n,), float32)
    mean = define(
        "m",
        (),
        lambda k: E.Div(read(x, k), E.Cast(E.Size(n), float32)),
        over=(n,),
    )
    assert run(mean, x=np.array([1, 2, 6], "f4"))[()] == 3
    boxed = np.array([1, 2, 6, 9, 9, 9, 9, 9], "f4")
    assert evaluate_values([mean], {x: boxed}, {n: 3})[0][()] == 3


def test_assignment_is_simultaneous() -> None:
    x, y = (Variable(n, (2,), float32) for n in "xy")
    graph = Graph(((x, y), (y, define("d", (2,), lambda i: E.Add(read(x, i), const(1, float32))))))
    found = evaluate(graph, {x: np.array([1, 2], "f4"), y: np.array([5, 6], "f4")})
    assert found[x].tolist() == [5, 6] and found[y].tolist() == [2, 3]


def test_wrong_arrays_are_refused() -> None:
    d = define("d", (5,), lambda i: read(a, i, index(0)))
    for wrong in (A.astype("f8"), A[:3], A[0]):
        with pytest.raises(InvalidIR):
            evaluate_values([d], {a: wrong}, {})
    with pytest.raises(InvalidIR, match="no array"):
        evaluate_values([d], {})


def test_float64_reduction_and_reduce_of_half() -> None:
    for kind in (bfloat16, float16, float64):
        x = Variable("x", (3, 700), kind)
        X = RNG.normal(size=(3, 700)).astype(kind.numpy)
        d = Definition("d", (3,), read(x, Axis(0, 3), Axis(1, 700)), Reduce(SUM, (700,)))
        got = run(d, x=X)
        assert got.dtype == kind.numpy
        assert np.array_equal(got, X.astype("f8").sum(1).astype(kind.numpy))
