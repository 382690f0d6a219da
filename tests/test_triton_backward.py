"""Attention's derivative out of plain definitions: no launch writes rows x keys elements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.reference.kernels import run_kernel
from pullback.backends.triton import offline, plan
from pullback.backends.triton.backend import Triton, orders
from pullback.backends.triton.blocks import Way
from pullback.backends.triton.choose import best
from pullback.backends.triton.machine import named
from pullback.backends.triton.price import Work
from pullback.config import Options
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import upper
from pullback.ir.graph import Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from pullback.nn import functional as F
from test_triton import needs_triton

Array = np.ndarray[Any, Any]
H100 = named("h100")
pytestmark = [needs_triton, pytest.mark.torch]


def drawn(count: int, *shape: int) -> list[Any]:
    draw = np.random.default_rng(sum(shape))
    return [pb.tensor(draw.normal(size=shape).astype(np.float32)) for _ in range(count)]


def derivative(mask: Any = None, causal: bool = False) -> Any:
    """(q, k, v, g) -> dq, dk, dv, by definitions alone."""

    def loss(q: Any, k: Any, v: Any, g: Any) -> Any:
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return pb.sum(made * g)

    return lambda q, k, v, g: pb.grad(lambda q, k, v: loss(q, k, v, g), argnums=(0, 1, 2))(q, k, v)


def by_hand(mask: Array, *given: Any) -> list[Array]:
    """The same in float64, with the whole matrix."""
    q, k, v, g = (np.asarray(a.numpy()).astype(np.float64) for a in given)
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    s = np.where(mask, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("bhid,bhjd->bhij", g, v)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq, dk = np.einsum("bhij,bhjd->bhid", ds, k), np.einsum("bhij,bhid->bhjd", ds, q)
    return [dq, dk, np.einsum("bhij,bhid->bhjd", p, g)]


def launched(function: Any, *arguments: Any) -> tuple[Any, list[tuple[Kernel, Any]]]:
    """The function, and the launches of each of its kernels with their groups."""
    made = pb.jit(function, options=Options(backend="triton", cache=None))
    results = made(*arguments)
    return results, [(k, plan.scheduled(k)) for k in made.program.kernels]


def ways(kernels: list[tuple[Kernel, Any]]) -> list[Way]:
    return [group.way for _, scheduled in kernels for group, _ in scheduled]


def largest(kernels: list[tuple[Kernel, Any]]) -> int:
    """Elements of the largest array that any launch is given."""
    made = (plan.written(k.name, scheduled) for k, scheduled in kernels)
    return max(
        prod(map(upper, v.shape)) for launches in made for one in launches for v in one.arguments
    )


@pytest.mark.parametrize("rows", [131])
@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
def test_no_matrix_lies_in_memory(rows: int, kind: str) -> None:
    """Odd lengths; keys left out by a guard and by a mask, a whole block of them at the start."""
    kept = np.ones((rows, rows), bool)
    if kind == "causal":
        kept = np.tril(kept)
    if kind == "mask":
        kept = np.random.default_rng(0).uniform(size=kept.shape) < 0.5
        kept[:, :40] = False
        kept[:, -1] = True
    arguments = drawn(4, 1, 2, rows, 16)
    mask = pb.tensor(kept) if kind == "mask" else None
    made, kernels = launched(derivative(mask, kind == "causal"), *arguments)
    for got, wanted in zip(made, by_hand(kept, *arguments), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=2e-6)
    assert ways(kernels).count(Way.AGAIN) >= 2 and Way.PRODUCT not in ways(kernels)
    if kind != "mask":  # which is itself an array of rows x keys
        assert largest(kernels) == 2 * rows * 16


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_no_matrix_of_sixteen_bits_lies_in_memory(kind: str) -> None:
    """Causal, forward and backward: factors of 16 bits, sums of float32."""
    rows = 101
    exact_ = drawn(4, 1, 2, rows, 16)
    arguments = [pb.astype(a, kind) for a in exact_]
    made, kernels = launched(derivative(causal=True), *arguments)
    rounded = [pb.astype(a, "float32") for a in arguments]
    kept = np.tril(np.ones((rows, rows), bool))
    step = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[kind]
    for got, wanted in zip(made, by_hand(kept, *rounded), strict=True):
        error = np.abs(np.asarray(got.numpy()).astype(np.float64) - wanted).max()
        assert error < 4 * step * np.abs(wanted).max()
    assert largest(kernels) == 2 * rows * 16 and Way.PRODUCT not in ways(kernels)
    sources = [one.source for k, s in kernels for one in plan.written(k.name, s)]
    assert sum("tl.dot(" in source for source in sources) >= 3
    assert all("tl.float32)" in source for source in sources if "tl.dot(" in source)


def test_causal_loops_leave_out_what_is_zero() -> None:
    """Keys behind a row's last one, rows before a key's first one: in turns of one block."""
    given = drawn(4, 1, 1, 131, 16)
    _, kernels = launched(derivative(causal=True), *given)
    loops = [
        next(line for line in one.source.splitlines() if " in range(" in line)
        for k, s in kernels
        for one, (group, _) in zip(plan.written(k.name, s), s, strict=True)
        if group.way in (Way.STREAM, Way.AGAIN)
    ]
    assert [loop.split("range(")[1].split(",")[0] for loop in loops] == ["0", "0", "begin"]
    assert [", end," in loop for loop in loops] == [True, True, False]
    _, kernels = launched(derivative(), *given)
    sources = [one.source for k, s in kernels for one in plan.written(k.name, s)]
    assert not any("begin" in s or ", end," in s for s in sources)


def test_rows_and_keys_of_other_counts() -> None:
    """67 rows of 190 keys, as many columns of values as a score has terms or not."""
    q, g = drawn(2, 2, 1, 67, 8)
    k, v = drawn(2, 2, 1, 190, 8)
    made, kernels = launched(derivative(), q, k, v, g)
    for got, wanted in zip(made, by_hand(np.ones((67, 190), bool), q, k, v, g), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=2e-6)
    assert largest(kernels) < 2 * 67 * 190


def test_short_rows_are_kept() -> None:
    """A matrix that is smaller than its factors is made once."""
    arguments = drawn(4, 1, 1, 20, 64)
    _, kernels = launched(derivative(), *arguments)
    assert Way.AGAIN not in ways(kernels)


def test_matrices_that_are_wanted_are_written() -> None:
    """What is a result itself lies in memory, and sums read it there."""

    def program(x: Any, w: Any, v: Any) -> Any:
        h = pb.exp(pb.matmul(x, w) * 0.1)
        return h, pb.matmul(h, v)

    x, w, v = drawn(1, 150, 8)[0], drawn(1, 8, 170)[0], drawn(1, 170, 8)[0]
    (h, y), _ = launched(program, x, w, v)
    wanted = np.exp(np.asarray(x.numpy()) @ np.asarray(w.numpy()) * 0.1)
    np.testing.assert_allclose(h.numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(y.numpy(), wanted @ np.asarray(v.numpy()), rtol=1e-4, atol=1e-3)


def test_code_for_hopper() -> None:
    """Products by tensor cores in every loop; what the price says fits, fits; nothing spills."""
    arguments = [pb.ones((1, 2, 256, 64)) for _ in range(4)]
    _, kernels = launched(derivative(causal=True), *arguments)
    loops = [(k, pair) for k, made in kernels for pair in made if pair[0].way is Way.AGAIN]
    assert len(loops) >= 2
    launches = [plan.written(k.name, [pair])[0] for k, pair in loops]
    for (_, (group, schedule)), binary in zip(
        loops, offline.compiled(orders(launches), H100.capability), strict=True
    ):
        ptx = binary.texts["ptx"]
        assert "mma.sync" in ptx or "wgmma.mma_async" in ptx
        assert binary.stack == 0 and binary.shared <= H100.count("block_shared")
        assert schedule == best(group, H100)
        assert Work.of(group, H100).refusal(schedule) is None


def overwriting(bias: bool) -> Kernel:
    """``y = exp(x w) v`` behind a stage that writes over x, or does not."""
    x, w, v = (
        Variable(n, s, float32) for n, s in (("x", (150, 8)), ("w", (8, 170)), ("v", (170, 8)))
    )
    y, z = Variable("y", (150, 8), float32), Variable("z", (150, 8), float32)
    dots = define(
        "dots", (150, 170), lambda i, j, k: E.Mul(read(x, i, k), read(w, k, j)), over=(8,)
    )
    exps = define("exps", (150, 170), lambda i, j: E.Exp(read(dots, i, j)))
    over = define("over", (150, 8), lambda i, c: E.Mul(read(x, i, c), E.const(0.0, float32)))
    mixed = define(
        "mixed", (150, 8), lambda i, c, j: E.Mul(read(exps, i, j), read(v, j, c)), over=(170,)
    )
    stores = {over: x if bias else z, mixed: y}
    made = (dots, exps, over, mixed)
    return Kernel("k", (), tuple(Stage(d, d.form, d.body, (), stores.get(d)) for d in made))


def test_what_is_written_over_is_not_made_again() -> None:
    """Of a kernel that assigns x, the matrix of the old x is kept in memory."""
    for over in (False, True):
        kernel = overwriting(over)
        ways_ = [group.way for group, _ in plan.scheduled(kernel)]
        assert (Way.AGAIN in ways_) is not over
        draw = np.random.default_rng(0)
        values = {
            a: draw.normal(size=tuple(map(upper, a.shape))).astype(np.float32) * 0.3
            for a in kernel.reads
        }
        made = Triton().run_kernel(kernel, dict(values))
        for target, wanted in run_kernel(kernel, dict(values)).items():
            np.testing.assert_allclose(made[target], wanted, rtol=1e-4, atol=1e-4)


def test_terms_beyond_the_last_one_are_nothing() -> None:
    """``exp(0) = 1`` of terms that are not there meets values that are not there."""
    kernel = overwriting(False)
    scheduled = plan.scheduled(kernel)
    (launch,) = [
        one for pair in scheduled if pair[0].way is Way.AGAIN for one in plan.written("k", [pair])
    ]
    factor = next(
        line for line in launch.source.splitlines() if "factor" in line and "where" in line
    )
    assert "in_key" in factor


def test_derivatives_have_the_same_bits_every_time() -> None:
    """Every sum has one program and one order: no atomics."""
    arguments = drawn(4, 1, 1, 100, 8)
    made = pb.jit(derivative(causal=True), options=Options(backend="triton", cache=None))
    first, second = ([a.numpy() for a in made(*arguments)] for _ in range(2))
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, two)
    sources = [one.source for k in made.program.kernels for one in plan.launches(k)]
    assert not any("tl.atomic" in source for source in sources)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bits(kind: str) -> None:
    """Within the rounding of the factors."""
    own = [pb.astype(a, getattr(pb, kind)) for a in drawn(4, 1, 1, 100, 8)]

    def loss(q: Any, k: Any, v: Any, g: Any) -> Any:
        return pb.sum(pb.astype(F.scaled_dot_product_attention(q, k, v) * g, pb.float32))

    def program(q: Any, k: Any, v: Any, g: Any) -> Any:
        return pb.grad(lambda q, k, v: loss(q, k, v, g), argnums=(0, 1, 2))(q, k, v)

    made, kernels = launched(program, *own)
    assert Way.AGAIN in ways(kernels)
    wide = [pb.astype(a, pb.float32) for a in own]
    for got, wanted in zip(made, by_hand(np.ones((100, 100), bool), *wide), strict=True):
        error = np.abs(got.numpy().astype(float) - wanted).max()
        assert error < (0.03 if kind == "bfloat16" else 0.004)
