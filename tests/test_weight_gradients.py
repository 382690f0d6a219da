"""Gradients of convolutions' weights: panels where several places of a window share them."""

from __future__ import annotations

import pytest

from lower_support import HOST, agree, kernel, stage, variable
from pullback.ir import expr as E
from pullback.ir.graph import define, read
from pullback.ir.kernel import Kernel
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Way


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
    product = choose(one, HOST).steps[0].product
    assert product is not None
    return product.dots


def test_places_of_a_window_share_a_panel() -> None:
    """Of `dy` a panel serves nine places of each channel: eight channels are not few rows."""
    assert dots(weight(16, 16, 64, outer=1)) == 0


def test_half_a_vector_of_columns_is_no_panel() -> None:
    step = choose(weight(8, 8, 64, outer=1), HOST).steps[0]
    assert step.way is Way.DOTS


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
