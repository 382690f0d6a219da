"""Whole kernels written by hand: softmax, layer norm, the register tile of a product, panels."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from llvm_support import AVX512, HOST, TARGETS, TASK, Fenced, load, loop, routine, vector, zero
from pullback.backends.llvm.emit import emit_routine
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, float32, float64, int8, int32, int64
from pullback.ir.expr import Expr, index
from pullback.ir.graph import MAX, SUM
from pullback.ir.nest import (
    Array,
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Peek,
    Register,
    Routine,
    Set,
    Stmt,
    Store,
    Transpose,
    Var,
)
from pullback.ir.target import Target

ZERO = zero(float32)


def at(*terms: Expr | int) -> Expr:
    """The sum of index terms."""
    items = [index(t) if isinstance(t, int) else t for t in terms]
    total = items[0]
    for item in items[1:]:
        total = E.Add(total, item)
    return total


def times(e: Expr, factor: int) -> Expr:
    return E.Mul(e, index(factor))


def softmax(rows: int, columns: int) -> Routine:
    """One pass for the maximum, one for the exponentials and their sum, one to divide."""
    x, y = Array("x", float32, rows * columns), Array("y", float32, rows * columns)
    row_exp = Array("e", float32, columns)
    r, top, total = Var("r", 0, rows - 1), Register("m", float32), Register("s", float32)
    a, b, c = (Var(n, 0, columns - 1) for n in "abc")
    value = E.Exp(E.subtract(Load(x, at(times(r, columns), b)), Peek(top, ())))
    body = loop(
        r, rows,
        Declare(top, E.lowest(float32)),
        vector(a, columns, Combine(top, (), MAX, Load(x, at(times(r, columns), a))), unroll=4),
        Declare(total, ZERO),
        vector(b, columns, Store(row_exp, b, value), Combine(total, (), SUM, Load(row_exp, b))),
        vector(c, columns, Store(
            y, at(times(r, columns), c), E.Div(Load(row_exp, c), Peek(total, ()))
        )),
    )  # fmt: skip
    return routine([x, y], [body], scratch=[row_exp])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 100])
def test_softmax_rows(columns: int, target: Target) -> None:
    x = np.random.default_rng(0).normal(size=(3, columns)).astype(np.float32) * 5
    y = Fenced(np.zeros_like(x))
    load([softmax(3, columns)], target)[0]([Fenced(x).array, y.array])
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y.array, e / e.sum(1, keepdims=True), rtol=2e-6)


def gemm(shape: tuple[int, int, int], tile: tuple[int, int], kind: DType, inner: str) -> Routine:
    """``c = a b``: register tiles, k in order; edge tiles are narrower loops of the same form."""
    m, n, depth = shape
    a, b, c = Array("a", kind, m * depth), Array("b", kind, depth * n), Array("c", kind, m * n)
    body: list[Stmt] = []
    for i0 in range(0, m, tile[0]):
        for j0 in range(0, n, tile[1]):
            size = min(tile[0], m - i0), min(tile[1], n - j0)
            body += _tile(a, b, c, (i0, j0), size, (n, depth), inner)
    return routine([a, b, c], body)


def _tile(
    a: Array, b: Array, c: Array, origin: tuple[int, int], size: tuple[int, int],
    strides: tuple[int, int], inner: str,
) -> list[Stmt]:  # fmt: skip
    (rows, columns), (n, depth) = size, strides
    acc = Register("acc", float32 if a.dtype.bits == 16 else a.dtype, (rows, columns))
    i, v, k = Var("i", 0, rows - 1), Var("v", 0, columns - 1), Var("k", 0, depth - 1)
    left = Load(a, at(times(at(origin[0], i), depth), k))
    right = Load(b, at(times(k, n), origin[1], v))
    factors = [E.Cast(f, acc.dtype) if a.dtype.bits == 16 else f for f in (left, right)]
    product = Combine(acc, (i, v), SUM, E.Mul(*factors))
    value: Expr = Peek(acc, (i, v))
    value = E.Cast(value, a.dtype) if a.dtype.bits == 16 else value
    store = Store(c, at(times(at(origin[0], i), n), origin[1], v), value)
    lanes = lambda s: vector(v, columns, s, unroll=1)
    written = lambda s: loop(i, rows, s, unroll=True)
    if inner == "lanes inside":
        step, final = written(lanes(product)), written(lanes(store))
    else:
        step, final = lanes(written(product)), lanes(written(store))
    return [Declare(acc, zero(acc.dtype)), loop(k, depth, step), final]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("inner", ["lanes inside", "lanes outside"])
@pytest.mark.parametrize("kind", [float32, float64, bfloat16, int32], ids=str)
def test_register_tile(kind: DType, inner: str, target: Target) -> None:
    """Tiles 4 x 48 over 6 x 71: the last column tile is one masked vector and more."""
    random = np.random.default_rng(1)
    a, b = (random.normal(size=s).astype(kind.numpy) * 4 for s in ((6, 9), (9, 71)))
    a, b = a.astype(kind.numpy), b.astype(kind.numpy)
    c = Fenced(np.zeros((6, 71), kind.numpy))
    load([gemm((6, 71, 9), (4, 48), kind, inner)], target)[0](
        [Fenced(a).array, Fenced(b).array, c.array]
    )
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = 1e-2 if kind.bits == 16 else 1e-5
    np.testing.assert_allclose(c.array.astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


def test_the_micro_kernel_is_short_and_fused() -> None:
    """8 x 48: 24 fused multiply-adds and 3 loads of b a step, no gather, no mask."""
    text = emit_routine(gemm((8, 48, 64), (8, 48), float32, "lanes inside"), AVX512)
    body = text[text.index("define void @body") :]
    assert body.count("@llvm.fma.v16f32") == 24
    assert body.count("= load <16 x float>, ptr %t") == 3
    assert "masked" not in body
    assert len(body.splitlines()) < 260


def test_accumulators_across_a_dot_product_tile() -> None:
    """``acc[i] += a[i, k] b[k]`` with k in lanes: two registers of an array, reduced at the end."""
    a, b, y = Array("a", float32, 3 * 50), Array("b", float32, 50), Array("y", float32, 3)
    acc, i, k = Register("acc", float32, (3,)), Var("i", 0, 2), Var("k", 0, 49)
    product = E.Mul(Load(a, at(times(i, 50), k)), Load(b, k))
    body = [
        Declare(acc, E.Const(1.0, float32)),
        vector(k, 50, loop(i, 3, Combine(acc, (i,), SUM, product), unroll=True)),
        loop(i, 3, Store(y, i, Peek(acc, (i,))), unroll=True),
    ]
    random = np.random.default_rng(2)
    left, right = (random.normal(size=s).astype(np.float32) for s in ((3, 50), 50))
    out = np.zeros(3, np.float32)
    load([routine([a, b, y], body)])[0]([left, right, out])
    np.testing.assert_allclose(out, 1 + left @ right, rtol=1e-5)


def test_tile_elements_by_number() -> None:
    """Single lanes of a register tile can be set and read."""
    y, acc = Array("y", float32, 40), Register("acc", float32, (1, 40))
    v, none = Var("v", 0, 39), index(0)
    body = [
        Declare(acc, E.Const(2.0, float32)),
        Set(acc, (none, index(37)), E.Const(5.0, float32)),
        Set(acc, (none, index(1)), Peek(acc, (none, index(37)))),
        vector(v, 40, Store(y, v, Peek(acc, (none, v)))),
    ]
    out = Fenced(np.zeros(40, np.float32))
    load([routine([y], body)])[0]([out.array])
    wanted = np.full(40, 2, np.float32)
    wanted[[1, 37]] = 5
    np.testing.assert_array_equal(out.array, wanted)


def test_memory_is_read_again_after_it_changes() -> None:
    """``y[0] = x; x = x + 1; y[1] = x``, straight, in a loop and under a guard."""
    x, y = Array("x", float32, 16), Array("y", float32, 48)
    k, v, turn = Var("k", 0, 3), Var("v", 0, 15), Var("c", 0, 1)
    bump = Store(x, v, E.Add(Load(x, v), E.Const(1.0, float32)))
    body = [
        vector(v, 16, Store(y, v, Load(x, v)), bump, Store(y, at(v, 16), Load(x, v))),
        loop(k, 3, vector(v, 16, bump)),
        loop(turn, 2, Guard(E.Equal(turn, index(1)), (vector(v, 16, bump),))),
        vector(v, 16, Store(y, at(v, 32), Load(x, v))),
    ]
    start, out = np.arange(16, dtype=np.float32), np.zeros((3, 16), np.float32)
    load([routine([x, y], body)])[0]([start.copy(), out])
    np.testing.assert_array_equal(out, [start, start + 1, start + 5])


@pytest.mark.parametrize("kind", [int8, bfloat16, float32, int64], ids=str)
def test_transpose(kind: DType) -> None:
    rows, columns = Var("r", 0, 40), Var("c", 0, 40)
    source, target = Array("s", kind, 41 * 43), Array("t", kind, 45 * 41)
    body = [Transpose(target, index(2), 45, source, index(1), 43, rows, columns)]
    call = load([routine([target, source], body, [rows, columns])])[0]
    data = np.arange(41 * 43).reshape(41, 43) % 120
    for r, c in ((0, 5), (1, 1), (3, 17), (16, 16), (31, 33), (40, 40), (8, 40)):
        used = 1 + max(0, r - 1) * 43 + c if r else 0
        given = Fenced(data.reshape(-1)[:used].astype(kind.numpy))
        size = 2 + max(0, c - 1) * 45 + r
        out = Fenced(np.zeros(size, kind.numpy))
        call([out.array, given.array], [r, c])
        wanted = np.zeros(45 * 41, kind.numpy)
        grid = wanted[2 : 2 + 45 * 40].reshape(40, 45)
        grid[:c, :r] = data.reshape(-1)[1:][: 43 * 40].reshape(40, 43)[:r, :c].T.astype(kind.numpy)
        np.testing.assert_array_equal(
            out.array.astype(np.float32), wanted[:size].astype(np.float32)
        )


def test_rows_beyond_a_transpose_are_not_addressed() -> None:
    """They may lie in no memory at all, where even a vector with no lane on takes microseconds."""
    source, target = Array("s", float32, 41 * 43), Array("t", float32, 45 * 41)
    rows, columns = Var("r", 0, 40), Var("c", 0, 40)
    made = Transpose(target, index(0), 45, source, index(0), 43, rows, columns)
    text = emit_routine(routine([target, source], [made], [rows, columns]), HOST)
    helper = text[text.index("define internal void @transpose4") :]
    chosen = set(re.findall(r"(%\S+) = select i1 %\S+, ptr", helper))
    places = re.findall(r"@llvm\.masked\.(?:load|store).*ptr align \d+ (%[^,]+),", helper)
    assert len(places) == 2 * HOST.lanes(4)
    assert len(chosen.intersection(places)) == len(places) - 2


@pytest.mark.parametrize("kind", [float32, float64])
@pytest.mark.parametrize("less", [0, 1])
def test_only_whole_blocks_are_transposed_without_masks(kind: DType, less: int) -> None:
    n = HOST.lanes(kind.itemsize)
    rows, columns = 2 * n - less, 5 * n
    source, target = Array("s", kind, rows * (columns + 1)), Array("t", kind, columns * (rows + 2))
    sizes = index(rows), index(columns)
    made = routine(
        [target, source],
        [Transpose(target, index(0), rows + 2, source, index(0), columns + 1, *sizes)],
    )
    assert ("masked" in emit_routine(made, HOST)) == (less > 0)
    given = np.arange(source.size, dtype=kind.numpy)
    found = np.full(target.size, -1, kind.numpy)
    load([made])[0]([found, given])
    wanted = np.full((columns, rows + 2), -1, kind.numpy)
    wanted[:, :rows] = given.reshape(rows, columns + 1)[:, :columns].T
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", [float32, int64], ids=str)
def test_few_squares_are_written_out_for_their_size(kind: DType, target: Target) -> None:
    """Between fences, in every number of rows and columns of two squares by two."""
    n = target.lanes(kind.itemsize)
    for rows, columns in product({1, 2, 3, n - 1, n, n + 1, 2 * n - 1}, {1, n - 1, n, 2 * n - 3}):
        source, target_ = Array("s", kind, rows * columns), Array("t", kind, rows * columns)
        sizes = index(rows), index(columns)
        copy = Transpose(target_, index(0), rows, source, index(0), columns, *sizes)
        made = routine([target_, source], [copy])
        given = Fenced(np.arange(source.size, dtype=kind.numpy))
        got = Fenced(np.full(source.size, -1, kind.numpy))
        load([made], target)[0]([got.array, given.array])
        want = given.array.reshape(rows, columns).T
        np.testing.assert_array_equal(got.array.reshape(want.shape), want, f"{rows} x {columns}")
        text = emit_routine(made, target)
        if rows % n or columns % n:
            assert not re.search(r"icmp|br i1", text[text.index("internal void @transpose") :]), (
                text
            )


def lookup(count: int, build: Any) -> Routine:
    """``y[v] = table[clamped o[v]]`` with a check at site 3."""
    o, table, y = Array("o", int64, count), Array("t", float32, 10), Array("y", float32, count)
    v = Var("v", 0, count - 1)
    pick = Load(o, v)
    clamped = E.maximum(E.minimum(pick, index(9)), index(0))
    body = build(v, count, Check(pick, index(10), 3), Store(y, v, Load(table, clamped)))
    return routine([o, table, y], [body])


@pytest.mark.parametrize("build", [vector, loop])
def test_check_records_the_first_bad_index(build: Any) -> None:
    call = load([lookup(37, build)])[0]
    table, out = np.arange(10, dtype=np.float32), np.zeros(37, np.float32)
    picks = np.arange(37) % 10
    assert call([picks, table, out]).tolist() == [0, 0, 0]
    np.testing.assert_array_equal(out, picks)
    for place, value in ((0, -1), (5, 10), (36, 1 << 40)):
        bad = picks.copy()
        bad[place] = value
        assert call([bad, table, out]).tolist() == [1, 3, value]
    bad[[2, 9]] = [-7, 99]
    assert call([bad, table, out]).tolist() == [1, 3, -7]


def test_tasks_sizes_shared_and_finish() -> None:
    """Two tasks each sum half into a shared array; the finish adds the parts."""
    n = Var("n", 0, 100)
    x, part, y = Array("x", float32, 100), Array("p", float32, 2), Array("y", float32, 1)
    r, v, k = Register("r", float32), Var("v", 0, 49), Var("k", 0, 1)
    value = Load(x, at(E.Mul(TASK, n), v))
    one = (
        Declare(r, ZERO),
        For(v, index(0), n, (Combine(r, (), SUM, value),), LoopKind.VECTOR, 1, 2),
        Store(part, TASK, Peek(r, ())),
    )
    parts = loop(k, 2, Combine(r, (), SUM, Load(part, k)))
    two = (Declare(r, ZERO), parts, Store(y, index(0), Peek(r, ())))
    call = load([Routine("s", (x, y), (n,), (), (part,), TASK, 2, one, two)])[0]
    assert call.code.stored.shared == (8,)
    values = np.arange(80, dtype=np.float32)
    out = np.zeros(1, np.float32)
    call([values, out], [40], task=1)
    assert out[0] == values[40:].sum()


def test_named_value_loops_and_steps() -> None:
    """``for t in 2 k + 1 .. 2 k + 2`` names a value; a loop may step."""
    y, k, t = Array("y", float64, 20), Var("k", 0, 18), Var("t", 1, 39)
    value = at(times(k, 2), 1)
    named = For(t, value, at(value, 1), (Store(y, k, E.Cast(t, float64)),))
    stepped = For(k, index(1), index(20), (named,), LoopKind.SEQ, 3)
    out = np.zeros(20)
    load([routine([y], [stepped])])[0]([out])
    wanted = np.zeros(20)
    wanted[1::3] = 2 * np.arange(1, 20, 3) + 1
    np.testing.assert_array_equal(out, wanted)


def test_register_misuse_is_refused() -> None:
    y, acc = Array("y", float32, 40), Register("acc", float32, (40,))
    v, k = Var("v", 0, 23), Var("k", 0, 3)
    shifted = vector(v, 24, Set(acc, (at(v, HOST.lanes(4) // 2),), ZERO))
    with pytest.raises(InvalidIR, match="lanes off a vector"):
        load([routine([y], [Declare(acc, ZERO), shifted])])
    with pytest.raises(InvalidIR, match="literal indices"):
        load([routine([y], [Declare(acc, ZERO), loop(k, 4, Store(y, k, Peek(acc, (k,))))])])


@pytest.mark.parametrize("kind", [int8, bfloat16], ids=str)
def test_a_single_narrowed_lane_stores_one_element(kind: DType) -> None:
    """Rows of 17: the last lane of a row must leave the first of the next alone."""
    source, target = Array("x", int32, 34), Array("y", kind, 34)
    row, j = Var("r", 0, 1), Var("j", 0, 16)
    at = E.Add(E.Mul(row, index(17)), j)
    back = E.Add(E.Add(index(17), E.Mul(row, index(-17))), j)
    line = vector(j, 17, Store(target, back, E.Cast(Load(source, at), kind)), unroll=1)
    code = load([routine([source, target], [loop(row, 2, line)])])[0]
    x = np.arange(34, dtype=np.int32)
    y = np.zeros(34, kind.numpy)
    code([x, y])
    np.testing.assert_array_equal(y.astype(np.int32), np.roll(x, 17))


def test_places_are_computed_in_the_loops_that_they_depend_on() -> None:
    """``x[700 a + 50 b + c]`` in three loops of few turns: one addition in the innermost."""
    x, y = Array("x", float32, 4200), Array("y", float32, 1)
    a, b, c = (Var(n, 0, 2) for n in "abc")
    total = Register("s", float32)
    place = at(times(TASK, 2100), c, times(b, 50), times(a, 700))
    inner: Stmt = Combine(total, (), SUM, Load(x, place))
    for var in (c, b, a):
        inner = loop(var, 3, inner)
    made = routine([x, y], [Declare(total, ZERO), inner, Store(y, index(0), Peek(total, ()))])
    text = emit_routine(made, HOST)
    block = text[: text.index(" = load float")].rsplit(":\n", 1)[1]
    assert "mul" not in block, block
    assert block.count("add i64") == 1, block
