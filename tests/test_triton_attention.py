"""Attention out of plain definitions: one loop over blocks of keys, scores are never stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.reference.kernels import run_kernel
from pullback.backends.triton import offline, plan
from pullback.backends.triton.backend import interpreted, loaded, orders
from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.choose import best
from pullback.backends.triton.machine import named
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule
from pullback.config import Options
from pullback.ir.kernel import Kernel
from pullback.nn import functional as F
from test_triton import needs_triton

Array = np.ndarray[Any, Any]
H100 = named("h100")
pytestmark = [needs_triton, pytest.mark.torch]


def attention(q: Any, k: Any, v: Any, **named_: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, **named_)


def drawn(*shape: int, kind: str = "float32") -> Any:
    values = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    return pb.astype(pb.tensor(values), getattr(pb, kind))


def kernels(function: Callable[..., Any], *arguments: Any) -> list[Kernel]:
    made = pb.jit(function, options=Options(backend="kernels", cache=None))
    made(*arguments)
    return list(made.program.kernels)


def small(group: Group) -> BlockSchedule:
    """Several blocks of keys, several rows of programs."""
    schedule = best(group, H100)
    return replace(schedule, rows=32, step=16) if group.way is Way.STREAM else schedule


def streamed(function: Callable[..., Any], *arguments: Any) -> tuple[Array, Array]:
    """What the loop makes, and what the oracle makes of the same kernel."""
    (kernel,) = kernels(function, *arguments)
    scheduled = plan.scheduled(kernel, small)
    assert [group.way for group, _ in scheduled] == [Way.STREAM]
    values = {v: np.asarray(a.numpy()) for v, a in zip(_inputs(kernel), arguments, strict=True)}
    made = plan.written(kernel.name, scheduled)
    (out,) = kernel.writes
    return interpreted(kernel, made, loaded(made), values)[out], run_kernel(kernel, values)[out]


def _inputs(kernel: Kernel) -> list[Any]:
    """Arguments by name: q, k, v, mask."""
    return sorted(kernel.reads, key=lambda v: "qkvm".index(v.name[0]))


SHAPES = [
    (1, 1, 16, 16, 16, 16),
    (2, 3, 33, 47, 20, 9),
    (1, 2, 70, 70, 64, 32),
    (1, 1, 5, 100, 8, 8),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loop_is_attention(shape: tuple[int, ...], causal: bool) -> None:
    """Rows and keys that are no multiples of blocks; the oracle's values to 1e-5."""
    b, h, rows, keys, depth, wide = shape
    q, k, v = drawn(b, h, rows, depth), drawn(b, h, keys, depth), drawn(b, h, keys, wide)
    made, wanted = streamed(lambda q, k, v: attention(q, k, v, is_causal=causal), q, k, v)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_large_scores_do_not_overflow() -> None:
    """Maxima that rise and fall from block to block; NaN and infinities as the oracle has them."""
    q, k, v = drawn(1, 1, 33, 16), drawn(1, 1, 70, 16), drawn(1, 1, 70, 16)
    slope = pb.tensor(np.linspace(-200, 200, 70, dtype=np.float32)[None, None, :, None])
    for keys in (k * slope, k * -slope):
        made, wanted = streamed(lambda q, k, v: attention(q, k, v), q, keys, v)
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
    broken = np.array(k.numpy())
    broken[0, 0, 40, 3] = np.nan
    made, wanted = streamed(lambda q, k, v: attention(q, k, v), q, pb.tensor(broken), v)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(wanted))


def test_keys_that_a_mask_leaves_out() -> None:
    """By truth and by what is added; a block that is left out whole, at the start too."""
    q, k, v = drawn(1, 2, 20, 16), drawn(1, 2, 50, 16), drawn(1, 2, 50, 16)
    kept = np.random.default_rng(0).uniform(size=(20, 50)) < 0.5
    kept[:, :18] = False
    kept[:, -1] = True
    for mask in (kept, np.where(kept, 0.5, -np.inf).astype(np.float32)):
        function = lambda q, k, v, m: attention(q, k, v, attn_mask=m)
        made, wanted = streamed(function, q, k, v, pb.tensor(mask))
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bits(kind: str) -> None:
    q, k, v = (drawn(1, 2, 40, 32, kind=kind) for _ in range(3))
    made, wanted = streamed(lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v)
    error = np.abs(made.astype(float) - wanted.astype(float)).max()
    assert error < (0.03 if kind == "bfloat16" else 0.004)


def test_a_softmax_written_by_hand() -> None:
    """Definitions are what counts, not the name of a function."""

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        scores = pb.einsum("id,jd->ij", q, k) * 0.3
        p = pb.exp(scores - pb.max(scores, axis=1, keepdims=True))
        return pb.matmul(p, v) / pb.sum(p, axis=1, keepdims=True)

    q, k, v = drawn(70, 24), drawn(50, 24), drawn(50, 16)
    made, wanted = streamed(by_hand, q, k, v)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, p, v: (pb.matmul(p, v), pb.sum(p * p, axis=1)),  # squares rise twice as fast
        lambda s, p, v: (pb.matmul(p, v), p),  # what is wanted itself is stored
        lambda s, p, v: (pb.matmul(p + 1, v), pb.sum(p, axis=1)),  # not scaled by the maximum
        lambda s, p, v: (pb.matmul(p, v), pb.sum(s, axis=1)),
    ],
)
def test_what_is_no_such_loop_is_computed_as_before(function: Callable[..., Any]) -> None:
    """Sums that a new maximum does not scale as a whole, and scores that others read."""

    def program(q: Any, k: Any, v: Any) -> Any:
        scores = pb.matmul(q, pb.swapaxes(k, 0, 1))
        p = pb.exp(scores - pb.max(scores, axis=1, keepdims=True))
        return function(scores, p, v)

    arguments = drawn(20, 8), drawn(300, 8), drawn(300, 8)
    options = [Options(backend=name, cache=None) for name in ("triton", "reference")]
    both = [pb.jit(program, options=o)(*arguments) for o in options]
    for made, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(made.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_code_for_three_gpus() -> None:
    """Both products by tensor cores, by Hopper's widest instruction; nothing of keys x rows."""
    q = pb.astype(pb.ones((1, 2, 512, 64)), pb.bfloat16)
    (kernel,) = kernels(lambda q, k, v: attention(q, k, v, is_causal=True), q, q, q)
    for name, instruction in (("a100", "mma.sync"), ("h100", "wgmma.mma_async"), ("b200", "mma")):
        gpu = named(name)
        ((group, schedule),) = plan.scheduled(kernel, plan.chooser(gpu))
        assert group.way is Way.STREAM
        schedule = replace(schedule, rows=64, step=32)  # as of longer sequences
        launches = plan.written(kernel.name, [(group, schedule)])
        assert len(launches[0].arguments) == 4  # q, k, v, result: no scores
        (binary,) = offline.compiled(orders(launches), gpu.capability)
        assert binary.texts["ptx"].count(instruction) >= 2
        assert binary.stack == 0
        assert binary.shared <= gpu.count("block_shared")
        assert Work.of(group, gpu).refusal(schedule) is None
