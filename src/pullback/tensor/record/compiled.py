"""The programs of graphs that are computed at once, compiled unless an equal one was."""

from __future__ import annotations

from collections.abc import Callable

from pullback.config import Options
from pullback.errors import ShapeError
from pullback.ir.expr import Axis, Dim, Pin, Size
from pullback.ir.graph import Graph, Value, Variable, topological
from pullback.ir.node import walk
from pullback.ir.program import Compute, Program
from pullback.ir.signature import graph_signature
from pullback.pipeline import compile_program
from pullback.runtime.executable import Executable
from pullback.simplify.graph import rewire
from pullback.tensor.record.held import Held

KEPT = 1024  # eager programs; the one not used for longest goes first


class Compiled:
    """Programs by the signature of their graph and by what the environment says of compiling.

    `count`: how many this process has compiled.
    """

    def __init__(self) -> None:
        self.programs: dict[tuple[str, Options], Executable] = {}
        self.count = 0

    def of(self, graph: Graph) -> Executable:
        """The program of a graph. It refers to nothing of the user's.

        Only one thread at a time is in here.
        """
        options = Options.from_environment()
        key = graph_signature(graph), options
        program = self.programs.pop(key, None)
        if program is None:
            _check_known(graph)
            inputs: dict[Value, Value] = {v: _twin(v) for v in graph.inputs}
            values = rewire([d for _, d in graph.assigns], inputs)
            outputs = [_twin(v) for v, _ in graph.assigns]
            body = Compute(Graph(tuple(zip(outputs, values, strict=True))))
            state = [v for v in (*inputs.values(), *outputs) if isinstance(v, Variable)]
            program = compile_program(Program((body,), tuple(state)), options)
            self.count += 1
            if len(self.programs) >= KEPT:
                del self.programs[next(iter(self.programs))]
        self.programs[key] = program
        return program


def _check_known(graph: Graph) -> None:
    """Raises: ShapeError where an extent is symbolic: outside of `jit` no argument has its size."""
    for definition in topological(value for _, value in graph.assigns):
        bounds = [n for n in walk(definition.roots) if isinstance(n, Axis | Size)]
        extents = [n.dim if isinstance(n, Size) else n.extent for n in bounds]
        for extent in (*definition.shape, *extents):
            if isinstance(extent, Dim) and not isinstance(extent, Pin):
                raise ShapeError(
                    f"the symbolic extent {extent} has no size here",
                    origin=definition.origin,
                    help="it is that of an argument: pb.jit(f, shapes=[(n,)])",
                    code="E129",
                )


def _twin(variable: Variable) -> Variable:
    return Variable(variable.name, variable.shape, variable.dtype, variable.origin)


def runs(program: Executable) -> Callable[[list[Held]], None]:
    """How a program runs on what its state holds."""
    go, state = program.runner.go, program.program.state

    def run(held: list[Held]) -> None:
        if go is None:
            program.run(dict(zip(state, [v.array for v in held], strict=True)))
        else:
            go([v.at for v in held])

    return run
