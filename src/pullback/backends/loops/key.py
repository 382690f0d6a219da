"""A routine's identity: a hash of its structure, stable between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from pullback.errors import InvalidIR
from pullback.ir.dtype import DType
from pullback.ir.graph import Combiner
from pullback.ir.nest import (
    Array,
    Combine,
    For,
    Guard,
    Register,
    Routine,
    Stmt,
    StoreCombine,
    Var,
)
from pullback.ir.node import Node, walk
from pullback.ir.signature import digest
from pullback.ir.statements import Given, roots


@cache
def source_digest(room: Path) -> str:
    """A hash of an emitter's room and of what it shares: other emitters write other code."""
    own = Path(__file__).parent
    rooms = room, own, own.with_name("nests")
    files = [f for room in rooms for f in sorted(room.glob("*.py"))]
    return digest(*(f.read_text() for f in files))


def routine_key(routine: Routine) -> str:
    """A text that is equal for routines that compile to the same code. Names do not count."""
    return _Writer(routine).text()


class _Writer:
    """Numbers everything in order of appearance."""

    def __init__(self, routine: Routine) -> None:
        self.lines: list[str] = []
        self.numbers: dict[Any, int] = {}
        for array in (*routine.arguments, *routine.shared, *routine.scratch):
            self._name(array, f"{array.dtype} {array.size}")
        past = [n for n, a in enumerate(routine.arguments) if a in routine.streamed]
        self.lines.append(f"streamed {past}")
        counts = [len(routine.arguments), len(routine.shared), len(routine.scratch)]
        self.lines.append(f"{counts} {len(routine.sizes)}")
        for var in (*routine.sizes, routine.task):
            self._expression(var)
        for body in (routine.body, routine.finish):
            self.lines.append("{")
            self._block(body)
            self.lines.append("}")

    def text(self) -> str:
        return "\n".join(self.lines)

    def _name(self, item: Any, facts: str) -> int:
        number = self.numbers.get(item)
        if number is None:
            number = len(self.numbers)
            self.numbers[item] = number
            self.lines.append(f"{number} {facts}")
        return number

    def _expression(self, root: Node) -> int:
        for node in walk(root, skip=self.numbers):
            if isinstance(node, Var):
                self._name(node, f"var {node.lo} {node.hi}")
                continue
            fields = " ".join(self._field(f) for f in node.fields)
            self._name(node, f"{type(node).__name__} {fields}")
        return self.numbers[root]

    def _field(self, value: Any) -> str:
        if isinstance(value, tuple):
            return f"({' '.join(self._field(v) for v in value)})"
        if isinstance(value, Node):
            return f"%{self.numbers[value]}"
        if isinstance(value, Array | Register):
            return f"@{self._cell(value)}"
        if isinstance(value, float):
            return value.hex()
        if isinstance(value, Combiner):
            return value.name
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, int | str | DType):
            return repr(value)
        raise InvalidIR(f"a key cannot name {value!r}")

    def _cell(self, cell: Array | Register) -> int:
        size: Any = cell.size if isinstance(cell, Array) else cell.shape
        return self._name(cell, f"{type(cell).__name__} {cell.dtype} {size}")

    def _block(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            for root in roots(stmt):
                self._expression(root)
            if isinstance(stmt, For):
                self._expression(stmt.var)
            given = {f.name: getattr(stmt, f.name) for f in fields(stmt) if f.name != "body"}
            facts = [self._field(value) for value in given.values()]
            if isinstance(stmt, Combine | StoreCombine):
                facts.append(self._combiner(stmt.combiner, stmt.value.dtype))
            self.lines.append(f"{type(stmt).__name__} {' '.join(facts)}")
            if isinstance(stmt, For | Guard):
                self.lines.append("{")
                self._block(stmt.body)
                self.lines.append("}")

    def _combiner(self, combiner: Combiner, kind: DType) -> str:
        """What a combiner does, by its identity and by what it makes of two values."""
        join = self._expression(combiner.join(Given(0, kind), Given(1, kind)))
        return f"{self._field(combiner.identity(kind).value)} {join}"
