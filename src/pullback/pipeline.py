"""The passes, in order, on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pullback.backends.reference.definitions import evaluate
from pullback.config import Options
from pullback.errors import UnsupportedError
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Program
from pullback.runtime.interpret import Interpreter

Array = np.ndarray[Any, Any]


class Executable:
    """A compiled program."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.options = options
        self.launches = 0

    def run(self, bindings: Mapping[Variable, Array]) -> None:
        """Run it on `bindings`: an array for each state variable, updated in place."""
        interpreter = Interpreter(dict(bindings), _compute, _launch)
        try:
            interpreter.run(self.program.body)
        finally:
            self.launches = interpreter.launches
            for variable, array in bindings.items():
                result = interpreter.values[variable]
                if result is not array:
                    array[...] = result


def _compute(graph: Graph, values: dict[Variable, Array]) -> dict[Variable, Array]:
    return evaluate(graph, {v: values[v] for v in graph.inputs})


def _launch(kernel: Kernel, values: dict[Variable, Array]) -> dict[Variable, Array]:
    raise UnsupportedError(f"kernel {kernel.name} in the definitions' interpreter")


def compile_program(program: Program, options: Options) -> Executable:
    """Program -> Executable."""
    return Executable(program, options)
