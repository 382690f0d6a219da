"""A hundred random programs with their gradients: the same text whatever the hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from pullback.config import Options
from pullback.grad.reverse import gradients
from pullback.ir.dtype import float64
from pullback.ir.graph import Graph, Variable
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.simplify.graph import simplify_graph
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


def test_programs_do_not_depend_on_the_hash_seed() -> None:
    command = [sys.executable, __file__]
    runs = [
        subprocess.Popen(
            command, env=os.environ | {"PYTHONHASHSEED": str(seed)}, stdout=subprocess.PIPE
        )
        for seed in (1, 2)
    ]
    first, second = (run.communicate()[0].decode().splitlines() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first) == PROGRAMS and len(set(first)) > PROGRAMS // 2
    differing = [n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    assert not differing


if __name__ == "__main__":
    for number in range(PROGRAMS):
        print(hashlib.sha256(text(number).encode()).hexdigest())
