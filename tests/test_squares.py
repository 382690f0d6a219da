"""Maps that turn rows into columns go in squares: few lines at a time, and all of each."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import pullback as pb
from lower_support import HOST, check, kernel, stage, variable
from pullback.backends.nests.ranges import lowered
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr
from pullback.ir.graph import define, read
from pullback.ir.nest import For, LoopKind, Routine
from pullback.ir.statements import statements

WIDTH = HOST.lanes(4)


def turned(rows: int, columns: int, tile: int | None = None) -> Routine:
    """The nest of ``y[i, k] = x[k, i] * x[k, i]``."""
    x = variable("x", columns, rows)

    def square(i: Axis, k: Axis) -> Expr:
        return E.Mul(read(x, k, i), read(x, k, i))

    made = define("y", (rows, columns), square)
    own = kernel((rows,), stage(made, (0, None), variable("y", rows, columns)))
    return check(own, tile=None if tile is None else (tile,))


def loops(routine: Routine) -> list[For]:
    return [s for s in statements(routine.body) if isinstance(s, For)]


@pytest.mark.parametrize("columns", [1, WIDTH, 2 * WIDTH, 2 * WIDTH + 1, 5 * WIDTH - 1])
@pytest.mark.parametrize("rows", [2, 16, 35])
@pytest.mark.parametrize("tile", [None, 1, 17])
def test_any_rows_and_columns(rows: int, columns: int, tile: int | None) -> None:
    turned(rows, columns, None if tile is None else min(tile, rows))


def test_lanes_are_innermost_around_whole_lines() -> None:
    """Vectors outermost, 16 elements of 4 bytes around one: each line is touched in one go."""
    nest = loops(turned(64, 64))
    assert nest[-1].kind is LoopKind.VECTOR
    assert [s.var.hi + 1 for s in nest if s.var.name[0] in "cg"] == [64 // WIDTH, 4]


def test_what_is_picked_by_data_is_in_squares_too() -> None:
    x = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
    compiled = pb.jit(lambda x: pb.nn.functional.relu(pb.permute_dims(x, (1, 0))))
    assert np.array_equal(compiled(x).numpy(), np.maximum(x.T, 0))
    chosen = pb.schedule(compiled, x)
    assert any(s.var.name[0] == "c" for s in loops(lowered(chosen.kernel, chosen.schedule)))


def test_rows_stay_rows() -> None:
    """What lanes read along lines has no squares."""
    x = variable("x", 40, 64)
    made = define("y", (40, 64), lambda i, k: E.Mul(read(x, i, k), read(x, i, k)))
    routine = check(kernel((40,), stage(made, (0, None), variable("y", 40, 64))))
    assert not any(s.var.name[0] in "cg" for s in loops(routine))


@pytest.mark.parametrize(
    "shape", [(7, 30, 33), (3, 129, 65), (9, 20, 5, 17), (64, 64), (0, 40, 40)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bfloat16"])
def test_permutations(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = pb.tensor(rng.integers(-50, 50, shape)).astype(dtype)
    want = x.numpy()

    for order in itertools.permutations(range(len(shape))):

        def moved(x: Any, order: tuple[int, ...] = order) -> Any:
            return pb.permute_dims(x, order) + pb.permute_dims(x, order)

        got = pb.jit(moved)(x).numpy()
        both = want.transpose(order)
        np.testing.assert_array_equal(got, both + both, err_msg=f"{shape} {order}")
