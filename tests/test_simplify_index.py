"""Index laws by brute force: bounds hold, proofs are right, quotients and remainders collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expressions import AXES, BOX, DATA, conditions, numbers, same, values
from pullback.algebra.affine import affine, to_expr
from pullback.algebra.bounds import bounds, in_bounds, prove
from pullback.backends.reference.definitions import Evaluator
from pullback.ir import expr as E
from pullback.ir.dtype import float32, int64
from pullback.ir.expr import Axis, Dim, Expr, Size, index, logical_not
from pullback.ir.graph import Variable, read
from pullback.ir.nest import Var
from pullback.ir.node import walk
from pullback.simplify.guards import contexts
from pullback.simplify.rules import simplify

I, J, K = AXES
LO, HI = int64.range()


def unravel(shape: Sequence[int], flat: Expr) -> list[Expr]:
    found: list[Expr] = []
    inner = 1
    for extent in reversed(shape):
        found.insert(0, E.Mod(E.FloorDiv(flat, index(inner)), index(extent)))
        inner *= extent
    return found


def ravel(shape: Sequence[int], at: Sequence[Expr]) -> Expr:
    flat: Expr = index(0)
    for extent, e in zip(shape, at, strict=True):
        flat = E.Add(E.Mul(flat, index(extent)), e)
    return flat


def axes_of(shape: Sequence[int]) -> list[Expr]:
    return [Axis(n, e) for n, e in enumerate(shape)]


def through(*shapes: Sequence[int]) -> list[Expr]:
    """Where the last shape's elements lie in the first after reshapes."""
    at = axes_of(shapes[-1])
    for source, target in zip(reversed(shapes[:-1]), reversed(shapes[1:]), strict=True):
        at = unravel(source, ravel(target, at))
    return at


def at_all(e: Expr, shape: Sequence[int]) -> np.ndarray:
    return Evaluator([(0, n) for n in shape], {}, {}).values([e])[0]


SHAPES = {
    24: [(24,), (2, 12), (4, 6), (6, 4), (2, 3, 4), (4, 3, 2), (3, 8), (2, 2, 6), (1, 24),
         (4, 1, 6)],
    50: [(50,), (2, 5, 5), (10, 5), (5, 10), (25, 2)],
}  # fmt: skip


@pytest.mark.parametrize("size", SHAPES)
def test_reshape_there_and_back_is_the_identity(size: int) -> None:
    for shape in SHAPES[size]:
        for middle in SHAPES[size]:
            found = [simplify(e) for e in through(shape, middle, shape)]
            for e, axis, extent in zip(found, axes_of(shape), shape, strict=True):
                assert e is axis or (extent == 1 and e is index(0)), (shape, middle, e)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", SHAPES)
def test_reshapes_keep_their_meaning(size: int) -> None:
    for shape in SHAPES[size]:
        for middle in SHAPES[size]:
            for last in SHAPES[size][::3]:
                for e in through(shape, middle, last):
                    assert (at_all(simplify(e), last) == at_all(e, last)).all()


def test_merged_and_split_axes_need_no_division_left_over() -> None:
    """(b, t, h*d) -> (b, t, h, d) -> swapped -> back."""
    b, t, h, d = 2, 3, 4, 5
    i, j, k = axes_of((b, t, h * d))
    split = [i, j, E.FloorDiv(k, index(d)), E.Mod(k, index(d))]
    back = ravel((b, t, h, d), split)
    assert simplify(back) is simplify(ravel((b, t, h * d), [i, j, k]))


def test_quotients_and_remainders_of_two_axes() -> None:
    """``(a*i + j + o) // b`` and ``% b`` for all small a, b, o and extents of j."""
    for extent in range(1, 8):
        box = (3, extent)
        i, j = axes_of(box)
        for a in range(-4, 7):
            for b in range(1, 7):
                e = E.Add(E.Add(E.Mul(i, index(a)), j), index(a % 3 - 1))
                for root in (E.FloorDiv(e, index(b)), E.Mod(e, index(b))):
                    assert (at_all(simplify(root), box) == at_all(root, box)).all(), root


@pytest.mark.parametrize("outer", [E.FloorDiv, E.Mod])
@pytest.mark.parametrize("inner", [E.FloorDiv, E.Mod])
def test_nested_quotients_and_remainders(
    outer: type[E.FloorDiv | E.Mod], inner: type[E.FloorDiv | E.Mod]
) -> None:
    box = (37, 2)
    i, j = axes_of(box)
    for a in range(1, 10):
        for b in range(1, 10):
            part = inner(i, index(a))
            for e in (part, E.Add(part, j), E.Add(E.Mul(part, index(3)), index(5))):
                root = outer(e, index(b))
                assert (at_all(simplify(root), box) == at_all(root, box)).all(), root


@settings(max_examples=300, deadline=None)
@given(numbers())
def test_index_arithmetic(e: Expr) -> None:
    found = simplify(e)
    assert same(found, e)
    assert simplify(found) is found


@settings(max_examples=200, deadline=None)
@given(numbers())
def test_bounds_contain_every_value(e: Expr) -> None:
    lo, hi = bounds(e)
    every = values(e)
    assert lo <= every.min() and every.max() <= hi


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(numbers(), st.lists(conditions(), min_size=1, max_size=3))
def test_bounds_under_guards(e: Expr, guards: list[Expr]) -> None:
    held = np.logical_and.reduce([values(g) for g in guards])
    if held.any():
        lo, hi = bounds(e, guards)
        every = values(e)[held]
        assert lo <= every.min() and every.max() <= hi


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(conditions(), st.lists(conditions(), max_size=2))
def test_proofs_are_right(condition: Expr, guards: list[Expr]) -> None:
    held = np.logical_and.reduce([np.ones(BOX, bool), *(values(g) for g in guards)])
    proved = prove(condition, guards)
    if proved is not None:
        assert (values(condition)[held] == proved).all()


@settings(max_examples=200, deadline=None)
@given(numbers())
def test_affine_round_trip(e: Expr) -> None:
    form = affine(e)
    assert same(to_expr(form), e)
    assert affine(to_expr(form)) == form


@pytest.mark.parametrize(
    ("e", "want"),
    [
        (E.FloorDiv(E.Add(E.Mul(I, index(4)), J), index(8)), (0, 1)),
        (E.Mod(E.Add(I, index(5)), index(4)), (1, 3)),
        (E.Mod(I, index(9)), (0, 2)),
        (E.maximum(I, index(1)), (1, 2)),
        (E.minimum(E.maximum(read(DATA[int64], I, J), index(0)), index(9)), (0, 9)),
        (E.Cast(read(DATA[float32], I, J), int64), (LO, HI)),
        (E.Add(read(DATA[int64], I, J), index(1)), (LO, HI)),
        (Var("t", 3, 9), (3, 9)),
        (Size(Dim("n", 2, 5)), (2, 5)),
        (Axis(0, Dim("n", 2, 5)), (0, 4)),
        (E.Mod(I, index(0)), (0, 0)),
    ],
)
def test_bounds_of(e: Expr, want: tuple[int, int]) -> None:
    assert bounds(e) == want


def test_facts_about_a_dividend_bound_its_quotient() -> None:
    i = Var("i", 0, 4)
    half = E.FloorDiv(i, index(2))
    assert prove(E.Less(half, index(2)), [E.Less(i, index(4))]) is True
    assert prove(E.Less(half, index(2)), [E.Less(i, index(5))]) is None


def test_data_that_may_wrap_proves_nothing() -> None:
    x = read(DATA[int64], I, J)
    more = E.Add(x, index(1))
    assert prove(E.Less(x, more)) is None
    assert prove(E.Less(x, more), [E.Less(x, index(100)), E.Less(index(0), x)]) is True
    assert simplify(E.FloorDiv(E.Mul(x, index(4)), index(4))) is not x
    assert same(simplify(E.Less(x, more)), E.Less(x, more))


def test_symbolic_extents() -> None:
    n = Dim("n", 1, 64)
    i = Axis(0, n)
    assert prove(E.Less(i, Size(n))) is True
    last = E.Add(E.Mul(i, index(4)), E.Mod(J, index(4)))
    assert prove(E.Less(last, E.Mul(Size(n), index(4)))) is True
    assert prove(E.Less(E.Add(i, index(1)), Size(n))) is None
    flipped = E.Add(E.Add(Size(n), index(-1)), E.negate(i))
    assert in_bounds(read(Variable("x", (n,), float32), flipped)) == (True,)


def test_in_bounds_of_a_padded_read() -> None:
    x = Variable("x", (8, 8), float32)
    i, j = Axis(0, 10), Axis(1, 10)
    take = read(x, E.Add(i, index(-1)), E.Add(j, index(-1)))
    first = E.And(E.Less(index(0), i), E.Less(i, index(9)))
    assert in_bounds(take, (first,)) == (True, False)
    second = E.And(E.Less(index(0), j), E.Less(j, index(9)))
    assert in_bounds(take, (first, second)) == (True, True)


def test_contexts_keep_each_way_to_a_read() -> None:
    c, d = E.Less(I, J), E.Less(J, K)
    x = read(DATA[float32], I, J)
    e = E.If(c, x, E.If(d, x, E.const(0, float32)))
    assert contexts((e,))[x] == ((c,), (logical_not(c), d))


def test_unit_axes_vanish_from_sums_and_stay_alone() -> None:
    u = Axis(1, 1)
    assert simplify(E.Add(I, u)) is I
    assert simplify(u) is u


def test_deep_padding_becomes_one_guard() -> None:
    depth = 40
    e: Expr = Axis(0, 200)
    guards: list[Expr] = []
    for n in range(depth):
        guards.append(E.And(E.Less(index(0), e), E.Less(e, index(199 - 2 * n))))
        e = E.Add(e, index(-1))
    body: Expr = read(Variable("x", (200 - 2 * depth,), float32), e)
    for guard in reversed(guards):
        body = E.If(guard, body, E.const(0, float32))
    assert sum(1 for _ in walk(simplify(body))) < 14
    assert math.prod(BOX) == 24


def test_a_repr_ends_soon() -> None:
    """One node may be reached by exponentially many paths."""
    value = AXES[0]
    for _ in range(60):
        value = E.Add(value, value)
    assert len(repr(value)) < 5000
    assert repr(E.Add(AXES[0], AXES[1])).startswith("Add(Axis(")
