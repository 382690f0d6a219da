"""An index that is data is checked against what the user read, however that is fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import IndexRangeError

VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "a head": lambda x: x[:3],
    "a tail": lambda x: x[2:],
    "a head of a tail": lambda x: x[1:][:3],
    "a map of a head": lambda x: x[:3] * 2.0,
    "between zeros": lambda x: pb.pad(x, ((1, 1),)),
    "every second": lambda x: x[::2],
    "turned round": lambda x: pb.flip(x),
    "a branch": lambda x: pb.where(x > 2.0, x, 0.0)[:4],
    "a column": lambda x: x.reshape(2, 3)[:, 0],
    "rows": lambda x: x.reshape(3, 2)[:, 1],
    "one axis": lambda x: x.reshape(2, 3).reshape(-1),
    "repeated": lambda x: pb.broadcast_to(x[:1], (4,)),
    "counted": lambda x: pb.arange(5),
    "a map of counts": lambda x: pb.arange(5) * 3.0,
    "constant": lambda x: pb.full((4,), 2.0),
    "joined": lambda x: pb.concat([x[:2], x[4:]]),
}


@pytest.mark.parametrize("backend", ["llvm", "reference"])
@pytest.mark.parametrize("name", VIEWS)
def test_places_outside_raise_and_those_inside_do_not(name: str, backend: str) -> None:
    x = np.arange(6.0)
    want = VIEWS[name](pb.tensor(x)).numpy()

    def read(t: pb.Tensor, x: pb.Tensor) -> Any:
        view = VIEWS[name](x)
        return pb.compute((2,), lambda i: view[t[i]])  # where no negative index wraps

    made = pb.jit(read, options=pb.Options(backend=backend))
    size = len(want)
    for place in range(size):
        got = made(pb.tensor([place, 0]), pb.tensor(x)).numpy()
        np.testing.assert_array_equal(got, want[[place, 0]])
    for place in (-1, -size - 1, size, size + 1, size + 40):
        with pytest.raises(IndexRangeError, match="E106"):
            made(pb.tensor([place, 0]), pb.tensor(x)).numpy()


@pytest.mark.parametrize("name", ["rows", "one axis", "itself"])
def test_what_checks_as_much_is_read_through(name: str) -> None:
    """No copy of the view is made."""

    def read(t: pb.Tensor, x: pb.Tensor) -> Any:
        return VIEWS[name](x)[t]

    made = pb.jit(read)
    made(pb.tensor([1, 0]), pb.tensor(np.arange(6.0)))
    assert made.program.memory.arena_bytes == 0
