"""The interpreters as backends: `reference` runs definitions, `kernels` what they are fused to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.backends.base import GraphInterpreter, KernelInterpreter, Values
from pullback.backends.host.processor import chosen_target
from pullback.backends.reference.definitions import evaluate, infer_sizes
from pullback.backends.reference.kernels import run_kernel
from pullback.config import Options
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target


class Reference(GraphInterpreter):
    """Definitions with NumPy, one after the other: the oracle."""

    name = "reference"

    def run_graph(self, graph: Graph, values: Mapping[Variable, Any]) -> Values:
        return evaluate(graph, {v: values[v] for v in graph.inputs}, infer_sizes(values))


class Kernels(KernelInterpreter):
    """Kernels with NumPy, tile by tile: tells a fault of fusion from one of code."""

    name = "kernels"

    def machine(self, options: Options) -> Target:
        return chosen_target(options.target, options.machine)

    def run_kernel(self, kernel: Kernel, values: Mapping[Variable, Any]) -> Values:
        given = {v: values[v] for v in kernel.arguments if v in values}
        return run_kernel(kernel, given, sizes=infer_sizes(values))
