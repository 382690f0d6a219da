"""The interpreter of loop nests: natives of integers are exact and can be calculated with."""

from __future__ import annotations

import numpy as np
import pytest

from pullback.backends.reference.nests import run_routine
from pullback.ir.dtype import int64
from pullback.ir.expr import Add, index
from pullback.ir.nest import Array, Load, Native, Routine, Store, Var

BIG = 2**60 + 1


@pytest.mark.parametrize(("name", "wanted"), [("maximum", BIG), ("minimum", BIG - 2)])
def test_natives_of_large_integers_are_exact(name: str, wanted: int) -> None:
    x, y = Array("x", int64, 2), Array("y", int64, 1)
    value = Native(name, (Load(x, index(0)), Load(x, index(1))))
    body = (Store(y, index(0), Add(value, index(-1))),)
    task = Var("task", 0, 0)
    out = np.zeros(1, np.int64)
    given = np.array([BIG, BIG - 2], np.int64)
    run_routine(Routine("r", (x, y), (), (), (), task, 1, body), [given, out], [])
    assert out[0] == wanted - 1
