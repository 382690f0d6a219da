"""Triton: what the oracle computes, by its interpreter; what its compiler makes for a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.reference.kernels import run_kernel
from pullback.backends.triton import plan
from pullback.backends.triton.backend import Triton, compiled
from pullback.backends.triton.blocks import WHOLE, Way, groups
from pullback.config import Options
from pullback.errors import IndexRangeError
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Axis
from pullback.ir.graph import MAP, Definition, Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from test_backends import agree

Array = np.ndarray[Any, Any]
ABSENT = importlib.util.find_spec("triton") is None  # not imported: others would compile by it
needs_triton = pytest.mark.skipif(ABSENT, reason="Triton is not installed")
pytestmark = [needs_triton, pytest.mark.torch]  # the stage of the gate that has it
SOME = [
    "vector products",
    "softmax",
    "layer norm",
    "integers",
    "gather",
    "cumulative sum",
    "normal",
    "while",
]
# NaN, an infinity and both zeros among other numbers.
ODD = np.array([1, np.nan, -np.inf, 0.0, -0.0, 2.5, -3, 1e-40], np.float32)


@pytest.mark.parametrize("name", SOME)
def test_small_programs(name: str) -> None:
    agree(name, "triton")


def both(function: Any, *arguments: Any) -> tuple[list[Array], list[Array]]:
    """What Triton and the oracle make of a function."""
    made = []
    for backend in ("triton", "reference"):
        given = pb.jit(function, options=Options(backend=backend, cache=None))(*arguments)
        every = given if isinstance(given, list | tuple) else [given]
        made.append([value.numpy() for value in every])
    return made[0], made[1]


def kernels(function: Any, *arguments: Any) -> list[Kernel]:
    """What a function is fused to."""
    made = pb.jit(function, options=Options(backend="kernels", cache=None))
    made(*arguments)
    return list(made.program.kernels)


@pytest.mark.parametrize("extent", [1, 2, 31, 32, 33, 5000])
def test_reductions_of_every_length(extent: int) -> None:
    """Rows in registers, rows in blocks, sums in parts; the identity stands beyond the end."""
    rows = np.random.default_rng(extent).permutation(3 * extent).reshape(3, extent) - 9.0

    def reduced(x: Any) -> list[Any]:
        least = [pb.min(pb.abs(x), axis=1), pb.max(x - 1e6, axis=1), pb.argmax(x, axis=1)]
        return [*least, pb.sum(x, axis=1), pb.sum(x), pb.sum(x, axis=0), pb.all(x > -9.5, axis=1)]

    made, wanted = both(reduced, rows)
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_largest_of_nan_is_nan() -> None:
    made, wanted = both(lambda x: [pb.max(x), pb.min(x), pb.max(x[2:]), x // 2.0, x % -2.0], ODD)
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


def test_a_row_of_softmax_keeps_nan_on_a_device() -> None:
    """`tl.max` of a device drops NaN, that of the interpreter does not: by the source."""
    (kernel,) = kernels(lambda x: pb.max(x, axis=1), np.ones((7, 33), np.float32))
    (launch,) = plan.launches(kernel)
    assert "tl.where(tl.max((term != term).to(tl.int32), 1) != 0, float(" in launch.source


def test_integers_round_down() -> None:
    x = np.arange(-9, 9, dtype=np.int32)
    made, wanted = both(lambda x: [x // 4, x % 4, x // -4, x % -4, x // (x - x), x % (x - x)], x)
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bfloat16_is_rounded_to_nearest() -> None:
    x = np.random.default_rng(0).normal(size=999).astype(np.float32)
    made, wanted = both(lambda x: pb.astype(x, pb.bfloat16), x)
    np.testing.assert_array_equal(made[0].view(np.uint16), wanted[0].view(np.uint16))


def test_sizes_that_are_known_late() -> None:
    n = pb.Dim("n", lo=1, hi=70)
    options = Options(backend="triton", cache=None)
    late = pb.jit(lambda x: x / pb.sum(x, axis=1, keepdims=True), shapes=[(n, n)], options=options)
    for size in (1, 5, 64, 70):
        x = np.random.default_rng(size).uniform(1, 2, (size, size)).astype(np.float32)
        np.testing.assert_allclose(late(x).numpy(), x / x.sum(1, keepdims=True), rtol=1e-6)


def test_an_index_out_of_range_tells_the_line() -> None:
    pick = pb.jit(lambda x, i: pb.take(x, i), options=Options(backend="triton", cache=None))
    x = pb.ones(5)
    pick(x, np.array([0, 4, -5]))
    with pytest.raises(IndexRangeError, match="index 7 is out of range") as told:
        pick(x, np.array([0, 7]))
    assert "pb.take(x, i)" in str(told.value)


def test_an_untaken_branch_is_not_checked() -> None:

    def guarded(x: Any, i: Any) -> Any:
        return pb.compute((3,), lambda n: pb.where(i[n] < 5, x[i[n]], -1.0))

    made, wanted = both(guarded, np.arange(5.0), np.array([0, 7, 4]))
    np.testing.assert_array_equal(made[0], wanted[0])


def moved(step: int) -> Kernel:
    """``v[i] = v[(i + step) % 5000] * 2``: it writes over what it reads."""
    v, i = Variable("v", (5000,), float32), Axis(0, 5000)
    at = E.Mod(E.Add(i, E.index(step)), E.index(5000))
    twice = Definition("twice", (5000,), E.Mul(read(v, at if step else i), E.const(2, float32)))
    return Kernel("moved", (), (Stage(twice, MAP, twice.body, (), v),))


@pytest.mark.parametrize("step", [0, 3])
def test_what_others_read_is_written_over_after_all_have_read(step: int) -> None:
    kernel = moved(step)
    (v,) = kernel.writes
    x = np.arange(5000, dtype=np.float32)
    made = Triton().run_kernel(kernel, {v: x})
    np.testing.assert_array_equal(made[v], run_kernel(kernel, {v: x}, [])[v])
    assert len(plan.launches(kernel)) == (2 if step else 1)


def test_a_row_of_softmax_is_one_launch() -> None:
    (kernel,) = kernels(lambda x: pb.nn.functional.softmax(x, dim=1), np.ones((7, 33), np.float32))
    (group,) = groups(kernel)
    assert group.way is Way.BLOCK and len(group.stages) == 4
    (launch,) = plan.launches(kernel)
    assert "tl.load(x_ptr" in launch.source and f"({Path(__file__)}:" in launch.source
    assert "softmax = tl.div_rn(exps, norm[:, None])" in launch.source


def test_a_long_sum_is_made_in_parts() -> None:
    (kernel,) = kernels(pb.sum, np.ones(100_000, np.float32))
    first, second = plan.launches(kernel)
    assert first.grid[0][0][-1] > 1 and second.grid[0][0] == ()


def exact(*shape: int) -> Array:
    """Whole numbers, whose products add up exactly in any order."""
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_sums_of_products_are_tiles(kind: str) -> None:
    """Axes run together to rows, columns and terms: a convolution is a product, too."""

    def windows(x: Any, w: Any) -> Any:
        def at(n: Any, o: Any, i: Any, j: Any) -> Any:
            c, a, b = pb.axis(3), pb.axis(3), pb.axis(2)
            return pb.sum(x[n, c, i + a, j + b] * w[o, c, a, b], over=(c, a, b))

        return pb.compute((2, 5, 7, 9), at)

    programs: list[Any] = [
        (lambda a, b: pb.matmul(a, b) * 2, exact(70, 33), exact(33, 67)),
        (lambda a, b: pb.matmul(a, b), exact(3, 17, 40), exact(3, 40, 1)),
        (lambda a, b: pb.einsum("bik,kj->bij", pb.abs(a), b), exact(2, 65, 5), exact(5, 3)),
        (windows, exact(2, 3, 9, 10), exact(5, 3, 3, 2)),
        (lambda a, b: pb.matmul(a + 1, b + 1), exact(5, 33), exact(33, 6)),
    ]
    for function, *arguments in programs:
        given = [pb.astype(pb.tensor(a), getattr(pb, kind)) for a in arguments]
        made, wanted = both(function, *given)
        np.testing.assert_array_equal(made[0].astype(float), wanted[0].astype(float))
    (kernel,) = kernels(windows, exact(2, 3, 9, 10), exact(5, 3, 3, 2))
    assert "tl.dot(factor, factor_1, total" in plan.launches(kernel)[-1].source


def test_a_map_of_a_product_s_other_elements_is_made_after_it() -> None:
    """One at its own elements stays in the tile."""
    a, b = exact(70, 33), exact(33, 70)
    (kernel,) = kernels(lambda a, b: pb.exp(pb.matmul(a, b)) + 1, a, b)
    (launch,) = plan.launches(kernel)
    assert "tl.dot" in launch.source and "tl.exp(matmul)" in launch.source
    left, right = Variable("a", (70, 33), float32), Variable("b", (33, 70), float32)
    y = define(
        "y", (70, 70), lambda i, j, k: E.Mul(read(left, i, k), read(right, k, j)), over=(33,)
    )
    z = define("z", (70, 70), lambda i, j: E.Add(read(y, j, i), read(y, i, j)))
    store = Variable("z", (70, 70), float32)
    stages = Stage(y, y.form, y.body, ()), Stage(z, MAP, z.body, (), store)
    made = Triton().run_kernel(Kernel("turned", (), stages), {left: a, right: b})
    np.testing.assert_array_equal(made[store], (a @ b).T + a @ b)


def test_a_product_of_sixteen_bits_is_made_by_tensor_cores() -> None:
    half = pb.astype(pb.ones((512, 512)), pb.bfloat16)
    for kernel in kernels(lambda a, b: pb.matmul(a, b), half, half):
        (code,) = compiled(kernel)
        assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in code.texts["ptx"]


def test_hopper_s_code_without_a_gpu() -> None:
    """Every launch becomes an object; rows are added up across lanes, nothing spills to memory."""
    x = np.ones((64, 300), np.float32)
    functions = [lambda x: pb.nn.functional.softmax(x, dim=1), lambda x: pb.sum(x > 1, axis=0)]
    for function in functions:
        for kernel in kernels(function, x):
            for code in compiled(kernel):
                assert ".target sm_90a" in code.texts["ptx"] and code.cubin
                assert "tt.reduce" in code.texts["ttir"] and ".local" not in code.texts["ptx"]


@pytest.mark.parametrize("extent", [1, 2, 33, WHOLE + 4])
def test_scans_of_every_length(extent: int) -> None:
    """Whole rows by `tl.associative_scan`, longer ones term by term, which takes long here."""
    count = 1 if extent > WHOLE else 3
    rows = np.random.default_rng(extent).integers(-3, 4, (count, extent)).astype(np.float32)
    rows[-1, extent // 2] = np.nan

    def scans(x: Any) -> list[Any]:
        largest = pb.cumulative_max(x, axis=1)
        if extent > WHOLE:
            return [largest]
        return [largest, pb.cumulative_sum(x, axis=1), pb.cumulative_sum(x, axis=0)]

    made, wanted = both(scans, rows)
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    (kernel, *_) = kernels(lambda x: pb.cumulative_sum(x, axis=1), rows)
    (launch, *_) = plan.launches(kernel)
    assert ("tl.associative_scan(" in launch.source) is (1 < extent <= WHOLE)
