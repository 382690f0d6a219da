"""A Triton kernel as Triton's own compiler gives it: operations in blocks, and their values.

result = operation(operands)   blocks nest: a loop's body, the branches of an `if`, a combiner
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pullback.config import frozen

ENDS = ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return")
FLOATS = ("f16", "bf16", "f32", "f64")


@frozen
class Type:
    """A scalar, where `shape` is empty, or a block of them; of pointers, where `pointer` is set."""

    shape: tuple[int, ...]
    element: str
    pointer: bool = False

    @property
    def is_float(self) -> bool:
        """Whether values of this type have derivatives."""
        return not self.pointer and self.element in FLOATS

    @property
    def width(self) -> int:
        """The bits of an element: ``bf16`` has 16, ``f8E5M2`` 8, an address 64."""
        digits = re.search(r"\d+", self.element)
        return int(digits[0]) if digits and not self.pointer else 64

    @property
    def size(self) -> int:
        """How many elements a value has."""
        return math.prod(self.shape)


@frozen
class Value:
    """What an operation gives or a block takes; `name` tells it from all others of its function."""

    name: str
    type: Type


@frozen
class Place:
    """A line of the user's file; of none, where `file` is empty."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


@frozen
class Operation:
    """An operation of TTIR: `attributes` are texts by name."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: tuple[tuple[str, str], ...] = ()
    regions: tuple[Block, ...] = ()
    place: Place = Place()

    def attribute(self, name: str, default: str = "") -> str:
        """The text of an attribute; `default`, where there is none."""
        return dict(self.attributes).get(name, default)


@frozen
class Block:
    """Operations in order; the last one says what the block gives."""

    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]

    @property
    def yields(self) -> tuple[Value, ...]:
        """What the block gives to the operation around it."""
        last = self.operations[-1] if self.operations else None
        return last.operands if last is not None and last.name in ENDS else ()

    def walk(self) -> Iterator[Operation]:
        """All operations, those of inner blocks after the one that holds them."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.walk()


@frozen
class Function:
    """A kernel: what it takes is what its block takes."""

    name: str
    block: Block
