"""Inputs of an operation drawn at random, as its test says or the user does."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, ShapeError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.operations.notation import RANK, Signature, symbols
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
    runs = list(dict.fromkeys(run for one in operation.inputs for run in one.runs))
    ranks = {run.text: chosen.pop(run.text, 1) for run in runs}
    for text, rank in ranks.items():
        if not 0 <= rank <= MOST_RANK:
            raise ShapeError(f"{text} is {rank} axes, at most {MOST_RANK}", code="E552")
    for name in sizes:
        if name not in operation.symbols and name not in ranks and not name.startswith("_"):
            what = f"{operation.name} has no symbol {name}"
            raise ArgumentError(what, help=f"it has {', '.join(operation.symbols)}", code="E554")
    known = Sizes()
    for name, value in chosen.items():
        if not name.startswith(RANK):
            known.give(name, value, "what was given")
    for run in runs:
        for n in range(ranks[run.text]):
            known.known.setdefault(run.axis(n), DRAWN)
    solve([(c.text, c.left, c.right, "") for c in operation.conditions if c.right], known)
    arrays: list[Any] = []
    said: set[str] = set()
    for one in operation.inputs:
        shape = [known.of(s) for s in one.expanded(ranks)]
        said |= {n for s in one.expanded(ranks) for n in symbols(s.tree)}
        if prod(shape) > MOST_ELEMENTS:
            raise ShapeError(f"{one.text} would be {tuple(shape)}", code="E552")
        order = one.order or range(len(shape))
        laid = [shape[n] for n in order]
        below = operation.test.below.get(one.name, 2)
        kind = drawn_type(one)
        values: Any
        if kind.is_float:
            values = rng.uniform(operation.test.low, operation.test.high, laid)
        else:
            values = rng.integers(0, max(1, below), laid)
        arrays.append(np.asarray(values).astype(kind.numpy))
    given = {n: v for n, v in chosen.items() if n not in said and n in operation.symbols}
    several = any(len(one.runs) > 1 for one in operation.inputs)
    given |= ranks if several else {}
    asked = {n for s in operation.outputs for z in s.sizes for n in symbols(z.tree)}
    missing = [n for n in asked if n not in known.known]
    if missing:
        raise unknown(missing, known, f"the outputs of {operation.name}")
    return arrays, given


def drawn_type(one: Signature) -> DType:
    """The type that is drawn for an input that says none."""
    kinds = {"int": D.int64, "bool": D.bool_}
    return one.type or kinds.get(one.element.kind, D.float32)
