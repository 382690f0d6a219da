"""Whole programs: backends agree, extents are symbolic, compiling is rare, everything is text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from acceptance_support import TWO_THREADS, Array, arrays, close, normal
from pullback import nn, optim
from pullback.cli.graph_text import parse_graph
from pullback.config import Options
from pullback.ir.signature import kernel_digest
from pullback.ir.text import show
from pullback.nn import functional as F
from small_programs import PROGRAMS

LIVE_NODES = 50_000


def results(name: str, kind: str, backend: str) -> list[Array]:
    function, arguments = PROGRAMS[name](kind)
    options = Options(backend=backend, threads=2, cache=None)
    found = arrays(pb.jit(function, options=options)(*arguments))
    return found if isinstance(found, list) else [found]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_backends_agree(name: str) -> None:
    scale = 0.0
    for kind in ("float64", "float32"):
        plain, native = (results(name, kind, b) for b in ("reference", "llvm"))
        for want, found in zip(plain, native, strict=True):
            assert found.shape == want.shape and found.dtype == want.dtype
            assert np.isfinite(want.astype(np.float64)).all()
            if want.dtype.kind in "iub":
                np.testing.assert_array_equal(found, want)
                continue
            scale = max(scale, float(np.abs(want.astype(np.float64)).max()))
            close(found, want, scale, kind)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["matmul", "layer norm", "causal attention", "convolution"])
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    function, arguments = PROGRAMS[name]("float32")
    runs = [
        arrays(pb.jit(function, options=Options(threads=n, cache=None))(*arguments))
        for n in (1, 2, 3)
    ]
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


# --- symbolic extents


def compiled_once(function: Any, shapes: list[Any]) -> Any:
    return pb.jit(function, shapes=shapes, options=TWO_THREADS)


def test_softmax_over_a_symbolic_extent() -> None:
    n = pb.dim("n", 1, 64)
    f = compiled_once(lambda x: F.softmax(x, dim=-1), [(3, n)])
    programs = set()
    for size in range(1, 65):
        x = normal(3, size, seed=size, scale=9)
        found = np.array(f(x))
        assert found.shape == (3, size)
        exps = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        np.testing.assert_allclose(found, exps / exps.sum(-1, keepdims=True), atol=1e-6)
        programs.add(id(f.program))
    assert f.traces == len(programs) == 1


def test_linear_over_a_symbolic_extent() -> None:
    n = pb.dim("n", 1, 64)
    w, b = normal(33, 20, seed=1), normal(33, seed=2)
    given, shift = pb.tensor(w), pb.tensor(b)

    def both(x: Any) -> Any:
        y = F.relu(F.linear(x, given, shift))
        return [y, *pb.grad((y * y).sum(), [x, given, shift])]

    f = compiled_once(both, [(n, 20)])
    for size in range(1, 65):
        x = normal(size, 20, seed=size)
        y, dx, dw, db = arrays(f(x))
        plain = np.maximum(x @ w.T + b, 0)
        np.testing.assert_allclose(y, plain, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dx, 2 * plain @ w, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(dw, 2 * plain.T @ x, rtol=1e-3, atol=2e-3)
        np.testing.assert_allclose(db, 2 * plain.sum(0), rtol=1e-3, atol=1e-3)
    assert f.traces == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_a_symbolic_extent(causal: bool) -> None:
    n = pb.dim("n", 1, 64)

    def both(q: Any, k: Any, v: Any) -> Any:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return [y, *pb.grad((y * y).sum(), [q, k, v])]

    f = compiled_once(both, [(2, n, 8)] * 3)
    for size in range(1, 65):
        q, k, v = (normal(2, size, 8, seed=100 * size + s) for s in range(3))
        y, dq, dk, dv = arrays(f(q, k, v))
        scores = (q @ np.swapaxes(k, 1, 2)).astype(np.float64) / np.sqrt(8)
        if causal:
            scores = np.where(np.tri(size, dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        np.testing.assert_allclose(y, p @ v, rtol=1e-4, atol=1e-5)
        r = 2 * (p @ v)
        dp = r @ np.swapaxes(v, 1, 2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(8)
        np.testing.assert_allclose(dv, np.swapaxes(p, 1, 2) @ r, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(dq, ds @ k, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(dk, np.swapaxes(ds, 1, 2) @ q, rtol=1e-3, atol=1e-4)
    assert f.traces == 1


# --- compiling is rare


def encoder_program(layers: int, options: Options) -> Any:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers)
    opt = optim.SGD(model.parameters(), lr=0.01)
    x = pb.tensor(normal(2, 64))

    def step() -> None:
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()

    @pb.jit(options=options)
    def train() -> None:
        pb.loop(range(2), step)

    train()
    return train.program


@pytest.mark.slow
def test_equal_layers_compile_once() -> None:
    few, many = (encoder_program(n, TWO_THREADS) for n in (3, 6))
    kinds = [len({kernel_digest(k) for k in p.kernels}) for p in (few, many)]
    assert kinds[1] <= kinds[0], "the layers in between are alike"
    assert len(many.kernels) > 1.8 * len(few.kernels) - 14
    assert many.stats.compiled <= few.stats.compiled


PROCESS = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from pullback.config import Options
from pullback.ir.node import Node
from test_acceptance_program import encoder_program
program = encoder_program({layers}, Options(threads=2, cache=Path({cache!r})))
print(json.dumps([program.stats.compiled, len(Node._interned), len(program.kernels)]))
"""


def process(cache: Path, layers: int) -> list[str]:
    """The command of a process that trains an encoder."""
    tests = str(Path(__file__).parent)
    script = PROCESS.format(tests=tests, cache=str(cache), layers=layers)
    return [sys.executable, "-c", script]


def finished(done: subprocess.Popen[str]) -> list[int]:
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    return [int(n) for n in json.loads(out.splitlines()[-1])]


def start(cache: Path, layers: int) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(process(cache, layers), stdout=pipe, stderr=pipe, text=True)


def test_a_second_process_compiles_nothing_and_six_layers_are_few_nodes(tmp_path: Path) -> None:
    compiled, live, kernels = finished(start(tmp_path, 6))
    assert compiled > 0
    assert live <= LIVE_NODES
    assert kernels <= 14 * 6
    assert finished(start(tmp_path, 6))[0] == 0


@pytest.mark.slow
def test_processes_share_a_cache_and_rebuild_what_is_altered(tmp_path: Path) -> None:
    together = [start(tmp_path, 1) for _ in range(2)]
    kernels = {finished(p)[2] for p in together}
    assert len(kernels) == 1
    assert finished(start(tmp_path, 1))[0] == 0
    for path in sorted(tmp_path.glob("*.*")):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 0xFF
        path.write_bytes(raw)
    compiled, _, number = finished(start(tmp_path, 1))
    assert compiled > 0
    assert {number} == kernels


# --- everything can be looked at


@pytest.mark.slow
def test_dumps_are_read_back(tmp_path: Path) -> None:
    function, arguments = PROGRAMS["encoder layer"]("float32")
    options = Options(threads=2, cache=None, dump=tmp_path)
    pb.jit(function, options=options)(*arguments)
    names = sorted(p.name for p in tmp_path.glob("*.txt"))
    assert [n.split("-")[0] for n in names] == [f"{n:04}" for n in range(len(names))]
    for stage in ("trace", "traced-graph", "simplified-graph", "kernel", "schedule", "nest"):
        assert any(n[5:].startswith(stage) for n in names), stage
    graphs = sorted(tmp_path.glob("*-graph.txt"))
    assert graphs
    for path in graphs:
        text = path.read_text()
        assert show(parse_graph(text)).strip() == text.strip(), path.name


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_debug_levels_print_more_and_more(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    function, arguments = PROGRAMS["softmax"]("float32")
    pb.jit(function, options=Options(threads=2, cache=None, debug=level))(*arguments)
    printed = capsys.readouterr().err
    assert "pullback" in printed
    wanted = {2: "graph", 3: "kernel ", 4: "define void @body"}
    for least, word in wanted.items():
        assert (word in printed) == (level >= least), word


def test_the_environment_chooses_the_backend() -> None:
    script = (
        "import pullback as pb; f = pb.jit(lambda x: x + 1); print(f(pb.ones(3)).numpy());"
        "print(f.program.options.backend)"
    )
    env = os.environ | {"PULLBACK_BACKEND": "reference"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[2.", "2.", "2.]", "reference"]


def test_the_learning_rate_is_state() -> None:
    w = nn.Parameter(np.ones(4, np.float32))
    opt = optim.SGD([w], lr=0.5)

    @pb.jit(options=TWO_THREADS)
    def train() -> None:
        def step() -> None:
            opt.zero_grad()
            w.sum().backward()
            opt.step()

        pb.loop(range(2), step)

    train()
    np.testing.assert_allclose(np.array(w), 0.0, atol=1e-6)
    opt.lr = 0.25
    train()
    np.testing.assert_allclose(np.array(w), -0.5, atol=1e-6)
    assert train.traces == 1


# --- values keep their meaning


def test_snapshots_never_change_later() -> None:
    count = nn.Parameter(np.zeros((2, 3), np.float32))
    kept: list[Array] = []

    def step() -> None:
        count.assign(count + 1.0)
        pb.Receiver(kept.append, [count])

    pb.jit(lambda: pb.loop(range(20), step), options=TWO_THREADS)()
    assert [float(a[0, 0]) for a in kept] == list(range(1, 21))
    assert not any(a.flags.writeable for a in kept)


def test_a_value_made_before_a_loop_lives_through_it() -> None:
    x = normal(48, 48, seed=1, scale=0.2)
    state = nn.Parameter(normal(48, 48, seed=2, scale=0.2))
    plain = np.array(state).astype(np.float64)

    @pb.jit(options=TWO_THREADS)
    def train(x: Any) -> None:
        before = pb.tanh(x @ x)

        def step() -> None:
            first = state @ before
            second = pb.tanh(first @ first.mT) @ first
            third = pb.tanh(second @ second.mT) @ second
            state.assign(state + 0.01 * third)

        pb.loop(range(4), step)

    train(x)
    before = np.tanh(x.astype(np.float64) @ x)
    for _ in range(4):
        first = plain @ before
        second = np.tanh(first @ first.T) @ first
        plain = plain + 0.01 * np.tanh(second @ second.T) @ second
    np.testing.assert_allclose(np.array(state), plain, rtol=1e-4, atol=1e-5)
