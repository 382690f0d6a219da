"""Which way large data is walked: along memory, in runs that are long enough."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from pullback import nn
from pullback.backends.registry import named
from pullback.config import Options
from pullback.ir.kernel import Kernel
from pullback.schedule.schedule import Schedule

OPTIONS = Options(threads=2, cache=None)


def kernels(function: Any, *shapes: tuple[int, ...]) -> list[Kernel]:
    """The kernels of a function, which is run, too, and compared with the interpreter."""
    draw = np.random.default_rng(0)
    given = [draw.standard_normal(s).astype(np.float32) for s in shapes]
    made = pb.jit(function, options=OPTIONS)
    found = made(*given)
    wanted = pb.jit(function, options=Options(backend="reference"))(*given)
    for a, b in zip(pb_list(found), pb_list(wanted), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-3)
    return made.program.kernels


def pb_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def schedule(kernel: Kernel) -> Schedule:
    target = pb.jit(lambda: pb.zeros(3) + 1.0, options=OPTIONS)
    target()
    found = target.program.target
    assert found is not None
    return named("llvm").start(kernel, found)


def along(kernel: Kernel) -> set[int | None]:
    """The axes of large stages that tiles count."""
    return {a for s in kernel.stages for a in s.outer if len(s.shape) > 1}


def test_a_large_result_is_written_in_rows() -> None:
    def rows(x: Any) -> Any:
        return pb.compute((1200, 1000), lambda i, j: x[j] * 1.5)

    (kernel,) = kernels(rows, (1000,))
    assert along(kernel) == {0}


def blurred(x: Any) -> Any:
    n, m, _ = x.shape
    once = pb.compute((n, m, 60), lambda i, j, k: near(x, i, j, k, n, m))
    return pb.compute((n, m, 60), lambda i, j, k: near(once, i, j, k, n, m))


def near(x: Any, i: Any, j: Any, k: Any, n: int, m: int) -> Any:
    above = pb.where(i > 0, x[pb.maximum(i - 1, 0), j, k], 0.0)
    right = pb.where(j < m - 1, x[i, pb.minimum(j + 1, m - 1), k], 0.0)
    return x[i, j, k] * 4.0 - above - right


def test_stencils_do_not_share_columns_of_a_few_lanes() -> None:
    found = kernels(blurred, (66, 66, 60))
    assert len(found) == 2, "what the second reads of the first is stored"
    assert [along(k) & {2} for k in found] == [set(), set()]


def test_a_stencil_of_a_stencil_is_stored() -> None:
    def padded(x: Any) -> Any:
        whole = pb.compute((67, 66, 60), lambda i, j, k: spread(x, i, j, k))
        return pb.compute((69, 66, 60), lambda i, j, k: spread(whole, i, j, k))

    assert len(kernels(padded, (65, 66, 60))) == 2


def spread(x: Any, i: Any, j: Any, k: Any) -> Any:
    n = x.shape[0]
    here = pb.where((i > 0) & (i <= n), x[pb.clip(i - 1, 0, n - 1), j, k] * 2.0, 0.0)
    return here + pb.where(i < n, x[pb.minimum(i, n - 1), 65 - j, k], 0.0)


def test_small_stencils_are_one_launch() -> None:
    assert len(kernels(blurred, (6, 6, 60))) == 1


def test_columns_that_are_read_twice_come_in_strips() -> None:
    def both(a: Any, x: Any) -> Any:
        once = x @ a
        return once, pb.sum(a * once[None, :], axis=0)

    found = kernels(both, (1000, 1000), (1000,))
    tiles = [schedule(k).tile for k in found if any(s.extents == (1000, 1000) for s in k.stages)]
    assert tiles and all(t[-1] >= 32 for t in tiles), tiles


def test_a_small_product_has_whole_vectors_of_columns() -> None:
    def symmetric(a: Any, b: Any, c: Any) -> Any:
        def total(a: Any) -> Any:
            low = pb.tril(a, k=-1)
            return pb.sum((1.2 * c + 1.5 * (low @ b + low.T @ b)) ** 2)

        return pb.value_and_grad(total)(a)

    found = [schedule(k) for k in kernels(symmetric, (40, 40), (40, 50), (40, 50))]
    wide = [s.tile for s in found if any(step.product is not None for step in s.steps)]
    assert wide == [(40, 50), (40,)], "not two columns at a time, to save scratch"


def test_long_rows_of_scores_still_come_in_many() -> None:
    """Scores that leave the second-level cache beat four rows by dot products."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v)

    rows = 3 << 20 >> 18  # of 2 x 8192 numbers, at most in as many bytes
    made = kernels(attention, (1, 64, 8), (1, 16384, 8), (1, 16384, 8))
    assert max(schedule(kernel).tile[-1] for kernel in made) >= rows
