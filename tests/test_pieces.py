"""Loops are cut where a test or a quotient changes: both sides, neither computed twice."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lower_support import HOST, check, kernel, num, stage, variable
from pullback.ir import expr as E
from pullback.ir.dtype import bool_
from pullback.ir.expr import Axis, Expr, index
from pullback.ir.graph import Definition, define, read
from pullback.ir.nest import For, LoopKind
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements
from pullback.lower.pieces import MOST_PIECES, pieces

WIDTH = HOST.lanes(4)
J = Axis(1, 200)


def less(left: Expr, right: Expr) -> Expr:
    return E.Less(left, right)


TESTS = [
    less(J, index(64)),
    less(index(15), J),
    less(E.Add(E.Mul(J, index(2)), index(1)), index(100)),
    less(index(7), E.Mul(J, index(3))),
    less(E.Mul(J, index(-3)), index(-90)),
    less(index(-101), E.Mul(J, index(-2))),
]


@pytest.mark.parametrize("number", range(len(TESTS)))
def test_what_is_known_is_so(number: int) -> None:
    test = TESTS[number]
    assert isinstance(test, E.Less)
    found = pieces([test], J, 1)
    assert [p.first for p in found[1:]] == [p.end for p in found[:-1]] and len(found) == 2
    for piece in found:
        for j in range(piece.first, piece.end):
            left, right = (_at(side, j) for side in (test.left, test.right))
            assert piece.known[test] is E.const(left < right, bool_), (j, left, right)


def _at(e: Expr, j: int) -> int:
    """A small affine expression at `j`."""
    if isinstance(e, Axis):
        return j
    if isinstance(e, E.Const):
        return int(e.value)
    assert isinstance(e, E.Add | E.Mul | E.FloorDiv | E.Mod)
    return int(OF_PYTHON[type(e)](_at(e.left, j), _at(e.right, j)))


OF_PYTHON = {
    E.Add: operator.add,
    E.Mul: operator.mul,
    E.FloorDiv: operator.floordiv,
    E.Mod: operator.mod,
}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from((E.FloorDiv, E.Mod)),
    st.sampled_from((1, -1)),
    st.integers(-700, 700),
    st.integers(1, 300),
)
def test_a_quotient_is_what_it_is_known_to_be(
    kind: type[E.Mod], factor: int, const: int, divisor: int
) -> None:
    node = kind(E.Add(E.Mul(J, index(factor)), index(const)), index(divisor))
    cut = pieces([node], J, 2)
    assert [p.first for p in cut[1:]] == [p.end for p in cut[:-1]]
    assert len(cut) == 1 or all(node in piece.known for piece in cut)
    for piece in cut:
        for j in range(piece.first, piece.end):
            assert _at(piece.known.get(node, node), j) == _at(node, j), (j, piece)


def test_a_quotient_is_left_that_a_test_asks_for() -> None:
    """Else what the test excludes, ``x[j // 4 - 1]`` under ``j // 4 > 0``, stood undecided."""
    quotient = E.FloorDiv(J, index(100))
    assert len(pieces([quotient], J, 16)) == 2
    assert len(pieces([quotient, E.Equal(quotient, index(1))], J, 16)) == 1
    assert len(pieces([quotient], J, 1)) == 1, "without lanes it costs one instruction"


def test_pieces_are_few_more_vectors() -> None:
    near = [less(J, index(n)) for n in (3, 64, 70, 198)]
    cuts = [(0, 3), (3, 64), (64, 70), (70, 200)]
    assert [(p.first, p.end) for p in pieces(near, J, 16)] == cuts
    many = [less(J, index(n)) for n in range(20, 200, 20)]
    assert len(pieces(many, J, 16)) == MOST_PIECES
    assert len(pieces([less(Axis(0, 9), J)], J, 16)) == 1
    short = Axis(1, 16)
    assert len(pieces([less(short, index(3))], short, 16)) == 1, "two vectors for one"


def joined(*widths: int) -> Definition:
    """``y[i, j] = exp(x0[i, j]) | 2 * x1[i, j - w0] | ..``, side by side."""
    wide = sum(widths)

    def made(i: Axis, j: Axis) -> Expr:
        found: Expr = num(0.0)
        start = wide
        for n, width in reversed(list(enumerate(widths))):
            start -= width
            one = read(variable(f"x{n}", 5, width), i, E.Add(j, index(-start)))
            value = E.Exp(one) if n % 2 == 0 else E.Mul(one, num(2.0))
            last = n == len(widths) - 1
            found = value if last else E.If(less(j, index(start + width)), value, found)
        return found

    return define("y", (5, wide), made)


def test_no_lane_computes_both_sides() -> None:
    made = joined(4 * WIDTH, 2 * WIDTH, 3 * WIDTH)
    y = variable("y", 5, 9 * WIDTH)
    routine = check(kernel((5,), stage(made, (0, None), y)))
    loops = [s for s in statements(routine.body) if isinstance(s, For)]
    lanes = [s for s in loops if s.kind is LoopKind.VECTOR]
    assert len(lanes) == 3
    for loop in lanes:
        nodes = [n for s in statements(loop.body) for n in walk(roots(s))]
        assert not any(isinstance(n, E.If) for n in nodes)


def stacked(axis: int, *parts: int) -> Definition:
    """``concat(x0, 2 * x1, ..)`` along an axis of ``[5, 7, 3]``, whose lanes are the last."""
    shape = [5, 7, 3]
    shape[axis] = sum(parts)

    def made(*place: Axis) -> Expr:
        value: Expr = num(0.0)
        end = shape[axis]
        for n, part in reversed(list(enumerate(parts))):
            own = list[Expr](place)
            own[axis] = E.Add(place[axis], index(part - end))
            one = E.Mul(
                read(variable(f"x{n}", *shape[:axis], part, *shape[axis + 1 :]), *own), num(n + 1.0)
            )
            value = one if n == len(parts) - 1 else E.If(less(place[axis], index(end)), one, value)
            end -= part
        return value

    return define("y", tuple(shape), made)


@pytest.mark.parametrize("tile", [1, 2, 3, 20])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_of_any_axis(axis: int, tile: int) -> None:
    """Tiles have parts of a part, or none; where they have one coordinate, tests stay."""
    made = stacked(axis, 4, 9, 2)
    own = kernel((made.shape[0],), stage(made, (0, None, None), variable("y", *made.shape)))
    check(own, tile=(min(tile, made.shape[0]),))


def test_loops_of_a_part_are_one() -> None:
    """``concat`` of ``[5, 4, 3]`` and ``[5, 9, 3]``: 12 and 27 elements of each row in lanes."""
    made = stacked(1, 4, 9)
    routine = check(kernel((5,), stage(made, (0, None, None), variable("y", *made.shape))))
    loops = [s for s in statements(routine.body) if isinstance(s, For)]
    lanes = [s for s in loops if s.kind is LoopKind.VECTOR]
    assert [(s.lo, s.hi) for s in lanes] == [(index(0), index(12)), (index(12), index(39))]


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5 * WIDTH), min_size=2, max_size=6))
def test_any_widths(widths: list[int]) -> None:
    made = joined(*widths)
    check(kernel((5,), stage(made, (0, None), variable("y", 5, sum(widths)))))


def test_gates_that_read_each_other() -> None:
    """A GRU's adjoint: parts of a row, one of which is computed from a row before."""
    import pullback as pb

    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((3, 64)).astype(np.float32) for _ in range(2))

    def f(a: pb.Tensor, b: pb.Tensor) -> pb.Tensor:
        both = pb.concat([pb.tanh(a), pb.sigmoid(b)], axis=1)
        return (both * both).sum()

    da, db = pb.jit(lambda a, b: pb.grad(f(a, b), [a, b]))(pb.tensor(a), pb.tensor(b))
    t, s = np.tanh(a), 1 / (1 + np.exp(-b))
    assert np.allclose(da.numpy(), 2 * t * (1 - t * t), atol=1e-5)
    assert np.allclose(db.numpy(), 2 * s * s * (1 - s), atol=1e-5)
