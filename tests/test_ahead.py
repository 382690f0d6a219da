"""Operands that a loop does not change are turned once, before it."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.ir.program import Compute, Loop, items
from pullback.runtime.executable import Array
from pullback.tensor.run.program import Jit

STEPS, ROWS, WIDE, DEEP = 6, 5, 32, 24
RNG = np.random.default_rng(3)
X = RNG.standard_normal((STEPS, ROWS, DEEP), dtype=np.float32)
W = RNG.standard_normal((WIDE, DEEP), dtype=np.float32) * 0.1
V = RNG.standard_normal((WIDE, DEEP), dtype=np.float32) * 0.1


def product(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
    k = pb.axis(DEEP)
    return pb.compute((ROWS, WIDE), lambda i, j: pb.sum(x[i, k] * w[j, k], over=k))


def turned(function: Jit) -> list[str]:
    """Kernels outside of loops that make turned copies."""
    inner = {
        k
        for loop in items(function.program.fused)
        if isinstance(loop, Loop)
        for k in (getattr(i, "kernel", None) for i in items(loop.body))
    }
    return [k.name for k in function.program.kernels if "turned" in k.name and k not in inner]


def test_a_weight_is_turned_once_before_the_loop() -> None:
    wide, deep = pb.tensor(W), pb.tensor(V)

    def step(h: pb.Tensor, x: pb.Tensor) -> tuple[pb.Tensor, pb.Tensor]:
        new = product(x + h, wide) @ deep
        return new, new

    function = pb.jit(lambda x: pb.scan(step, pb.zeros((ROWS, DEEP)), x)[1])
    found = function(pb.tensor(X))
    h = np.zeros((ROWS, DEEP), np.float64)
    for number, x in enumerate(X):
        h = (x + h) @ W.T.astype(np.float64) @ V
        np.testing.assert_allclose(np.asarray(found)[number], h, rtol=1e-4, atol=1e-5)
    assert len(turned(function)) == 1
    # As traced it is the user's program still.
    assert not any("turned" in d.name for d in function.program.definitions)


def test_what_the_loop_changes_is_not_turned() -> None:
    state = pb.State(pb.tensor(W))
    given = pb.tensor(X[0])

    def step() -> None:
        state.assign(state + pb.mean(product(given, state)))

    function = pb.jit(lambda: pb.loop(range(STEPS), step))
    function()
    want = W.astype(np.float64)
    for _ in range(STEPS):
        want = want + (X[0] @ want.T).mean()
    np.testing.assert_allclose(np.asarray(state), want, rtol=1e-4, atol=1e-4)
    assert not turned(function)


@pytest.mark.parametrize(("rows", "count"), [(1, STEPS), (512, STEPS), (ROWS, 2)])
def test_packing_that_costs_little_stays(rows: int, count: int) -> None:
    """One row reads every element once, many rows hide it, few turns do not pay for a copy."""
    weight = pb.tensor(W)
    k = pb.axis(DEEP)

    def step(total: pb.Tensor, x: pb.Tensor) -> tuple[pb.Tensor, Array]:
        new = pb.compute((rows, WIDE), lambda i, j: pb.sum(x[i, k] * weight[j, k], over=k))
        return total + new, new

    given = RNG.standard_normal((count, rows, DEEP), dtype=np.float32)
    function = pb.jit(lambda x: pb.scan(step, pb.zeros((rows, WIDE)), x)[0])
    want = np.einsum("sik,jk->ij", given, W)
    np.testing.assert_allclose(np.asarray(function(pb.tensor(given))), want, rtol=1e-3, atol=1e-3)
    assert not turned(function)
    assert any(isinstance(i, Compute) for i in items(function.program.program.body))
