"""A carry goes to a body that takes it, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError


@pytest.mark.parametrize("body", [lambda: None, lambda c: c * 2.0, lambda i, c=None: c])
@pytest.mark.parametrize("traced", [False, True])
def test_a_carry_that_no_argument_takes(body: Any, traced: bool) -> None:
    def run(x: pb.Tensor) -> Any:
        return pb.loop(3, body, x)

    with pytest.raises(ArgumentError) as raised:
        (pb.jit(run) if traced else run)(pb.tensor(1.0))
    assert raised.value.code == "E405"


@pytest.mark.parametrize("traced", [False, True])
def test_a_body_of_any_arguments_takes_the_carry(traced: bool) -> None:
    def run(x: pb.Tensor) -> Any:
        return pb.loop(3, lambda *given: given[1] * 2.0, x)

    assert float((pb.jit(run) if traced else run)(pb.tensor(1.0))) == 8.0
