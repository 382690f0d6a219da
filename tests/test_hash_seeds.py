"""A hundred random programs with their gradients: the same text whatever the hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time

import pytest

from pullback.config import Options
from pullback.grad.reverse import gradients
from pullback.ir.dtype import float32, float64
from pullback.ir.graph import Graph, Variable
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.nn.functional import conv2d
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.simplify.graph import simplify_graph
from pullback.tensor.derive.autograd import grad
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import zeros
from pullback.tensor.record.trace import realize
from pullback.tensor.run.program import jit
from random_programs import Maker

PROGRAMS = 100
FUSED = 5  # every fifth is fused, too; `test_replay` does so with programs of another kind


def text(seed: int) -> str:
    """Random program `seed`: its value and all its gradients, simplified, perhaps fused."""
    output, arrays = Maker(seed).build()
    inputs = [v for v in arrays if v.dtype.is_float]
    head = Variable("head", output.shape, float64)
    wanted = [output, *gradients(output, inputs, head)]
    results = [Variable(f"result{n}", v.shape, v.dtype) for n, v in enumerate(wanted)]
    graph = Graph(tuple(zip(results, wanted, strict=True)))
    parts = [show(graph), show(simplify_graph(graph))]
    if seed % FUSED == 0:
        options = Options(backend="reference", cache=None)
        parts += map(show, fuse_graph(graph, Target(), Reporter(options)))
    return "\n".join(parts)


@pytest.mark.parametrize("start", [0, pytest.param(PROGRAMS // 2, marks=pytest.mark.slow)])
def test_programs_do_not_depend_on_the_hash_seed(start: int) -> None:
    """Of either half, every fifth fused; the default run has the first."""
    command = [sys.executable, __file__, str(start)]
    runs = [
        subprocess.Popen(
            command, env=os.environ | {"PYTHONHASHSEED": str(seed)}, stdout=subprocess.PIPE
        )
        for seed in (1, 2)
    ]
    first, second = (run.communicate()[0].decode().splitlines() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first) == PROGRAMS // 2 and len(set(first)) > PROGRAMS // 4
    differing = [n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    assert not differing


SHAPES = {
    "a determinism test": ((32, 512, 16, 16), (1024, 512, 1, 1), {"stride": 2}),
    "an issue": ((1, 128, 7, 7), (128, 128, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_hundred_constructions_are_one(name: str) -> None:
    """Both gradients of a convolution, derived a hundred times; TVM's shapes."""
    image, kernel, settings = SHAPES[name]
    found = set()
    for _ in range(PROGRAMS):
        x, w = Variable("x", image, float32), Variable("w", kernel, float32)
        y = conv2d(Tensor(x), Tensor(w), **settings).value
        head = Variable("head", y.shape, y.dtype)
        targets = [Variable(f"d{v.name}", v.shape, v.dtype) for v in (x, w)]
        graph = Graph(tuple(zip(targets, gradients(y, [x, w], head), strict=True)))
        found.add(show(graph) + show(simplify_graph(graph)))
    assert len(found) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_a_convolution_compile_fast(name: str) -> None:
    """Under a second of all threads, the first run included; TVM's issue had no schedule."""
    image, kernel, settings = SHAPES[name]

    def slopes(x: Tensor, w: Tensor) -> list[Tensor]:
        return grad(conv2d(x, w, **settings).sum(), [x, w])

    x, w = (zeros(s, dtype=float32) for s in (image, kernel))
    realize([x, w])
    compiled = jit(slopes, options=Options(cache=None))
    began = time.process_time()
    compiled(x, w)
    assert time.process_time() - began < 1.0


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[1]) + PROGRAMS // 2):
        print(hashlib.sha256(text(number).encode()).hexdigest())
