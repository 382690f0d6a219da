"""One compiled trace of a function, and a call of it: addresses in, tensors out.

What a call need not find out again is found out once: which variables there are, in which order the
program wants their addresses, of what kind its results are, how they are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

from pullback.errors import Origin, ShapeError
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.runtime.executable import Executable
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.away import Away, Keeping, bound, keeping, settled_on
from pullback.tensor.record.constants import seen
from pullback.tensor.record.held import ALONE, Held, Kind, copied, fresh, kind_of
from pullback.tensor.record.trace import Cell, Handle, held, result_of, settled
from pullback.tensor.record.turns import turns


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A program whose state is arguments, captured handles, cells it writes, and results.

    `kinds`: of the results; None where an extent is symbolic. `flags`: the modules it used, with
    the mode each was in, and small arrays, with their contents. `looks`, `changes`: the states it
    reads, and writes, by `id`. `filled`: symbolic extents that must not be 0, with what is refused
    then, and where.
    """

    executable: Executable
    read: tuple[Handle, ...]
    written: tuple[Cell, ...]
    outputs: tuple[Variable, ...]
    kinds: tuple[Kind, ...] | None
    build: Callable[[Sequence[Any]], Any]
    flags: tuple[tuple[Any, Any], ...]
    looks: frozenset[int]
    changes: frozenset[int]
    filled: Mapping[Dim, tuple[str, Origin | None]]

    def fits(self) -> bool:
        """Whether the modules are in the mode, and arrays have the contents, of the trace."""
        for one, flag in self.flags:  # noqa: SIM110  # the generator of `all` costs two calls
            if seen(one) != flag:
                return False
        return True

    def call(self, given: list[Held]) -> Any:
        """Run on the arguments, a list that is the callee's, and on what captured handles hold now.

        Raises: ShapeError for the largest of an axis that is empty in this call.
        """
        if self.filled:
            self.check(given)
        if not self.written:
            if not self.read:
                return self.run(given)
            state = [*given, *held(self.read)]
            if turns.line and self.looks:  # looked at after they are held, see `turns`
                state = [*given, *settled(self.read)]
            return self.run(state)
        turn = turns.begin(self.looks, self.changes)
        try:
            state = [*given, *held(self.read)] if self.read else given.copy()
            if len(turns.line) > 1:
                turns.looked(turn)
            memory = self.memory()
            for cell in self.written:
                if memory is not None:
                    state.append(self.resident(memory, cell))
                    continue
                value = cell._node
                if isinstance(value, Held) and getrefcount(value) <= ALONE and value.alone:
                    state.append(value)
                else:
                    state.append(self.separated(cell))
            return self.run(state)
        finally:
            turns.end(turn)

    def check(self, given: Sequence[Held]) -> None:
        """Raises: ShapeError where an extent that must not be is 0."""
        for variable, known in zip(self.executable.program.state, given, strict=False):
            for extent, size in zip(variable.shape, known.kind.shape, strict=True):
                if size == 0 and isinstance(extent, Dim) and extent in self.filled:
                    name, origin = self.filled[extent]
                    raise ShapeError(
                        f"{name} over no elements: `{extent}` is 0 in this call",
                        origin=origin,
                        code="E118",
                    )

    def run(self, state: list[Held]) -> Any:
        """Run on the state but for the results, which are made here."""
        go, kinds = self.executable.runner.go, self.kinds
        if go is None or kinds is None:
            return self.by_arrays(state)
        if len(kinds) == 1:  # as below, without two comprehensions
            result = fresh("result", kinds[0])
            state.append(result)
            go([v.at for v in state])
            return self.build((Tensor.holding(result),))
        results = [fresh("result", kind) for kind in kinds]
        state += results
        go([v.at for v in state])
        return self.build([Tensor.holding(v) for v in results])

    def by_arrays(self, state: list[Held]) -> Any:
        """Run on arrays: on a device, or where extents are read off them."""
        memory = self.memory()
        if memory is not None:
            return self.on_device(memory, state)
        results = [fresh("result", kind) for kind in self.kinds or self.measured(state)]
        arrays = [v.array for v in (*state, *results)]
        self.executable.run(dict(zip(self.executable.program.state, arrays, strict=True)))
        return self.build([Tensor.holding(v) for v in results])

    def memory(self) -> Keeping | None:
        """Who keeps arrays on the program's device; None on this processor."""
        runner = self.executable.runner
        return keeping(runner) if runner.go is None else None

    def on_device(self, memory: Keeping, state: list[Held]) -> Any:
        """Run on what lies on the program's device by address; the results stay there."""
        results = [
            Away("result", kind, memory.room(kind.shape, kind.numpy))
            for kind in self.kinds or self.measured(state)
        ]
        arrays = [bound(v) for v in (*state, *results)]
        self.executable.run(dict(zip(self.executable.program.state, arrays, strict=True)))
        return self.build([Tensor.holding(v) for v in results])

    def resident(self, memory: Keeping, cell: Cell) -> Away:
        """What a cell holds, on the program's device, in memory of its own."""
        value = cell._node
        if not isinstance(value, Away) or value.resident.lent or getrefcount(value) > ALONE:
            held(self.written)
            variable = result_of(cell._value)
            assert isinstance(variable, Held), "cells are computed before they are written"
            value = settled_on(memory, variable)
            cell.assign(value)
        value.changes()
        return value

    def separated(self, cell: Cell) -> Held:
        """What a cell holds, in memory of its own if somebody else reads it."""
        held(self.written)
        variable = result_of(cell._value)
        assert isinstance(variable, Held), "cells are computed before they are written"
        if getrefcount(variable) > ALONE or not variable.alone:
            variable = copied(variable.array, variable.name)
            cell.assign(variable)
        return variable

    def measured(self, state: Sequence[Held]) -> list[Kind]:
        """The kinds of results whose extents are read off the state.

        Raises: ShapeError where two disagree.
        """
        sizes: dict[Dim, int] = {}
        for variable, known in zip(self.executable.program.state, state, strict=False):
            for extent, size in zip(variable.shape, known.kind.shape, strict=True):
                if isinstance(extent, Dim) and sizes.setdefault(extent, size) != size:
                    raise ShapeError(
                        f"`{extent}` is {sizes[extent]} and {size} in one call", code="E121"
                    )
        shapes = [
            tuple([sizes[e] if isinstance(e, Dim) else e for e in v.shape]) for v in self.outputs
        ]
        return [kind_of(s, v.dtype) for s, v in zip(shapes, self.outputs, strict=True)]
