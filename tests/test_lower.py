"""Lowered kernels give what their definitions mean, for odd sizes, tiles and tasks."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lower_support import HOST, agree, check, kernel, num, routine_of, run_native, stage, variable
from pullback.errors import IndexRangeError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import bfloat16, bool_, float32, float64, int32, int64
from pullback.ir.expr import Axis, Dim, Expr, Extent
from pullback.ir.graph import (
    MAX,
    MIN,
    PROD,
    SUM,
    Accumulate,
    Combiner,
    Definition,
    Scan,
    Variable,
    define,
    read,
)
from pullback.ir.kernel import Kernel
from pullback.ir.nest import For, Guard, LoopKind, Stmt, Transpose
from pullback.ir.statements import statements
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.lower.context import Context
from pullback.lower.kernel import closed, lower, opened
from pullback.lower.whole import scheduled
from pullback.schedule.text import schedule_text
from pullback.tensor.values.functions import gelu, silu

FEW = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def product_kernel(
    m: Extent, n: Extent, k: Extent, outer: tuple[int, ...], left: str, right: str, tail: bool
) -> Kernel:
    """``y = relu(scale * a b + bias)``, or the product alone."""
    a = variable("a", *((m, k) if left == "n" else (k, m)))
    b = variable("b", *((k, n) if right == "n" else (n, k)))
    bias, y = variable("bias", n), variable("y", m, n)

    def body(i: Axis, j: Axis, t: Axis) -> Expr:
        one = read(a, i, t) if left == "n" else read(a, t, i)
        other = read(b, t, j) if right == "n" else read(b, j, t)
        return E.Mul(E.Mul(one, other), num(0.5))

    z = define("z", (m, n), body, over=(k,))
    extents = tuple((m, n)[o] for o in outer)
    if not tail:
        return kernel(extents, stage(z, outer, y))
    out = define("out", (m, n), lambda i, j: F.relu(E.Add(read(z, i, j), read(bias, j))))
    return kernel(extents, stage(z, outer), stage(out, outer, y))


@pytest.mark.slow
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    k=st.integers(1, 40),
    outer=st.sampled_from([(), (0,), (1,), (0, 1), (1, 0)]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    tail=st.booleans(),
    data=st.data(),
)
@FEW
def test_products(
    m: int, n: int, k: int, outer: tuple[int, ...], layout: str, tail: bool, data: st.DataObject
) -> None:
    k_ = product_kernel(m, n, k, outer, layout[0], layout[1], tail)
    tile = tuple(data.draw(st.integers(1, (m, n)[o])) for o in outer)
    check(k_, tile, data.draw(st.integers(1, 4)))


@pytest.mark.parametrize("tile", [3, 8, 16])
@pytest.mark.parametrize("n", [50, 510])
def test_a_product_that_a_later_stage_reads_whole(n: int, tile: int) -> None:
    """The rows that a last tile has left over are known: they lie within its scratch."""
    a, b, y = variable("a", 33, 20), variable("b", n, 20), variable("y", 33)
    z = define("z", (33, n), lambda i, j, k: E.Mul(read(a, i, k), read(b, j, k)), over=(20,))
    t = define("t", (33, n), lambda i, j: F.relu(read(z, i, j)))
    s = define("s", (33,), lambda i, j: read(t, i, j), over=(n,))
    check(kernel((33,), stage(z, (0,)), stage(t, (0,)), stage(s, (0,), y)), (tile,))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_products_as_chosen(layout: str) -> None:
    check(product_kernel(37, 53, 19, (0,), layout[0], layout[1], True), scalar=True)


@pytest.mark.slow
def test_panels_are_packed_once_for_all_tiles() -> None:
    k = product_kernel(40, 64, 30, (0,), "n", "t", True)
    routine = check(k, (10,), 2, scalar=True)
    assert any(_contains(s, Transpose) for s in routine.body if not _tile_loop(s))
    assert not any(_contains(s, Transpose) for s in routine.body if _tile_loop(s))


def _tile_loop(s: Stmt) -> bool:
    return isinstance(s, For) and s.var.name.startswith("t")


def _contains(s: Stmt, kind: type) -> bool:
    if isinstance(s, kind):
        return True
    return isinstance(s, For | Guard) and any(_contains(b, kind) for b in s.body)


def test_few_rows_go_by_dot_products() -> None:
    k = product_kernel(2, 29, 33, (0,), "n", "t", True)
    routine = check(k, scalar=True)
    assert not any(_contains(s, Transpose) for s in routine.body)


@pytest.mark.slow
def test_a_product_of_expressions() -> None:
    x, g, w, y = (
        variable("x", 30, 20),
        variable("g", 20),
        variable("w", 40, 20),
        variable("y", 30, 40),
    )
    z = define(
        "z",
        (30, 40),
        lambda i, j, k: E.Mul(F.tanh(E.Mul(read(x, i, k), read(g, k))), E.Exp(read(w, j, k))),
        over=(20,),
    )
    check(kernel((30,), stage(z, (0,), y)), (8,), 2, scalar=True)


def test_batched_product_with_heads() -> None:
    q, k = variable("q", 3, 17, 4, 8), variable("k", 3, 17, 4, 8)
    y = variable("y", 3, 4, 17, 17)
    s = define(
        "s",
        (3, 4, 17, 17),
        lambda b, h, i, j, d: E.Mul(read(q, b, i, h, d), read(k, b, j, h, d)),
        over=(8,),
    )
    check(kernel((3, 4), stage(s, (0, 1), y)), (1, 1), 3)
    check(kernel((3, 17), stage(s, (0, 2), y)), (1, 5), 2)
    check(kernel((3,), stage(s, (0,), y)))


def test_a_product_reads_an_earlier_stage_and_reduces_over_two_axes() -> None:
    x, w, y = variable("x", 4, 9, 20), variable("w", 33, 20), variable("y", 33, 20)
    a = define("a", (4, 9, 33), lambda b, t, n: F.relu(read(w, n, E.FloorDiv(n, E.index(2)))))
    z = define(
        "z",
        (33, 20),
        lambda n, k, b, t: E.Mul(read(a, b, t, n), read(x, b, t, k)),
        over=(4, 9),
    )
    check(kernel((33,), stage(a, (2,)), stage(z, (0,), y)), (16,), 2)


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(1, 20)),
    order=st.sampled_from(list(permutations(range(3)))),
    over=st.integers(0, 3),
    combiner=st.sampled_from([SUM, MAX, MIN, PROD]),
    kind=st.sampled_from([float32, float64, int32, bfloat16]),
    data=st.data(),
)
@FEW
def test_sweeps(
    shape: tuple[int, int, int],
    order: tuple[int, ...],
    over: int,
    combiner: Combiner,
    kind: object,
    data: st.DataObject,
) -> None:
    """A permuted read, mapped or reduced over its last axes, with every outer axis and tile."""
    dtype = kind if kind in (float32, float64, int32) else bfloat16
    permuted = [0, 0, 0]
    for place, axis in enumerate(order):
        permuted[place] = shape[axis]
    x = variable("x", *permuted, kind=dtype)
    rank = 3 - over

    def body(*i: Axis) -> Expr:
        value = read(x, *(i[axis] for axis in order))
        small = E.Cast(E.Less(value, E.const(1, value.dtype)), value.dtype)
        return E.Add(value, small) if combiner is not PROD else small

    z = define("z", shape[:rank], body, over=shape[rank:], combiner=combiner)
    y = variable("y", *shape[:rank], kind=z.dtype)
    outer = data.draw(st.sampled_from([(), *((a,) for a in range(rank))]))
    tile = tuple(data.draw(st.integers(1, shape[a])) for a in outer)
    tolerance = 2e-2 if dtype is bfloat16 else 1e-4
    k = kernel(tuple(shape[a] for a in outer), stage(z, outer, y))
    check(k, tile, data.draw(st.integers(1, 3)), tolerance=tolerance)


def row_kernel(rows: Extent, columns: int) -> Kernel:
    """Softmax with a statistic stored."""
    x, y, top = variable("x", rows, columns), variable("y", rows, columns), variable("top", rows)
    m = define("m", (rows,), lambda i, k: read(x, i, k), over=(columns,), combiner=MAX)
    e = define("e", (rows, columns), lambda i, j: E.Exp(E.subtract(read(x, i, j), read(m, i))))
    s = define("s", (rows,), lambda i, k: read(e, i, k), over=(columns,))
    p = define("p", (rows, columns), lambda i, j: E.Div(read(e, i, j), read(s, i)))
    parts = stage(m, (0,), top), stage(e, (0,)), stage(s, (0,)), stage(p, (0,), y)
    return kernel((rows,), *parts)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 3), (7, 64), (2, 1000), (33, 17)])
def test_softmax(rows: int, columns: int) -> None:
    check(row_kernel(rows, columns), scalar=rows * columns < 500)
    check(row_kernel(rows, columns), (max(1, rows // 2),), 3)


def test_partials_and_finish() -> None:
    dy, w, y = variable("dy", 50, 20), variable("w", 20), variable("y", 50, 20)
    loss = variable("loss")
    t = define("t", (50, 20), lambda i, j: E.Mul(read(dy, i, j), num(3)))
    p = define("p", (20,), lambda j, i: read(t, i, j), over=(50,))
    square = define("l", (), lambda i, j: E.Mul(read(t, i, j), read(t, i, j)), over=(50, 20))
    u = define("u", (20,), lambda j: E.Add(read(w, j), E.Mul(read(p, j), num(0.1))))
    k = kernel(
        (50,),
        stage(t, (0,), y),
        stage(p, (1,)),
        stage(square, (0,), loss),
        finish=(stage(u, (None,), w),),
    )
    check(k, scalar=True)
    for tile, tasks in [((7,), 3), ((50,), 1), ((1,), 4)]:
        assert check(k, tile, tasks, scalar=True).tasks == min(tasks, -(-50 // tile[0]))


def test_a_partial_that_lacks_an_outer_axis_counts_once() -> None:
    x, y, total = variable("x", 6, 8), variable("y", 6, 8), variable("total", 8)
    s = define("s", (8,), lambda j, i: read(x, i, j), over=(6,))
    z = define("z", (6, 8), lambda i, j: E.Mul(read(x, i, j), num(2)))
    k = kernel((8, 6), stage(z, (1, 0), y), stage(s, (0, 1), total))
    check(k, (3, 2), 2, scalar=True)
    lone = define("lone", (), lambda i: read(x, i, E.index(1)), over=(6,))
    k = kernel((8, 6), stage(z, (1, 0), y), stage(lone, (None, 0), variable("one")))
    check(k, (3, 2), 2, scalar=True)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("combiner", [SUM, MAX])
def test_scans(axis: int, combiner: Combiner) -> None:
    x, y = variable("x", 9, 21), variable("y", 9, 21)
    body = E.Mul(read(x, Axis(0, 9), Axis(1, 21)), num(2))
    s = Definition("s", (9, 21), body, Scan(combiner, axis))
    other = 1 - axis
    check(kernel((), stage(s, (), y)), scalar=True)
    check(kernel(((9, 21)[other],), stage(s, (other,), y)), (4,), 3, scalar=True)


def test_rows_of_a_scan_run_abreast() -> None:
    x, y = variable("x", 11, 21), variable("y", 11, 21)
    s = Definition("s", (11, 21), read(x, Axis(0, 11), Axis(1, 21)), Scan(SUM, 1))
    routine = check(kernel((11,), stage(s, (0,), y)), (7,), 2, scalar=True)
    loops = [n for n in statements(routine.body) if isinstance(n, For)]
    assert [n.kind for n in loops].count(LoopKind.UNROLL) == 1


def test_accumulating_writes() -> None:
    tokens, g, w = variable("k", 40, kind=int32), variable("g", 40, 24), variable("w", 5, 24)
    t, d = Axis(0, 40), Axis(1, 24)
    at = (E.Cast(read(tokens, t), int64), d)
    a = Definition("a", (5, 24), read(g, t, d), Accumulate(SUM, (40, 24), at))
    check(kernel((), stage(a, (), w)), scalar=True)
    check(kernel((24,), stage(a, (1,), w)), (7,), 3, scalar=True)
    top = Definition("top", (5, 24), read(g, t, d), Accumulate(MAX, (40, 24), at))
    check(kernel((24,), stage(top, (1,), w)), scalar=True)


def gather(index_of: Expr) -> Kernel:
    table, y = variable("table", 5, 24), variable("y", 40, 24)
    z = define("z", (40, 24), lambda i, j: read(table, index_of, j))
    return kernel((40,), stage(z, (0,), y))


def test_data_indices_are_checked() -> None:
    tokens = variable("k", 40, kind=int32)
    k = gather(E.Cast(read(tokens, Axis(0, 40)), int64))
    routine = check(k, scalar=True)
    assert routine.sites == ("axis 0 of `table`, which has 5 elements",)
    bad = np.zeros(40, np.int32)
    bad[11] = 7
    with pytest.raises(IndexRangeError):
        agree(k, routine, {tokens: bad}, {}, False, True)
    arrays = {"k": bad, "table": np.zeros((5, 24), np.float32), "y": np.zeros((40, 24), np.float32)}
    error = run_native(routine, [arrays[v.name] for v in k.arguments])
    assert list(error) == [1, 0, 7]


def test_an_index_of_an_untaken_branch_is_not_checked() -> None:
    tokens, table = variable("k", 40, kind=int32), variable("table", 5)
    y = variable("y", 40)

    def body(i: Axis) -> Expr:
        at = E.Cast(read(tokens, i), int64)
        return E.If(E.Less(at, E.index(0)), num(-1), read(table, at))

    k = kernel((40,), stage(define("z", (40,), body), (0,), y))
    values = {tokens: np.array([-1, 0, 4, -9] * 10, np.int32)}
    check(k, values=values, scalar=True)


def test_guards_and_shifts() -> None:
    x, y = variable("x", 37), variable("y", 37)

    def body(i: Axis) -> Expr:
        inner = E.And(E.Less(E.index(0), i), E.Less(i, E.index(36)))
        left, right = read(x, E.Add(i, E.index(-1))), read(x, E.Add(i, E.index(1)))
        return E.If(inner, E.Add(left, right), num(0))

    check(kernel((37,), stage(define("z", (37,), body), (0,), y)), (10,), 2, scalar=True)


def test_joined_tensors_and_reshapes() -> None:
    """``concat(q, k)`` by heads: divided axes and thresholds meet every tile."""
    q, k = variable("q", 6, 2, 4), variable("k", 6, 2, 4)
    y = variable("y", 6, 16)

    def body(i: Axis, j: Axis) -> Expr:
        def at(x: Variable, shift: int) -> Expr:
            place = E.Add(j, E.index(-shift))
            four = E.index(4)
            return read(x, i, E.FloorDiv(place, four), E.Mod(place, four))

        first = E.Less(j, E.index(8))
        return E.Add(E.If(first, at(q, 0), num(0)), E.If(E.Xor(first, _TRUE), at(k, 8), num(0)))

    z = define("z", (6, 16), body)
    for outer, tile in [((0,), (4,)), ((1,), (4,)), ((1,), (3,)), ((1,), (16,)), ((0, 1), (2, 8))]:
        extents = tuple((6, 16)[o] for o in outer)
        check(kernel(extents, stage(z, outer, y)), tile, 2, scalar=True)


_TRUE = E.Const(True, bool_)


def test_updates_in_place() -> None:
    w, m, g = variable("w", 30), variable("m", 30), variable("g", 30)
    new_m = define("m'", (30,), lambda i: E.Add(E.Mul(read(m, i), num(0.9)), read(g, i)))
    new_w = define("w'", (30,), lambda i: E.Add(read(w, i), E.Mul(read(new_m, i), num(-0.1))))
    k = kernel((30,), stage(new_m, (0,), m), stage(new_w, (0,), w))
    routine = check(k, (30,), 1, scalar=True)
    assert len(routine.body) == 1, "the two updates share one loop"
    z = variable("z", 6, 6)
    turned = define("t", (6, 6), lambda i, j: read(z, j, i))
    check(kernel((), stage(turned, (), z)), scalar=True)
    tripled = define("a", (6, 6), lambda i, j: E.Mul(read(z, j, i), num(3)))
    later = define("b", (6, 6), lambda i, j: E.Add(read(tripled, i, j), read(z, i, j)))
    check(kernel((), stage(tripled, ()), stage(later, (), z)), scalar=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("left", ["n", "t"])
@pytest.mark.parametrize("right", ["n", "t"])
def test_symbolic_extents(left: str, right: str) -> None:
    n = Dim("n", 1, 40)
    kernels = [
        product_kernel(n, 24, 10, (0,), left, right, True),
        product_kernel(24, n, 10, (0,), left, right, True),
        product_kernel(24, 18, n, (0,), left, right, True),
    ]
    for k in kernels:
        _, routine = routine_of(k)
        for size in (1, 7, 16, 33, 40):
            agree(k, routine, None, {n: size}, size in (1, 33), size == 7)


def test_symbolic_rows_in_tiles() -> None:
    n = Dim("n", 1, 40)
    k = row_kernel(n, 13)
    _, routine = routine_of(k, (8,), 3)
    for size in (1, 8, 9, 40):
        agree(k, routine, None, {n: size}, True, True)


def test_vector_loops_do_not_nest() -> None:
    routines = [check(row_kernel(9, 20)), check(product_kernel(20, 30, 10, (0,), "n", "t", True))]

    def visit(s: Stmt, inside: bool) -> None:
        if isinstance(s, For | Guard):
            vector = isinstance(s, For) and s.kind is LoopKind.VECTOR
            assert not (vector and inside)
            for inner in s.body:
                visit(inner, inside or vector)

    for routine in routines:
        for s in routine.body:
            visit(s, False)


def test_lowering_is_a_function_of_kernel_and_schedule() -> None:
    """Nothing but the draft of one call changes: a second one gives the same, and so does one
    between which the first is half done.
    """
    kinds = {name: str(kind) for name, kind in Context.__annotations__.items()}
    assert not [n for n, k in kinds.items() if k.startswith(("list", "dict", "set"))], kinds
    for one in (row_kernel(9, 20), product_kernel(20, 30, 10, (0,), "n", "t", True)):
        schedule = scheduled(one, Target())
        before = schedule_text(schedule)
        first = show(lower(one, schedule))
        context, _, _ = opened(one, schedule)
        homes, starts = dict(context.homes), context.starts
        after, _ = closed(context)
        assert context.homes == homes and context.starts == starts and not after.starts
        with pytest.raises(FrozenInstanceError):
            context.starts = ()  # type: ignore[misc]
        assert show(lower(one, schedule)) == first
        assert schedule_text(schedule) == before


def test_native_functions_are_found() -> None:
    x, y = variable("x", 50), variable("y", 50)
    for function in (F.tanh, F.erf, F.sigmoid, F.relu, F.absolute, F.floor, gelu, silu):
        z = define("z", (50,), lambda i, f=function: f(read(x, i)))
        check(kernel((50,), stage(z, (0,), y)), scalar=True)
    assert HOST.vector in (16, 32, 64)
