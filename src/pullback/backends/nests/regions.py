"""Regions of a loop nest, which the price is a sum of."""

from __future__ import annotations

from dataclasses import dataclass, field

from pullback.backends.nests.ports import Ports
from pullback.backends.nests.reuse import Access, Level
from pullback.ir.nest import Load, Peek, Register
from pullback.ir.node import Node, walk


@dataclass(slots=True)
class Region:
    """Statements in a row, run in so many turns of each of so many executions."""

    path: tuple[Level, ...]
    turns: float
    executions: float
    ports: Ports = field(default_factory=Ports)
    accesses: list[Access] = field(default_factory=list)
    packs: bool = False
    own: set[Register] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Spent:
    """A region's nanoseconds: instructions, `waits` by memories, `far` by accesses, all."""

    region: Region
    own: float
    waits: tuple[float, ...]
    far: tuple[float, ...]
    ns: float


def of_data(e: Node) -> bool:
    """Whether a value is made of elements, or of a register that may be."""
    return any(isinstance(n, Load | Peek) for n in walk(e))
