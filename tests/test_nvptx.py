"""The backend `nvptx`: its code, run thread by thread on a device that is none, and assembled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_warps
import pullback as pb
from fake_cuda import Step, Violation
from fake_warps import Warps
from pullback.backends import registry
from pullback.backends.c.compiler import compiler
from pullback.backends.cuda import runner
from pullback.backends.nvptx import assemble, backend, warp
from pullback.backends.nvptx.assemble import assembled
from pullback.config import Options
from pullback.conformance import run
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.conformance.report import read, worse
from pullback.errors import CompilerError, DeviceError, IndexRangeError, UnsupportedError
from pullback.ir.kernel import Kernel
from pullback.pipeline import compile_kernel
from test_backends import agree

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


def both(function: Any, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """What the device and the oracle make of a function."""
    made = []
    for options in (OPTIONS, Options(backend="reference", cache=None)):
        given = pb.jit(function, options=options)(*arguments)
        every = given if isinstance(given, list | tuple) else [given]
        made.append([value.numpy() for value in every])
    return made[0], made[1]


def same(function: Any, *arguments: Any, error: float = 1e-5) -> None:
    for got, want in zip(*both(function, *arguments), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=error, atol=error)


@needs_c
@pytest.mark.parametrize("name", SOME)
def test_small_programs(name: str, warps: Warps) -> None:
    agree(name, "nvptx")
    assert warps.fake.launched


@pytest.mark.sampled(2)
@needs_c
@pytest.mark.parametrize("backwards", [False, True])
def test_threads_share_sums_tiles_and_tails(warps: Warps, backwards: bool) -> None:
    """Rows that no 32 divides, few and many terms, tiles, the last and the first thread first."""
    warps.backwards = backwards
    for shape in ((1, 1), (3, 31), (33, 70), (5, 257)):
        x = RNG.standard_normal(shape).astype(np.float32)
        same(lambda x: [pb.sum(x), pb.sum(x, axis=0), pb.max(x, axis=1), x.T + 1], x)
    same(lambda x: [x @ x.T, pb.nn.functional.relu(x.T @ x + 1)], X, error=1e-4)
    same(lambda x: [pb.argmax(x, axis=1), pb.sort(x, axis=1)], X)
    same(lambda x: [pb.var(x), pb.logsumexp(x, axis=0)], X)


@needs_c
def test_a_product_has_many_tiles(warps: Warps) -> None:
    a = RNG.standard_normal((130, 150)).astype(np.float32)
    same(lambda a: a @ a.T, a, error=1e-4)
    (launch,) = warps.fake.launched
    assert launch[1] * launch[2] >= 16 * 32  # 9 x 3 tiles, in a power of two of tasks


@needs_c
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int8", "uint64", "bool"])
def test_element_types(kind: str, warps: Warps) -> None:
    x = pb.tensor(RNG.integers(0, 2, (7, 45))).astype(kind)
    plain = lambda x: [x, pb.max(x, axis=1), pb.flip(x, axis=1)]
    for got, want in zip(*both(plain, x), strict=True):
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
def test_gradients_and_an_update(warps: Warps) -> None:
    w = RNG.standard_normal((70, 5)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        return pb.mean(pb.tanh(x @ w) ** 2)

    same(lambda w, x: [pb.value_and_grad(loss)(w, x)[1]], w, X)


@needs_c
def test_a_loop_is_a_graph(warps: Warps) -> None:
    def body(i: Any, h: Any) -> Any:
        return h * 0.5 + i

    def function(x: Any) -> Any:
        return pb.loop(6, body, x)

    made = pb.jit(function, options=OPTIONS)
    x = np.arange(4, dtype=np.float32)
    want = pb.jit(function)(x).numpy()
    for _ in range(3):
        np.testing.assert_allclose(made(x).numpy(), want)
    own = made.program.runner.own
    assert isinstance(own, runner.CudaRunner) and own.replays >= 6
    assert warps.fake.calls.count("cuStreamBeginCapture_v2") == len(own._graphs)


@needs_c
def test_symbolic_extents_are_captured_again(warps: Warps) -> None:
    n = pb.dim("n", 1, 8)
    made = pb.jit(
        lambda x: pb.loop(3, lambda i, h: h + pb.sum(h), x), shapes=[(n,)], options=OPTIONS
    )
    for size in (3, 8, 3):
        x = np.arange(size, dtype=np.float32)
        want = x.copy()
        for _ in range(3):
            want = want + want.sum()
        np.testing.assert_allclose(made(x).numpy(), want, rtol=1e-6)


@needs_c
def test_batches_in_and_snapshots_out(warps: Warps) -> None:
    """More than there are rooms for; in order, and each as it was when it was reached."""
    count, seen = 9, []
    batches = iter([np.full(5, n, np.float32) for n in range(count)])

    def train(h: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            h = h + pb.Feeder(lambda: next(batches), shape=(5,), dtype="float32")
            pb.Receiver(lambda *a: seen.append([np.array(x) for x in a]), [h, i])
            return h

        return pb.loop(100, body, h)

    x = np.zeros(5, np.float32)
    made = pb.jit(train, options=OPTIONS)(x).numpy()
    sums = np.cumsum(np.arange(count))
    np.testing.assert_array_equal(made, np.full(5, sums[-1]))
    assert [s[0][0] for s in seen] == sums.tolist() and [int(s[1]) for s in seen] == [*range(count)]


@needs_c
def test_branches_and_loops_that_the_host_decides(warps: Warps) -> None:
    x = RNG.standard_normal(9).astype(np.float32)
    halved = lambda x: pb.while_loop(lambda v: pb.sum(pb.abs(v)) > 1.0, lambda v: v * 0.5, x)
    either = lambda x: pb.cond(pb.sum(x) > 0, lambda x: x * x, lambda x: x - 1, x)
    for given in (x, -x):
        same(lambda x: [halved(x), either(x)], given)


@needs_c
def test_the_host_computes_between_launches(warps: Warps) -> None:
    a = np.eye(4, dtype=np.float64) * 3 + RNG.standard_normal((4, 4)) * 0.1
    same(lambda a: pb.sum(pb.linalg.inv(a + 1) * 2, axis=0), a)


@needs_c
def test_draws_are_those_of_other_backends(warps: Warps) -> None:
    np.testing.assert_array_equal(
        *[np.array(side) for side in both(lambda: pb.random.normal((33,), key=pb.random.key(7)))]
    )


@needs_c
def test_an_index_out_of_range_tells_the_line(warps: Warps) -> None:
    def function(x: Any, i: Any) -> Any:
        return pb.take(x, i, axis=0) * 2  # this line

    made = pb.jit(function, options=OPTIONS)
    i = np.array([0, 2, 99, -1])
    with pytest.raises(IndexRangeError, match="99") as error:
        made(X, i)
    assert error.value.code == "E106" and "this line" in str(error.value)
    np.testing.assert_array_equal(made(X, np.array([1, 2, 0, 3])).numpy(), 2 * X[[1, 2, 0, 3]])


@needs_c
def test_memory_is_given_back(warps: Warps) -> None:
    """Of the device and of the host, streams, events, graphs and code, when a program goes."""
    batches = iter([np.ones(5, np.float32)] * 4)

    def train(h: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            h = h + pb.Feeder(lambda: next(batches), shape=(5,), dtype="float32")
            pb.Receiver(lambda a: None, [h])
            return h

        return pb.loop(9, body, h)

    made = pb.jit(train, options=OPTIONS)
    made(np.zeros(5, np.float32))
    assert any(block.alive for block in warps.fake.blocks)
    del made
    gc.collect()
    assert not any(block.alive for block in warps.fake.blocks)
    functions = [h for h in warps.fake.handles.values() if isinstance(h, tuple)]
    assert len(functions) == len(warps.fake.handles), "streams, events and code"
    assert not any(isinstance(f[0], Step) for f in functions), "graphs"


@needs_c
def test_single_kernels_are_not_run_on_the_host(warps: Warps) -> None:
    """What would call a kernel by its address is told, and does not crash."""
    made = pb.jit(lambda x: x + 1, options=OPTIONS)
    made(X)
    (kernel,) = made.program.kernels
    machine, _ = compile_kernel(kernel, backend.NVPTX().start, OPTIONS)
    arrays = {v: np.zeros(v.shape, v.dtype.numpy) for v in kernel.arguments}
    with pytest.raises(DeviceError, match="not timed") as error:
        machine.run(arrays, {})
    assert error.value.code == "E365"


@needs_c
def test_code_is_kept_for_another_process(warps: Warps, tmp_path: Path) -> None:
    options = Options(backend="nvptx", cache=tmp_path)
    for _ in range(2):
        made = pb.jit(lambda x: pb.sum(x * 3), options=options)
        np.testing.assert_allclose(made(X).numpy(), (X * 3).sum(), rtol=1e-4)
    assert made.program.stats.compiled == 0 and made.program.stats.loaded


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


def test_without_a_device_it_is_told() -> None:
    with pytest.raises(DeviceError) as error:
        pb.jit(lambda x: x + 1, options=OPTIONS)(X)
    assert error.value.code == "E440"


def test_what_runs_on_the_host_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="checks") as error:
        pb.jit(lambda x: x + 1, options=Options(backend="nvptx", check=True))(X)
    assert error.value.code == "E358"


def test_out_of_memory_says_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_warps.device(monkeypatch, total=1 << 12)
    if not HAS_C:
        monkeypatch.setattr(Warps, "add", lambda *_: None)
    with pytest.raises(DeviceError, match="the plan has 1 launch") as error:
        pb.jit(lambda x: x + 1, options=OPTIONS)(X)
    assert error.value.code == "E442"


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


@needs_c
def test_gpu_is_what_launches_on_a_device(warps: Warps) -> None:
    options = Options(backend="gpu", cache=None)
    assert pb.jit(lambda x: pb.sum(x * 0 + 1), options=options)(X).item() == X.size
    assert warps.fake.launched
    own = registry.named("gpu")
    assert isinstance(own, backend.NVPTX)
    assert own.host().startswith("nvptx on a device that is none, sm_90")


def test_a_device_of_no_known_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_warps.device(monkeypatch, capability=50)
    with pytest.raises(DeviceError) as error:
        pb.jit(lambda x: x + 1, options=OPTIONS)(X)
    assert error.value.code == "E443"
