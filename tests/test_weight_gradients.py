"""Gradients of convolutions' weights: panels where several places of a window share them."""

from __future__ import annotations

import pytest

from lower_support import HOST, ZEN5, agree, kernel, stage, variable
from pullback.ir import expr as E
from pullback.ir.graph import define, read
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Declare, For, LoopKind
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Way
from test_few_rows import all_of


def weight(outputs: int, inputs: int, side: int, outer: int) -> Kernel:
    """``dw[o, c, k, l] = sum[n, p, q] dy[n, o, p, q] * x[n, c, p + k, q + l]``, one axis outer."""
    dy = variable("dy", 2, outputs, side, side)
    x = variable("x", 2, inputs, side + 2, side + 2)
    w = variable("w", outputs, inputs, 3, 3)
    z = define(
        "z", w.shape,
        lambda o, c, k, l, n, p, q: E.Mul(
            read(dy, n, o, p, q), read(x, n, c, E.Add(p, k), E.Add(q, l))
        ),
        over=(2, side, side),
    )  # fmt: skip
    return kernel((w.shape[outer],), stage(z, (outer,), w))


def dots(one: Kernel) -> int:
    """The rows of a tile up to which it goes by dot products."""
    product = choose(one, ZEN5).steps[0].product
    assert product is not None
    return product.dots


def test_places_of_a_window_share_a_panel() -> None:
    """Of `dy` a panel serves nine places of each channel: eight channels are not few rows."""
    assert dots(weight(16, 16, 64, outer=1)) == 0


def test_half_a_vector_of_columns_is_no_panel() -> None:
    """The eight outputs are the columns of dot products, four channels at a time."""
    plan = choose(weight(8, 8, 64, outer=1), ZEN5)
    assert plan.steps[0].way is Way.DOTS
    assert plan.tile == (4,)


def test_an_operand_is_as_far_as_its_own_bytes() -> None:
    """Windows read nine times what there is, and it lies in the second-level cache."""
    assert dots(weight(16, 24, 64, outer=0)) < 16


@pytest.mark.parametrize("outer", [0, 1])
@pytest.mark.parametrize("outputs", [3, 16])
def test_sums(outputs: int, outer: int) -> None:
    one = weight(outputs, 5, 33, outer)
    agree(
        one, lower(one, scheduled(one, HOST)), None, {}, native=True, scalar=False, tolerance=1e-3
    )


@pytest.mark.parametrize("side", [32, 33, 40])
def test_lanes_are_added_up_once_a_sum(side: int) -> None:
    """Not once a row of the picture: loops over rows stand inside of those over lanes."""
    one = weight(3, 5, side, 0)
    plan = scheduled(one, HOST)
    assert plan.steps[0].way is Way.DOTS
    nest = lower(one, plan)
    lanes = [s for s in all_of(nest.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    around = [s for s in lanes if any(b.kind is LoopKind.SEQ for b in s.body if isinstance(b, For))]
    pieces = 1 if side % 16 == 0 else 2
    assert len(around) % pieces == 0
    assert around
    added = [s for s in lanes if not around.count(s)]
    assert not any(isinstance(s, Declare) for a in added for s in a.body)
    agree(one, nest, None, {}, native=True, scalar=False, tolerance=1e-3)
