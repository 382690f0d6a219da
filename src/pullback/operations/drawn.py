"""Inputs of an operation drawn at random, as its test says or the user does."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, ShapeError
from pullback.operations.notation import RANK, symbols
from pullback.operations.operation import Operation
from pullback.operations.sizes import MOST_RANK, Sizes, solve, unknown

MOST_ELEMENTS = 1 << 28  # of an input that is drawn
DRAWN = 4  # elements of an axis of ~ that nobody gave


def drawn(
    operation: Operation, sizes: Mapping[str, int], rng: np.random.Generator
) -> tuple[list[Any], dict[str, int]]:
    """Inputs as they lie in memory, and the symbols that their shapes do not say.

    Raises: ShapeError where a size is not known, or more than there is memory for.
    """
    chosen = {**operation.test.sizes, **sizes}
    rank = chosen.pop(RANK, 1)
    if not 0 <= rank <= MOST_RANK:
        raise ShapeError(f"~ is {rank} axes, at most {MOST_RANK}", code="E552")
    for name in sizes:
        if name not in operation.symbols and name != RANK and not name.startswith("_"):
            what = f"{operation.name} has no symbol {name}"
            raise ArgumentError(what, help=f"it has {', '.join(operation.symbols)}", code="E554")
    known = Sizes()
    for name, value in chosen.items():
        known.give(name, value, "what was given")
    if any(s.ranked for s in operation.inputs):
        for n in range(rank):
            known.known.setdefault(f"_{n}", DRAWN)
    solve([(c.text, c.left, c.right, "") for c in operation.conditions if c.right], known)
    arrays: list[Any] = []
    said: set[str] = set()
    for one in operation.inputs:
        shape = [known.of(s) for s in one.expanded(rank)]
        said |= {n for s in one.expanded(rank) for n in symbols(s.tree)}
        if prod(shape) > MOST_ELEMENTS:
            raise ShapeError(f"{one.text} would be {tuple(shape)}", code="E552")
        order = one.order or range(len(shape))
        laid = [shape[n] for n in order]
        kind = np.dtype("float32" if one.type is None else one.type.name)
        below = operation.test.below.get(one.name, 2)
        values: Any
        if kind.kind == "f":
            values = rng.uniform(operation.test.low, operation.test.high, laid)
        else:
            values = rng.integers(0, max(1, below), laid)
        arrays.append(np.asarray(values).astype(kind))
    given = {n: v for n, v in chosen.items() if n not in said and n in operation.symbols}
    asked = {n for s in operation.outputs for z in s.sizes if z for n in symbols(z.tree)}
    missing = [n for n in asked if n not in known.known]
    if missing:
        raise unknown(missing, known, f"the outputs of {operation.name}")
    return arrays, given
