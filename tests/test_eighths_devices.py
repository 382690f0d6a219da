"""Floats of 8 bits on GPUs that are not there: Triton's interpreter and compiler, the backend
`nvptx` by a stand-in for a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fake_warps
import pullback as pb
from eighths import EIGHTHS, check_cells, check_conversions, narrow, numbers
from fake_warps import Warps
from on_device import same
from pullback.backends.nvptx import assemble
from pullback.backends.nvptx.assemble import assembled
from pullback.backends.triton import plan
from pullback.backends.triton.backend import types
from pullback.config import Options
from test_nvptx import needs_c, needs_ptxas, texts
from test_triton import both, compiled, kernels, needs_triton

RNG = np.random.default_rng(0)
WARPS = Options(backend="nvptx", cache=None)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # ml_dtypes


def by_triton(test: Any) -> Any:
    """In the stage of the gate that has it."""
    return pytest.mark.torch(needs_triton(test))


@pytest.fixture
def warps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warps]:
    yield fake_warps.device(monkeypatch)[1]


# --- Triton --------------------------------------------------------------------------------------


@by_triton
@pytest.mark.parametrize("kind", EIGHTHS)
def test_conversions_by_triton(kind: str) -> None:
    check_conversions(Options(backend="triton", cache=None), kind, numbers(kind, 9_000))


@by_triton
@pytest.mark.parametrize(
    "other", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"]
)
@pytest.mark.parametrize("kind", EIGHTHS)
def test_products_by_triton(kind: str, other: str) -> None:
    """In the 16 bits that hold both factors; odd extents."""
    w = narrow(RNG.standard_normal((33, 70)), kind)
    x = RNG.standard_normal((37, 70)).astype(getattr(ml_dtypes, other, other))

    def run(x: Any, w: Any) -> Any:
        return pb.astype(x, "float32") @ pb.astype(w, "float32").T

    (made,), (wanted,) = both(run, x, w)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
    exact = "bfloat16" if other == "bfloat16" else "float16"
    sources = [
        s.source
        for k in kernels(run, *(np.tile(a, (16, 16)) for a in (x, w)))
        for s in plan.launches(k)
    ]
    cast = f".to(tl.{exact})"
    assert any("tl.dot" in s for s in sources)
    assert any(cast in s for s in sources) == (other != "float32")


@by_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_tensor_cores_multiply_them(capability: int) -> None:
    """As bytes, which every GPU reads; rounded and stored as bytes."""
    ones = [narrow(np.ones((512, 512)), k) for k in EIGHTHS]

    def run(a: Any, b: Any) -> Any:
        return pb.astype(pb.astype(a, "float32") @ pb.astype(b, "float32"), "float8_e4m3fn")

    (kernel,) = kernels(run, *ones)
    (launch,) = plan.launches(kernel)
    assert types(launch)[:3] == ("*u8",) * 3
    (code,) = compiled(kernel, capability)
    instruction = {
        80: r"mma\.sync\S+f32\.f16\.f16",
        90: r"wgmma\S+f32\.f16\.f16",
        100: r"tcgen05\.mma",
    }
    assert re.search(instruction[capability], code.texts["ptx"])


@by_triton
def test_some_cells_of_conformance_by_triton() -> None:
    check_cells("triton", 48)


@pytest.mark.slow
@by_triton
def test_cells_of_conformance_by_triton() -> None:
    check_cells("triton", 1)


# --- nvptx ---------------------------------------------------------------------------------------


@needs_c
@pytest.mark.parametrize("kind", EIGHTHS)
def test_conversions_by_threads(kind: str, warps: Warps) -> None:
    check_conversions(WARPS, kind, numbers(kind, 2_000))


@needs_c
@pytest.mark.parametrize("kind", EIGHTHS)
def test_weights_by_threads(kind: str, warps: Warps) -> None:
    """Forward and backward, rounded results, sums."""
    w = narrow(RNG.standard_normal((17, 40)), kind)
    x = RNG.standard_normal((9, 40)).astype(np.float32)

    def loss(x: Any, w: Any) -> Any:
        return pb.sum(pb.sin(x @ pb.astype(w, "float32").T))

    same(WARPS, lambda x, w: [loss(x, w), pb.grad(loss)(x, w)], x, w, error=1e-4)
    same(WARPS, lambda w: [pb.max(w, axis=1), pb.flip(w, 0), w * 2.0], w)


@needs_c
def test_some_cells_of_conformance_by_threads(warps: Warps) -> None:
    check_cells("nvptx", 60)


@needs_ptxas
@pytest.mark.torch  # the stage of the gate that has Triton, whose wheel has ptxas
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_they_assemble(capability: int) -> None:
    assert assemble.ptxas() is not None
    w = narrow(RNG.standard_normal((64, 64)), "float8_e4m3fn")

    def run(w: Any) -> Any:
        return pb.astype(pb.astype(w, "float32") @ pb.astype(w, "float32").T, "float8_e5m2")

    for text in texts(run, w, capability=capability):
        made = assembled(text, capability)
        assert made.cubin.startswith(b"\x7fELF") and made.spilled == 0
