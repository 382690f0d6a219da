"""The backend `nvptx`: its code, run thread by thread on a device that is none, and assembled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_warps
import pullback as pb
from fake_cuda import Violation
from fake_warps import Warps
from on_device import both, same
from pullback.backends.c.compiler import compiler
from pullback.backends.nvptx import assemble, backend, warp
from pullback.backends.nvptx.assemble import assembled
from pullback.config import Options
from pullback.conformance import run
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.conformance.report import read, worse
from pullback.errors import CompilerError
from pullback.ir.kernel import Kernel

try:
    compiler()
    HAS_C = True
except CompilerError:
    HAS_C = False
needs_c = pytest.mark.skipif(not HAS_C, reason="there is no C compiler for the threads")
needs_ptxas = pytest.mark.skipif(assemble.ptxas() is None, reason="there is no ptxas")
OPTIONS = Options(backend="nvptx", cache=None)
REPORT = Path(__file__).parent.parent / "docs" / "conformance" / "nvptx.md"
RNG = np.random.default_rng(0)
X = RNG.standard_normal((33, 70)).astype(np.float32)
SOME = ["softmax", "integers", "gather", "cumulative sum", "while"]


@pytest.fixture
def warps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warps]:
    yield fake_warps.device(monkeypatch)[1]


@pytest.mark.sampled(2)
@needs_c
@pytest.mark.parametrize("backwards", [False, True])
def test_threads_share_sums_tiles_and_tails(warps: Warps, backwards: bool) -> None:
    """Rows that no 32 divides, few and many terms, tiles, the last and the first thread first."""
    warps.backwards = backwards
    for shape in ((1, 1), (3, 31), (33, 70), (5, 257)):
        x = RNG.standard_normal(shape).astype(np.float32)
        same(OPTIONS, lambda x: [pb.sum(x), pb.sum(x, axis=0), pb.max(x, axis=1), x.T + 1], x)
    same(OPTIONS, lambda x: [x @ x.T, pb.nn.functional.relu(x.T @ x + 1)], X, error=1e-4)
    same(OPTIONS, lambda x: [pb.argmax(x, axis=1), pb.sort(x, axis=1)], X)
    same(OPTIONS, lambda x: [pb.var(x), pb.logsumexp(x, axis=0)], X)


@needs_c
def test_a_product_has_many_tiles(warps: Warps) -> None:
    a = RNG.standard_normal((130, 150)).astype(np.float32)
    same(OPTIONS, lambda a: a @ a.T, a, error=1e-4)
    (launch,) = warps.fake.launched
    assert launch[1] * launch[2] >= 16 * 32  # 9 x 3 tiles, in a power of two of tasks


@needs_c
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int8", "uint64", "bool"])
def test_element_types(kind: str, warps: Warps) -> None:
    x = pb.tensor(RNG.integers(0, 2, (7, 45))).astype(kind)
    plain = lambda x: [x, pb.max(x, axis=1), pb.flip(x, axis=1)]
    for got, want in zip(*both(OPTIONS, plain, x), strict=True):
        np.testing.assert_array_equal(got, want)


@needs_c
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_huge_arguments(kind: Any, warps: Warps) -> None:
    """Where the C library is asked elsewhere: digits of 2/pi, and a remainder by steps."""
    x = np.array([1e10, -3e15, 1e22, 6.5e30, 2.5e6, np.inf, np.nan], kind)
    got = [v.numpy() for v in pb.jit(lambda x: [pb.sin(x), pb.cos(x), pb.tan(x)],
                                     options=OPTIONS)(x)]  # fmt: skip
    with np.errstate(invalid="ignore"):
        want = [f(x.astype(np.float64)).astype(kind) for f in (np.sin, np.cos, np.tan)]
        rest = np.remainder(x, kind(0.7))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=4 * np.finfo(kind).eps)
    made = pb.jit(lambda x: pb.remainder(x, 0.7), options=OPTIONS)(x).numpy()
    np.testing.assert_array_equal(made, rest)


@needs_c
def test_threads_that_meet_apart_are_told(warps: Warps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake is seen to tell: a sum whose threads meet as often as each has terms."""
    monkeypatch.setattr(warp.Warp, "statement", met(warp.Warp.statement))
    with pytest.raises(Violation, match="meet at different places"):
        pb.jit(lambda x: pb.sum(x), options=OPTIONS)(X)


def met(plain: Any) -> Any:
    """Statements in front of which threads meet, those of vector loops too."""

    def statement(self: Any, stmt: Any, frame: Any) -> None:
        self.meet()
        plain(self, stmt, frame)

    return statement


@needs_c
def test_a_sample_of_the_committed_report(warps: Warps) -> None:
    chosen = [c for c in cells(SECTIONS) if not c.case.alone][::150]
    verdicts = run.conformance("nvptx", chosen)
    assert not worse(REPORT.read_text(), verdicts)
    assert {v.state for v in verdicts} == {"pass"}


def test_the_report_has_every_cell() -> None:
    assert list(read(REPORT.read_text())) == [c.name for c in cells(SECTIONS)]


# --- as PTX


def kernels(function: Any, *arguments: Any) -> list[Kernel]:
    made = pb.jit(function)
    made(*arguments)
    return list(made.program.kernels)


def texts(function: Any, *arguments: Any, capability: int = 80) -> list[str]:
    target, own = backend._target(capability), backend.NVPTX()
    return [
        own.texts()["nvptx"](kernel, own.start(kernel, target), target)
        for kernel in kernels(function, *arguments)
    ]


def test_the_text_is_ptx() -> None:
    (text,) = texts(lambda x: pb.nn.functional.softmax(x, dim=1), X, capability=90)
    assert ".target sm_90" in text and ".visible .entry body(" in text
    assert "shfl.sync.bfly.b32" in text and "bar.warp.sync" in text
    assert ".extern" not in text and "ld.global.b32" in text


PROGRAMS = {
    "softmax": lambda x: pb.nn.functional.softmax(x, dim=1),
    "products": lambda x: pb.nn.functional.gelu(x @ x.T),
    "sums": lambda x: [pb.sum(x), pb.cumulative_sum(x, axis=1), pb.argmax(x, axis=0)],
    "circular": lambda x: pb.sin(x) + pb.tan(x.astype("float64")),
    "remainders": lambda x: pb.remainder(x, 0.7),
    "halves": lambda x: pb.mean(x.astype("float16") * x.astype("bfloat16")),
}


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.torch  # the stage of the gate that has Triton, whose wheel has ptxas
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_it_assembles(capability: int) -> None:
    for name, function in PROGRAMS.items():
        for text in texts(function, X, capability=capability):
            made = assembled(text, capability)
            assert made.cubin.startswith(b"\x7fELF") and made.spilled == 0, name
            assert 0 < made.registers <= 255, name


# --- as `gpu`
