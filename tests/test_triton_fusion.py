"""Fusion for a GPU: by the prices of launches on it, which are not a processor's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.reference.kernels import run_kernel
from pullback.backends.triton import plan
from pullback.backends.triton.backend import Triton
from pullback.backends.triton.blocks import Way
from pullback.backends.triton.machine import named
from pullback.backends.triton.price import Work
from pullback.config import Options
from pullback.ir import expr as E
from pullback.ir.dtype import float32, int64
from pullback.ir.graph import Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from test_triton import needs_triton

H100 = named("h100")
F = pb.nn.functional


def kernels(
    monkeypatch: pytest.MonkeyPatch, backend: str, function: Callable[..., Any], *shapes: Any
) -> list[Kernel]:
    """What a program is fused to for a backend; nothing is computed."""

    def nothing(self: Any, *given: Any) -> dict[Variable, Any]:
        kernel = next(one for one in given if isinstance(one, Kernel))
        return {v: np.zeros(v.shape, v.dtype.numpy) for v in kernel.writes}

    monkeypatch.setattr(Triton, "run_for", nothing)
    made = pb.jit(function, options=Options(backend=backend, cache=None))
    made(*(np.zeros(shape, np.float32) for shape in shapes))
    return list(made.program.kernels)


def ns(made: list[Kernel]) -> float:
    """What the launches of kernels cost on an H100."""
    return sum(
        Work.of(group, H100).price(schedule).ns
        for kernel in made
        for group, schedule in plan.scheduled(kernel, plan.chooser(H100))
    )


def _recomputed(x: Any) -> Any:
    total = pb.sum(x, axis=1)[:, None]
    return [x - total, x / total]


def _shared(x: Any, w: Any) -> Any:
    return [pb.exp(x @ w), pb.sum(x @ w, axis=1)]


@needs_triton
def test_what_a_processor_joins_is_apart_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows longer than a block: their sum is a loop of its own, and the maps of 8192 columns have
    more programs as a launch that has no rows to keep.
    """
    shape = 512, 8192
    processor = kernels(monkeypatch, "llvm", _recomputed, shape)
    gpu = kernels(monkeypatch, "triton", _recomputed, shape)
    assert len(processor) == 1 and len(gpu) == 2
    assert any("slower by" in reason for kernel in gpu for reason in kernel.reasons)
    assert ns(gpu) < ns(processor)


@needs_triton
def test_what_a_processor_holds_apart_is_joined_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor a tile of rows would make the product too slow; launches cut it off again."""
    shapes = (256, 64), (64, 256)
    processor = kernels(monkeypatch, "llvm", _shared, *shapes)
    gpu = kernels(monkeypatch, "triton", _shared, *shapes)
    assert len(processor) == 2 and len(gpu) == 1
    assert ns(gpu) <= ns(processor)


def _slopes(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(g: Any, *given: Any) -> Any:
        y = function(*given)
        return [y, *pb.grad(pb.sum(y * g), list(given))]

    return both


def _attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "softmax": (_slopes(lambda x: F.softmax(x, dim=1)), [(4096, 1024)] * 2),
    "linear": (
        _slopes(lambda x, w, b: F.gelu(x @ w + b)),
        [(2048, 3072), (2048, 768), (768, 3072), (3072,)],
    ),
    "attention": (_slopes(_attention), [(16, 1024, 64)] * 4),
    "two sums": (
        lambda x: [pb.sum(pb.exp(x) * 2, axis=0), pb.sum(pb.exp(x) * 3, axis=1)],
        [(4096, 4096)],
    ),
}


@needs_triton
@pytest.mark.parametrize("name", PROGRAMS)
def test_groups_for_a_gpu_cost_no_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Than those of a processor, as an H100 runs both."""
    function, shapes = PROGRAMS[name]
    made = [kernels(monkeypatch, b, function, *shapes) for b in ("llvm", "triton")]
    assert ns(made[1]) <= 1.001 * ns(made[0])


def _heavy(x: Any) -> Any:
    y = x - pb.sum(x, axis=1)[:, None]
    for _ in range(16):
        y = pb.sin(pb.exp(y))
    return y


@needs_triton
def test_a_stage_that_makes_a_launch_dearer_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of two long rows: two programs beside their sums, many more by themselves."""
    made = kernels(monkeypatch, "llvm", _heavy, (2, 4096))
    apart = ns(made)
    monkeypatch.setattr(plan.Chooser, "joins", lambda *groups: True)
    assert apart < 0.5 * ns(made)


@needs_triton
def test_what_two_launches_would_store_is_in_their_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax of long rows: one launch, though each stage alone has more threads."""
    made = kernels(monkeypatch, "triton", lambda x: F.softmax(x, dim=1), (4096, 4096))
    ((group, _),) = [pair for k in made for pair in plan.scheduled(k, plan.chooser(H100))]
    assert group.way is Way.BLOCK and ns(made) < 1.2 * (2 * 4 * 4096**2) / H100.memories[2].rate


@needs_triton
def test_the_interpreter_runs_the_schedules_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """That which is asked for, not always an H100's."""
    seen: list[str] = []
    plain = plan.launches

    def launches(kernel: Kernel, choose: Any = None) -> Any:
        seen.append(choose.gpu.name)
        return plain(kernel, choose)

    monkeypatch.setattr(plan, "launches", launches)
    x, w = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    for name in ("a100", "h100"):
        made = pb.jit(lambda x, w: x @ w, options=Options(backend="triton", machine=name))
        assert (made(x, w).numpy() == 64).all()
    assert seen == ["a100", "h100"]


def test_a_view_of_a_sum_is_stored_by_the_sum() -> None:
    """Axes of one element dropped: no launch of its own, and the same numbers."""
    a, b = Variable("a", (5, 40), float32), Variable("b", (40, 7), float32)
    out = Variable("out", (5, 7), float32)

    def body(i: E.Axis, o: E.Axis, j: E.Axis, k: E.Axis) -> E.Expr:
        return E.Mul(read(a, i, k), read(b, k, j))

    total = define("total", (5, 1, 7), body, over=(40,))
    flat = define("flat", (5, 7), lambda i, j: read(total, i, E.index(0), j))
    stages = (
        Stage(total, total.form, total.body, ()),
        Stage(flat, flat.form, flat.body, (), out),
    )
    kernel = Kernel("viewed", (), stages)
    ((group, _),) = plan.scheduled(kernel, plan.chooser(H100))
    assert group.way is Way.PRODUCT and group.stages[0].store is out


@needs_triton
def test_a_view_that_overwrites_what_is_read_stays_after_it() -> None:
    """``x = d[i, 0]; d[i, 0] = sum[k] x[i] * a[k, i]``, read by another stage: not stored early."""
    x, a = Variable("x", (6,), float32), Variable("a", (5, 6), float32)
    total = define("total", (6, 1), lambda i, o, k: E.Add(read(a, k, i), read(x, i)), over=(5,))
    last = define("last", (6,), lambda i: E.Add(read(x, i), read(x, i)))
    flat = define("flat", (6,), lambda i: read(total, i, E.index(0)))
    out = Variable("out", (6,), float32)
    stages = (
        Stage(total, total.form, total.body, ()),
        Stage(last, last.form, last.body, (), out),
        Stage(flat, flat.form, flat.body, (), x),
    )
    kernel = Kernel("viewed", (), stages)
    data = np.random.default_rng(0)
    values = {v: data.standard_normal(v.shape).astype(np.float32) for v in (x, a)}
    got, want = Triton().run_kernel(kernel, values), run_kernel(kernel, dict(values))
    for variable in (x, out):
        np.testing.assert_allclose(got[variable], want[variable], rtol=1e-5, atol=1e-6)


def _doubled(*shape: int) -> Kernel:
    v, out = Variable("v", shape, float32), Variable("out", shape, float32)
    twice = define("twice", shape, lambda *at: E.Add(read(v, *at), read(v, *at)))
    return Kernel("doubled", (), (Stage(twice, twice.form, twice.body, (), out),))


def test_coordinates_are_of_32_bits_where_they_fit() -> None:
    """Offsets and index arithmetic by their bounds; else 64 bits."""
    (small,) = plan.launches(_doubled(1 << 10, 1 << 10))
    (large,) = plan.launches(_doubled(1 << 16, 1 << 15))
    assert "tl.int64" not in small.source and "tl.int32" in small.source
    assert "tl.program_id(0).to(tl.int64)" in large.source and "tl.int32" not in large.source
    out = Variable("out", (100,), float32)
    far = define("far", (100,), lambda i: E.Cast(E.Mul(i, E.index(1 << 30)), float32))
    (one,) = plan.launches(Kernel("far", (), (Stage(far, far.form, far.body, (), out),)))
    assert ".to(tl.int64)" in one.source  # 99 * 2**30 is a number of the user's
    each = define("each", (4,), lambda i, k: E.Mul(k, E.index(40_000_000)), over=(50,))
    sums = Variable("sums", (4,), int64)
    (one,) = plan.launches(Kernel("sums", (), (Stage(each, each.form, each.body, (), sums),)))
    assert ".to(tl.int64)" in one.source  # each fits, their sum does not


@needs_triton
def test_numbers_beyond_32_bits_stay_right() -> None:
    """A map of coordinates, and a sum of them that each fit."""
    options = Options(backend="triton", cache=None)
    far = pb.jit(lambda x: x + pb.astype(pb.arange(100) * (1 << 30), "float32"), options=options)
    want = np.arange(100, dtype=np.float64) * 2.0**30
    np.testing.assert_allclose(far(np.zeros(100, np.float32)).numpy(), want, rtol=1e-6)
    total = pb.jit(lambda x: pb.sum(pb.arange(100) * 40_000_000) + x, options=options)
    assert total(np.int64(1)).item() == 4950 * 40_000_000 + 1
