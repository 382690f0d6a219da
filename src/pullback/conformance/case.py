"""A case of conformance: what is computed, of which element types, how near it must come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.ir.dtype import ALL, DType

Array = np.ndarray[Any, Any]
SEED = 7
# The types of the report. Floats of 8 bits, which are stored alone, have cells in no table.
KINDS = tuple(k for k in ALL if not k.is_float or k.bits > 8)
ENDS = (0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 3.0, -2.5, 1e-40, 60000.0)


@dataclass(frozen=True, eq=False)
class Sample:
    """A function and the arrays of each call of it; `shapes` as `pb.jit` takes them.

    `received`: what the program hands to the host while it runs, beside its results.
    """

    function: Callable[..., Any]
    calls: tuple[tuple[Array, ...], ...]
    shapes: Sequence[Any] | None = None
    received: list[Array] = field(default_factory=list)


Make = Callable[[DType], Sample]


@dataclass(frozen=True, eq=False)
class Case:
    """A row of the report. `ulps`: the largest error, in units in the last place of an element, or
    of the largest element of the result where it is a `whole`; integers are exact.

    `alone`: it is a program of its own, others share one.
    """

    name: str
    make: Make
    kinds: tuple[DType, ...]
    ulps: float = 0.0
    whole: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Section:
    """A table of the report."""

    name: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Cell:
    """One case on one type."""

    section: str
    case: Case
    kind: DType

    @property
    def name(self) -> str:
        return f"{self.section}: {self.case.name}, {self.kind}"


def cells(sections: Sequence[Section], only: str = "") -> list[Cell]:
    """Every cell whose name has the text `only` in it."""
    every = [Cell(s.name, c, k) for s in sections for c in s.cases for k in c.kinds]
    return [c for c in every if only in c.name]


def drawn(
    kind: DType, *shape: Any, seed: int = SEED, low: float = -2.0, high: float = 2.0
) -> Array:
    """Numbers of `kind` between `low` and `high`; integers below 0 only where there are any."""
    random = np.random.default_rng(seed)
    if kind.is_bool:
        return random.random(shape) < 0.5
    if kind.is_integer:
        return random.integers(max(kind.range()[0], -9), 10, shape).astype(kind.numpy)
    return random.uniform(low, high, shape).astype(kind.numpy)


def special(kind: DType, count: int, seed: int = SEED) -> Array:
    """The ends of a type, zeros, NaN and infinities in between other numbers."""
    random = np.random.default_rng(seed)
    if kind.is_bool:
        return random.random(count) < 0.5
    if kind.is_float:
        rest = random.normal(size=count - len(ENDS)) * 8
        return random.permutation(np.concatenate([ENDS, rest])).astype(kind.numpy)
    low, high = kind.range()
    ends = np.array([low, high, 0, 1, 2, 3, high - 1, low + 1], kind.numpy)
    near = random.integers(max(low, -9), 9, (count - len(ends)) // 2).astype(kind.numpy)
    far = random.integers(low, high, count - len(ends) - len(near), dtype=kind.numpy)
    return random.permutation(np.concatenate([ends, near, far]))
