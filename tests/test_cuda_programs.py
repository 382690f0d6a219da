"""Programs on a device that is none, by each backend whose code one runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_triton
import fake_warps
import pullback as pb
from fake_cuda import FakeCuda, Step
from on_device import both, same
from pullback.backends import registry
from pullback.backends.cuda import runner
from pullback.backends.nvptx.backend import NVPTX
from pullback.backends.triton import offline
from pullback.backends.triton.launched import TritonCuda
from pullback.backends.triton.machine import of_device
from pullback.config import Options
from pullback.conformance import run
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.errors import DeviceError, IndexRangeError, OptionError, UnsupportedError
from pullback.pipeline import compile_kernel
from test_backends import agree
from test_nvptx import HAS_C

ABSENT = find_spec("triton") is None
RNG = np.random.default_rng(0)
X = RNG.standard_normal((33, 70)).astype(np.float32)
SOME = ["softmax", "integers", "gather", "cumulative sum", "while"]
OWN: dict[str, Any] = {"nvptx": NVPTX(), "triton-cuda": TritonCuda()}
FAKES: dict[str, Any] = {"nvptx": fake_warps.device, "triton-cuda": fake_triton.device}
BACKENDS = [
    pytest.param(
        "nvptx", marks=pytest.mark.skipif(not HAS_C, reason="there is no C compiler for threads")
    ),
    pytest.param(
        "triton-cuda",
        marks=[  # the stage of the gate that has Triton
            pytest.mark.skipif(ABSENT, reason="Triton is not installed"),
            pytest.mark.torch,
        ],
    ),
]
each = pytest.mark.parametrize("name", BACKENDS)
needs_triton = pytest.mark.skipif(ABSENT, reason="Triton is not installed")
tritons = pytest.mark.parametrize("name", BACKENDS[1:])


@dataclass(frozen=True)
class On:
    """A backend on a fake device, as programs ask for it."""

    options: Options
    fake: FakeCuda
    blocks: Any


@pytest.fixture
def on(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    blocks = FAKES[name](monkeypatch)[1]
    yield On(Options(backend=name, cache=None), blocks.fake, blocks)


@pytest.mark.parametrize("program", SOME)
@each
def test_small_programs(program: str, on: On) -> None:
    agree(program, on.options.backend)
    assert on.fake.launched


@each
def test_gradients_and_an_update(on: On) -> None:
    w = RNG.standard_normal((70, 5)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        return pb.mean(pb.tanh(x @ w) ** 2)

    same(on.options, lambda w, x: [pb.value_and_grad(loss)(w, x)[1]], w, X)


@each
def test_a_loop_is_a_graph(on: On) -> None:
    def body(i: Any, h: Any) -> Any:
        return h * 0.5 + i

    def function(x: Any) -> Any:
        return pb.loop(6, body, x)

    made = pb.jit(function, options=on.options)
    x = np.arange(4, dtype=np.float32)
    want = pb.jit(function)(x).numpy()
    for _ in range(3):
        np.testing.assert_allclose(made(x).numpy(), want)
    own = made.program.runner.own
    assert isinstance(own, runner.CudaRunner) and own.replays >= 6
    assert on.fake.calls.count("cuStreamBeginCapture_v2") == len(own._graphs)


@each
def test_symbolic_extents_are_captured_again(on: On) -> None:
    n, w = pb.dim("n", 1, 1 << 12), np.eye(8, dtype=np.float32) * 0.5

    def body(i: Any, h: Any) -> Any:
        y = pb.tanh(h @ w)
        return h + pb.tanh((y + pb.sum(y, axis=0)) @ w)

    made = pb.jit(lambda x: pb.loop(3, body, x), shapes=[(n, 8)], options=on.options)
    arenas = []
    for size in (3, 40, 3, 1, 700, 39):
        x = RNG.standard_normal((size, 8)).astype(np.float32)
        want = x.copy()
        for _ in range(3):
            y = np.tanh(want @ w)
            want = want + np.tanh((y + y.sum(0)) @ w)
        for given in (x, pb.tensor(x).to("cuda")):
            np.testing.assert_allclose(made(given).numpy(), want, rtol=1e-4, atol=1e-5)
        arenas.append(made.program.runner.own._arena)
    assert len(set(arenas)) == 3 and arenas[1] == arenas[3], "it moves where it has to grow"


@each
def test_batches_in_and_snapshots_out(on: On) -> None:
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
    made = pb.jit(train, options=on.options)(x).numpy()
    sums = np.cumsum(np.arange(count))
    np.testing.assert_array_equal(made, np.full(5, sums[-1]))
    assert [s[0][0] for s in seen] == sums.tolist() and [int(s[1]) for s in seen] == [*range(count)]


@each
def test_branches_and_loops_that_the_host_decides(on: On) -> None:
    x = RNG.standard_normal(9).astype(np.float32)
    halved = lambda x: pb.while_loop(lambda v: pb.sum(pb.abs(v)) > 1.0, lambda v: v * 0.5, x)
    either = lambda x: pb.cond(pb.sum(x) > 0, lambda x: x * x, lambda x: x - 1, x)
    for given in (x, -x):
        same(on.options, lambda x: [halved(x), either(x)], given)


@each
def test_the_host_computes_between_launches(on: On) -> None:
    a = np.eye(4, dtype=np.float64) * 3 + RNG.standard_normal((4, 4)) * 0.1
    same(on.options, lambda a: pb.sum(pb.linalg.inv(a + 1) * 2, axis=0), a)


@each
def test_draws_are_those_of_other_backends(on: On) -> None:
    np.testing.assert_array_equal(
        *[
            np.array(side)
            for side in both(on.options, lambda: pb.random.normal((33,), key=pb.random.key(7)))
        ]
    )


@each
def test_an_index_out_of_range_tells_the_line(on: On) -> None:
    def function(x: Any, i: Any) -> Any:
        return pb.take(x, i, axis=0) * 2  # this line

    made = pb.jit(function, options=on.options)
    i = np.array([0, 2, 99, -1])
    with pytest.raises(IndexRangeError, match="99") as error:
        made(X, i)
    assert error.value.code == "E106" and "this line" in str(error.value)
    np.testing.assert_array_equal(made(X, np.array([1, 2, 0, 3])).numpy(), 2 * X[[1, 2, 0, 3]])


@each
def test_memory_is_given_back(on: On) -> None:
    """Of the device and of the host, streams, events, graphs and code, when a program goes."""
    batches = iter([np.ones(5, np.float32)] * 4)

    def train(h: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            h = h + pb.Feeder(lambda: next(batches), shape=(5,), dtype="float32")
            pb.Receiver(lambda a: None, [h])
            return h

        return pb.loop(9, body, h)

    made = pb.jit(train, options=on.options)
    made(np.zeros(5, np.float32))
    assert any(block.alive for block in on.fake.blocks)
    del made
    gc.collect()
    assert not any(block.alive for block in on.fake.blocks)
    functions = [h for h in on.fake.handles.values() if isinstance(h, tuple)]
    assert len(functions) == len(on.fake.handles), "streams, events and code"
    assert not any(isinstance(f[0], Step) for f in functions), "graphs"


@each
def test_single_kernels_are_not_run_on_the_host(on: On) -> None:
    """What would call a kernel by its address is told, and does not crash."""
    made = pb.jit(lambda x: x + 1, options=on.options)
    made(X)
    (kernel,) = made.program.kernels
    machine, _ = compile_kernel(kernel, OWN[on.options.backend].start, on.options)
    arrays = {v: np.zeros(v.shape, v.dtype.numpy) for v in kernel.arguments}
    with pytest.raises(DeviceError, match="not timed") as error:
        machine.run(arrays, {})
    assert error.value.code == "E365"


@each
def test_code_is_kept_for_another_process(on: On, tmp_path: Path) -> None:
    options = replace(on.options, cache=tmp_path)
    for _ in range(2):
        made = pb.jit(lambda x: pb.sum(x * 3), options=options)
        np.testing.assert_allclose(made(X).numpy(), (X * 3).sum(), rtol=1e-4)
    assert made.program.stats.compiled == 0 and made.program.stats.loaded
    other = pb.jit(lambda x: pb.sum(x * 5), options=options)
    np.testing.assert_allclose(other(X).numpy(), (X * 5).sum(), rtol=1e-4)
    assert other.program.stats.compiled == 1


@each
def test_without_a_device_it_is_told(name: str) -> None:
    with pytest.raises(DeviceError) as error:
        pb.jit(lambda x: x + 1, options=Options(backend=name, cache=None))(X)
    assert error.value.code == "E440"


@each
def test_what_runs_on_the_host_alone_is_refused(name: str) -> None:
    for asked in ({"check": True}, {"profile": True}):
        with pytest.raises(UnsupportedError, match="checks") as error:
            pb.jit(lambda x: x + 1, options=Options(backend=name, **asked))(X)
        assert error.value.code == "E358"


@each
def test_out_of_memory_says_what_was_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAKES[name](monkeypatch, total=1 << 12)
    with pytest.raises(DeviceError, match="the plan has 1 launch") as error:
        pb.jit(lambda x: x + 1, options=Options(backend=name, cache=None))(X)
    assert error.value.code == "E442"


@each
def test_a_device_of_no_known_architecture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAKES[name](monkeypatch, capability=50)
    with pytest.raises(DeviceError) as error:
        pb.jit(lambda x: x + 1, options=Options(backend=name, cache=None))(X)
    assert error.value.code == "E443"


@each
def test_gpu_is_triton_where_it_is_installed(
    name: str, on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = name == "triton-cuda"
    monkeypatch.setattr(registry, "find_spec", lambda package: there or None)
    options = Options(backend="gpu", cache=None)
    assert pb.jit(lambda x: pb.sum(x * 0 + 1), options=options)(X).item() == X.size
    assert on.fake.launched
    own = registry.named("gpu")
    assert own.name == name
    said = OWN[name].host()
    assert said.startswith(name) and "on a device that is none, sm_90" in said


@each
def test_what_begins_inside_of_a_vector_is_copied(on: On) -> None:
    """Memory that another library lends may begin anywhere; code reads whole vectors."""
    whole = pb.tensor(X).to("cuda")
    lent = Lent(whole.__cuda_array_interface__, 1, X.size - 70)
    tail = pb.asarray(lent)
    made = pb.jit(lambda x: pb.tanh(x) * 2, options=on.options)
    want = 2 * np.tanh(X.ravel()[1 : 1 + X.size - 70])
    np.testing.assert_allclose(made(tail).numpy(), want, rtol=1e-5)


class Lent:
    """Some elements of an array of a device, from one on, as its library shows them."""

    def __init__(self, facts: dict[str, Any], first: int, count: int) -> None:
        address, fixed = facts["data"]
        at = address + first * np.dtype(facts["typestr"]).itemsize
        self.__cuda_array_interface__ = {**facts, "data": (at, fixed), "shape": (count,)}


# --- Triton's


def train(w: Any, v: Any, x: Any, y: Any) -> Any:
    """Three steps of a net of two layers, with momentum."""

    def loss(w: Any) -> Any:
        return pb.mean((pb.nn.functional.gelu(x @ w) @ v - y) ** 2)

    def body(i: Any, state: Any) -> Any:
        w, m = state
        m = 0.9 * m + pb.grad(loss)(w)
        return w - 0.1 * m, m

    return pb.loop(3, body, (w, pb.zeros_like(w)))


@tritons
def test_a_whole_training_loop(on: On) -> None:
    w, v = (RNG.standard_normal(s).astype(np.float32) for s in ((70, 16), (16, 3)))
    y = RNG.standard_normal((33, 3)).astype(np.float32)
    same(on.options, train, w, v, X, y, error=1e-4)


@tritons
def test_boxes_of_symbolic_extents(on: On) -> None:
    """Rows are as far apart as the largest extent says, whatever a run has."""
    n, m = pb.dim("n", 1, 8), pb.dim("m", 1, 9)
    made = pb.jit(
        lambda x: [x.T @ x, pb.cumulative_sum(x, axis=1), pb.max(x, axis=0)],
        shapes=[(n, m)],
        options=on.options,
    )
    for shape in ((3, 4), (8, 9), (1, 1), (2, 7)):
        x = RNG.standard_normal(shape).astype(np.float32)
        for got, want in zip(made(x), (x.T @ x, x.cumsum(1), x.max(0)), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


@tritons
def test_every_check_of_a_kernel_has_its_words(on: On) -> None:
    """Two data indices in one program: the line of the one that is wrong."""

    def function(x: Any, i: Any, j: Any) -> Any:
        a = pb.take(x, i, axis=0)  # the rows
        b = pb.take(x, j, axis=1)  # the columns
        return pb.sum(a) + pb.sum(b)

    made = pb.jit(function, options=on.options)
    good = np.array([0, 2])
    for given, line in (
        ((good, np.array([70, 0])), "the columns"),
        ((np.array([0, -40]), good), "the rows"),
    ):
        with pytest.raises(IndexRangeError) as error:
            made(X, *given)
        assert line in str(error.value)
    np.testing.assert_allclose(made(X, good, good).numpy(), X[good].sum() + X[:, good].sum(), 1e-4)


@tritons
def test_a_counter_lies_where_it_fits(on: On) -> None:
    """Beside larger arrays: what is read of it is one number, not a vector."""
    same(on.options, lambda x: pb.loop(6, lambda i, h: h * 0.5 + i, x), X)


@tritons
def test_parts_of_a_sum_lie_between_its_launches(on: On) -> None:
    x = RNG.standard_normal((1, 200_000)).astype(np.float32)
    same(on.options, lambda x: [pb.sum(x, axis=1), pb.max(x, axis=1)], x, error=1e-4)
    assert len(on.fake.launched) > 2


@needs_triton
def test_tf32_and_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton.device(monkeypatch, devices=2)
    own = TritonCuda()
    names = [None, "cuda:0", "cuda:0+tf32", "cuda:1", "cuda:1+tf32"]
    targets = [own.machine(Options(backend=own.name, target=name)).name for name in names]
    assert targets == ["sm_90", "sm_90", "sm_90+tf32", "sm_90:1", "sm_90:1+tf32"]
    x = np.eye(32, dtype=np.float32)
    made = pb.jit(lambda x: x @ x, options=Options(backend=own.name, target="cuda:1", cache=None))
    np.testing.assert_array_equal(made(x).numpy(), x)


@needs_triton
@pytest.mark.parametrize("target", ["sm_90", "cuda", "cuda:x", "+tf32+tf32", "tf32"])
def test_what_is_no_device(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton.device(monkeypatch)
    with pytest.raises(OptionError) as error:
        TritonCuda().machine(Options(backend="triton-cuda", target=target))
    assert error.value.code == "E375"


@needs_triton
def test_numbers_of_another_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton.device(monkeypatch)
    own = TritonCuda()
    assert own.machine(Options(machine="h200")).cpu == "h200"
    for name in ("a100", "absent"):
        with pytest.raises(OptionError) as error:
            own.machine(Options(machine=name))
        assert error.value.code == "E375"


def test_a_device_has_the_numbers_of_its_name() -> None:
    for capability, about, name in (
        (90, "NVIDIA H200", "h200"),
        (90, "NVIDIA H100 80GB HBM3", "h100"),
        (80, "NVIDIA A30", "a100"),
        (89, "NVIDIA GeForce RTX 4090", "rtx4090"),
        (86, "NVIDIA A10", "rtx3090"),
        (120, "NVIDIA GeForce RTX 5090", "rtx5090"),
    ):
        assert of_device(capability, about).name == name


@tritons
def test_cubins_of_the_compiler_are_what_is_loaded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is a mark: Triton compiles, the driver looks for the functions by their names."""
    real = offline.compiled
    blocks = fake_triton.device(monkeypatch)[1]
    monkeypatch.setattr(offline, "compiled", real)
    made = pb.jit(
        lambda x: pb.nn.functional.softmax(x, dim=1), options=Options(backend=name, cache=None)
    )
    np.testing.assert_allclose(made(X).numpy().sum(1), np.ones(33), rtol=1e-5)
    (code,) = made.program.image.codes
    assert code.engine.images[0].startswith(b"\x7fELF") and len(code.engine.images[0]) > 1000
    assert blocks.fake.launched


@tritons
def test_a_sample_of_the_conformance_suite(on: On) -> None:
    chosen = [c for c in cells(SECTIONS) if not c.case.alone][::60]
    verdicts = run.conformance("triton-cuda", chosen)
    assert {v.state for v in verdicts} == {"pass"}, [v for v in verdicts if v.state != "pass"]


@tritons
def test_explain_shows_the_schedules_of_blocks(on: On) -> None:
    made = pb.jit(lambda x: pb.nn.functional.softmax(x, dim=1), options=on.options)
    made(X)
    text = made.program.explain()
    assert "warps" in text and "tl.exp" in made.program.source() and "tile" not in text
