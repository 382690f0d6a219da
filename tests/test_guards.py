"""Guards bound loops: what is masked is not executed, what is executed gives the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pullback as pb
from lower_support import HOST, check, kernel, num, routine_of, stage, variable
from pullback.backends.reference.work import Work, executed
from pullback.ir import expr as E
from pullback.ir.dtype import float32, int64
from pullback.ir.expr import Axis, Dim, Expr, Extent, index
from pullback.ir.graph import MAX, MIN, PROD, SUM, Combiner, Definition, define, read
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.nest import Var
from pullback.ir.node import walk
from pullback.lower import lower
from pullback.lower.guards import FALSE, TRUE, folded, replaced
from pullback.lower.whole import scheduled
from pullback.nn import functional as F
from pullback.schedule.regions import bounds_of

FEW = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
Condition = Callable[..., Expr]


def work(function: Callable[[], Any]) -> Work:
    """What the kernels of a function execute."""
    program = pb.jit(function)
    program()
    routines = [lower(k, scheduled(k, HOST)) for k in program.program.kernels]
    return sum((executed(r) for r in routines), Work())


def attention(length: int, causal: bool, backward: bool) -> Work:
    rng = np.random.default_rng(0)
    q, k, v, g = (
        pb.tensor(rng.standard_normal((1, 2, length, 32)).astype(np.float32)) for _ in range(4)
    )

    def run() -> Any:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return pb.grad((y * g).sum(), [q, k, v]) if backward else y

    return work(run)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("length", "share"), [(128, 0.6), (512, 0.53)])
def test_causal_attention_skips_tiles(length: int, share: float, backward: bool) -> None:
    causal, full = (attention(length, c, backward).multiply_adds for c in (True, False))
    products = 6 if backward else 2
    assert full >= products * 2 * length * length * 32
    assert 0.5 * full < causal <= share * full


def below(i: Expr, k: Expr) -> Expr:
    """``k <= i``"""
    return E.Less(k, E.Add(i, index(1)))


def near(i: Expr, k: Expr) -> Expr:
    """``|i - k| <= 5``"""
    gap = E.subtract(i, k)
    return E.Less(E.If(E.Less(gap, index(0)), E.negate(gap), gap), index(6))


def masked(
    n: Extent, m: Extent, condition: Condition, combiner: Combiner, columns: bool = False
) -> Kernel:
    """``y[i] = combine[k] if(condition(i, k), x[i, k], identity)``; `columns`: of ``x[k, i]``."""
    x = variable("x", *((m, n) if columns else (n, m)))
    y = variable("y", n)
    nothing = combiner.identity(float32)

    def body(i: Axis, k: Axis) -> Expr:
        value = read(x, k, i) if columns else read(x, i, k)
        return E.If(condition(i, k), value, nothing)

    return kernel((n,), stage(define("y", (n,), body, over=(m,), combiner=combiner), (0,), y))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("combiner", [SUM, MAX, MIN, PROD], ids=lambda c: c.name)
def test_triangular_reductions_execute_half(combiner: Combiner, columns: bool) -> None:
    routine = check(masked(128, 128, below, combiner, columns), scalar=True)
    assert 0.5 < executed(routine).terms / 128**2 < 0.6


def test_a_band_executes_its_width() -> None:
    routine = check(masked(100, 100, near, MAX), scalar=True)
    assert executed(routine).terms == sum(min(i, 5) + min(99 - i, 5) + 1 for i in range(100))


def test_an_equation_leaves_one_term() -> None:
    routine = check(masked(60, 60, lambda i, k: E.Equal(i, k), SUM), scalar=True)
    assert executed(routine).terms == 60


def test_a_guard_without_the_summed_axis_stands_outside_its_loop() -> None:
    def even(i: Expr, k: Expr) -> Expr:
        return E.Equal(E.Mod(i, index(2)), index(0))

    routine = check(masked(33, 40, even, SUM), scalar=True)
    assert executed(routine).terms == 17 * 40


def test_an_empty_range_is_the_identity() -> None:
    """Rows 0..9 have no term at all, the others lose their first and last ones."""

    def inner(i: Expr, k: Expr) -> Expr:
        low = E.Less(E.subtract(index(19), i), k)
        return E.And(low, E.Less(E.Add(k, index(9)), i))

    routine = check(masked(70, 50, inner, SUM), scalar=True)
    wanted = sum(max(0, min(50, i - 9) - max(0, 20 - i)) for i in range(70))
    assert executed(routine).terms == wanted


@pytest.mark.parametrize("turned", [False, True])
def test_reductions_in_one_loop_share_what_bounds_both(turned: bool) -> None:
    """``k == i`` implies ``k <= i``: the loop ends at i, and one of the two is still a guard."""
    x, n = variable("x", 20, 20), 20

    def total(name: str, condition: Condition) -> Definition:
        def body(i: Axis, k: Axis) -> Expr:
            return E.If(condition(i, k), read(x, i, k), num(0.0))

        return define(name, (n,), body, over=(n,))

    found = [total("y", below), total("z", lambda i, k: E.Equal(k, i))]
    stages = [stage(d, (0,), variable(f"out{d.name}", n)) for d in found]
    routine = check(kernel((n,), *reversed(stages) if turned else stages), scalar=True)
    assert executed(routine).terms == n * (n + 1)


@pytest.mark.slow
def test_a_table_is_computed_where_any_reader_looks() -> None:
    q, k = variable("q", 40, 16), variable("k", 70, 16)
    s = define("s", (40, 70), lambda i, j, e: E.Mul(read(q, i, e), read(k, j, e)), over=(16,))

    def kept(name: str, condition: Condition) -> Stage:
        def body(i: Axis, j: Axis) -> Expr:
            return E.If(condition(i, j), read(s, i, j), num(1.0))

        return stage(define(name, (40, 70), body), (), variable(f"out{name}", 40, 70))

    late = kept("late", lambda i, j: E.Less(i, E.Add(j, index(-9))))
    check(kernel((), stage(s, ()), kept("early", below), late), scalar=True)
    check(kernel((), stage(s, ()), late, kept("early", below)), scalar=True)


def test_data_do_not_bound_loops() -> None:
    length = variable("length", 8, kind=int64)
    condition = E.Less(Axis(1, 9), read(length, Axis(0, 8)))
    assert bounds_of(condition) == []
    both = E.And(condition, below(Axis(0, 8), Axis(1, 9)))
    assert [b.form.const for b in bounds_of(both)] == [0]
    assert bounds_of(both, False) == []


def random_condition(data: st.DataObject) -> Condition:
    """One to three affine bounds, or an equation."""
    forms = [
        (
            data.draw(st.integers(-2, 2)),
            data.draw(st.integers(-3, 3)),
            data.draw(st.integers(-9, 40)),
        )
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    kinds = [data.draw(st.sampled_from(["less", "not", "equal"])) for _ in forms]

    def condition(i: Expr, k: Expr) -> Expr:
        found: Expr = E.Const(True, E.Less(i, k).dtype)
        for (a, b, c), kind in zip(forms, kinds, strict=True):
            left = E.Add(E.Mul(i, index(a)), index(c))
            right = E.Mul(k, index(b))
            test: Expr = E.Equal(left, right) if kind == "equal" else E.Less(left, right)
            found = E.And(found, E.logical_not(test) if kind == "not" else test)
        return found

    return condition


@pytest.mark.slow
@given(
    n=st.integers(1, 70),
    m=st.integers(1, 70),
    combiner=st.sampled_from([SUM, MAX, MIN, PROD]),
    columns=st.booleans(),
    data=st.data(),
)
@FEW
def test_random_guards(n: int, m: int, combiner: Combiner, columns: bool, data: Any) -> None:
    k = masked(n, m, random_condition(data), combiner, columns)
    check(k, (data.draw(st.integers(1, n)),), data.draw(st.integers(1, 3)))


def table_kernel(
    n: Extent, m: Extent, d: int, condition: Condition, rows: bool, turned: bool
) -> Kernel:
    """Scores where `condition` holds, their masked values, and products with them; `turned`: a
    second table on its blocks, and its products both ways.
    """
    q, k, v, u = variable("q", n, d), variable("k", m, d), variable("v", m, d), variable("u", n, d)
    y, w, top = variable("y", n, d), variable("w", m, d), variable("top", n)
    lowest = E.lowest(float32)
    s = define("s", (n, m), lambda i, j, e: E.Mul(read(q, i, e), read(k, j, e)), over=(d,))
    t = define(
        "t",
        (n,),
        lambda i, j: E.If(condition(i, j), read(s, i, j), lowest),
        over=(m,),
        combiner=MAX,
    )
    p = define(
        "p",
        (n, m),
        lambda i, j: E.If(condition(i, j), E.Mul(read(s, i, j), num(0.5)), num(0.0)),
    )
    r = define("r", (n, m), lambda i, j, e: E.Mul(read(u, i, e), read(v, j, e)), over=(d,))
    z = define(
        "z",
        (n, m),
        lambda i, j: E.If(condition(i, j), E.Mul(read(r, i, j), read(p, i, j)), num(0.0)),
    )
    middle = z if turned else p
    mixed = define(
        "mixed", (n, d), lambda i, e, j: E.Mul(read(middle, i, j), read(v, j, e)), over=(m,)
    )
    back = define("back", (m, d), lambda j, e, i: E.Mul(read(u, i, e), read(z, i, j)), over=(n,))
    outer: tuple[int | None, ...] = (0,) if rows else ()
    stages = [stage(s, outer), stage(t, outer, top), stage(p, outer), stage(mixed, outer, y)]
    if turned:
        stages = [stage(x, ()) for x in (s, p, r, z)]
        stages += [stage(mixed, (), y), stage(back, (), w)]
    return kernel((n,) if rows and not turned else (), *stages)


@pytest.mark.slow
@given(
    n=st.integers(1, 70),
    m=st.integers(1, 70),
    d=st.sampled_from([1, 3, 16, 20]),
    rows=st.booleans(),
    turned=st.booleans(),
    data=st.data(),
)
@FEW
def test_random_tables(n: int, m: int, d: int, rows: bool, turned: bool, data: Any) -> None:
    k = table_kernel(n, m, d, random_condition(data), rows, turned)
    tile = (data.draw(st.integers(1, n)),) if k.outer else ()
    check(k, tile, data.draw(st.integers(1, 3)))


def test_what_never_runs_is_no_access_outside() -> None:
    """A short last tile, whose rows are the only ones with a term in the last column."""
    check(table_kernel(18, 33, 3, lambda i, j: E.Less(j, i), True, False), (17,))
    never = masked(20, 30, lambda i, j: E.Less(E.Add(i, j), index(0)), SUM, True)
    routine = check(never, (7,), scalar=True)
    assert executed(routine).terms == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("condition", [below, near])
def test_tables_in_the_interpreter(condition: Condition, turned: bool) -> None:
    """Nothing that was skipped is read: scratch starts as NaN there."""
    k = table_kernel(29, 75, 5, condition, True, turned)
    routine = check(k, scalar=True)
    _, full = routine_of(table_kernel(29, 75, 5, lambda i, j: E.Less(i, index(99)), True, turned))
    assert executed(routine).multiply_adds < 0.95 * executed(full).multiply_adds


@pytest.mark.parametrize("size", [1, 5, 33, 64])
def test_symbolic_extents(size: int) -> None:
    n = Dim("n", 1, 64)
    few = size < 20
    check(masked(n, n, below, SUM), sizes={n: size}, scalar=True)
    check(masked(n, n, near, MAX, True), sizes={n: size}, scalar=True)
    check(table_kernel(n, n, 16, below, True, False), sizes={n: size}, scalar=few)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_the_adjoint_of_a_convolution_runs_over_what_exists(stride: int, dilation: int) -> None:
    n, taps = 64, 9
    size = (n - (taps - 1) * dilation - 1) // stride + 1
    rng = np.random.default_rng(1)
    x, w, g = (rng.standard_normal(s).astype(np.float32) for s in (n, taps, size))
    t = pb.axis(taps)

    a, b, c = pb.tensor(x), pb.tensor(w), pb.tensor(g)

    def run() -> Any:
        y = pb.compute((size,), lambda i: pb.sum(a[i * stride + t * dilation] * b[t], over=t))
        return pb.grad((y * c).sum(), a)

    wanted = np.zeros(n)
    for i in range(size):
        for k in range(taps):
            wanted[i * stride + k * dilation] += float(g[i]) * float(w[k])
    np.testing.assert_allclose(run().numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert work(run).terms <= 1.8 * size * taps


def test_a_fully_masked_row_is_zero() -> None:
    rng = np.random.default_rng(2)
    q, k, v, g = (
        pb.tensor(rng.standard_normal((1, 2, 40, 8)).astype(np.float32)) for _ in range(4)
    )
    allowed = np.ones((40, 40), bool)
    allowed[:3] = False
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=pb.tensor(allowed), is_causal=False)
    grads = [a.numpy() for a in pb.grad((y * g).sum(), [q, k, v])]
    assert not np.any(y.numpy()[:, :, :3])
    assert not np.any(grads[0][:, :, :3])
    assert all(np.isfinite(a).all() for a in grads)


def test_work_is_counted_from_bounds() -> None:
    _, routine = routine_of(masked(16, 16, lambda i, k: E.Less(i, index(99)), SUM), (4,), 2)
    assert executed(routine).terms == 256
    assert executed(routine).stores == 16


def test_a_condition_on_a_quotient_is_the_same_for_all_of_a_block() -> None:
    """``(64 a + b) // 192 < 1`` of ``0 <= b < 64`` is one on `a`."""
    a, b = Var("a", 0, 8), Var("b", 0, 63)
    block = E.FloorDiv(E.Add(E.Mul(a, index(64)), b), index(192))
    condition = folded(E.Less(block, index(1)))
    assert b not in set(walk(condition)), f"{condition}"
    assert folded(E.Less(block, index(3))) is TRUE
    for value in range(9):
        assert replaced(condition, {a: index(value)}) is (TRUE if value < 3 else FALSE)
