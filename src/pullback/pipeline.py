"""The passes, in order, on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pullback.backends.reference.definitions import evaluate
from pullback.config import Options
from pullback.ir.graph import Variable
from pullback.ir.program import Compute, Program

Array = np.ndarray[Any, Any]


class Executable:
    """A compiled program."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.options = options

    def run(self, bindings: Mapping[Variable, Array]) -> None:
        """Run it on `bindings`: an array for each state variable, updated in place."""
        for item in self.program.body:
            if not isinstance(item, Compute):
                raise NotImplementedError(type(item).__name__)
            for variable, array in evaluate(item.graph, dict(bindings)).items():
                bindings[variable][...] = array


def compile_program(program: Program, options: Options) -> Executable:
    """Program -> Executable."""
    return Executable(program, options)
