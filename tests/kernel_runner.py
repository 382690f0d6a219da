"""Runs kernels tile by tile: what a tile may not see is poison, and stores happen at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from pullback.backends.reference.definitions import evaluate_values
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Take, upper
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Graph,
    Reduce,
    Value,
    Variable,
    read,
    replace_reads,
)
from pullback.ir.kernel import Kernel, Stage

Array = np.ndarray[Any, Any]
Arrays = dict[Variable, Array]
Tile = tuple[tuple[int, int], ...]
JOIN: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
    "any": np.logical_or,
    "all": np.logical_and,
}


def poison(value: Array) -> Any:
    return np.nan if value.dtype.kind not in "biu" else np.array(0, value.dtype) + 101


def run(kernels: Sequence[Kernel], values: Mapping[Variable, Array], tiles: int = 2) -> Arrays:
    """Memory after all kernels; temporaries start as poison."""
    memory: Arrays = {v: np.array(a) for v, a in values.items()}
    for number, kernel in enumerate(kernels):
        for variable in kernel.writes:
            if variable not in memory:
                empty = np.zeros(tuple(map(upper, variable.shape)), variable.dtype.numpy)
                memory[variable] = np.full_like(empty, poison(empty))
        backwards = number % 2 == 1
        for piece in reversed(kernel.pieces) if backwards else kernel.pieces:
            run_kernel(piece, memory, tiles, backwards)
    return memory


def run_kernel(kernel: Kernel, memory: Arrays, tiles: int, backwards: bool) -> None:
    cuts = []
    for extent in kernel.outer:
        size = upper(extent)
        step = -(-size // tiles)
        cuts.append([(lo, min(size, lo + step)) for lo in range(0, size, step)])
    partials: dict[Stage, Array] = {}
    boxes = list(product(*cuts))
    for tile in reversed(boxes) if backwards else boxes:
        local: dict[Value, Array] = {}
        for stage in kernel.stages:
            value = evaluate(stage, memory, local, tile)
            box = tuple(slice(None) for _ in stage.shape)
            for (lo, hi), axis in zip(tile, stage.outer, strict=True):
                if axis is not None and axis not in stage.over:
                    place = position(stage, axis)
                    box = (*box[:place], slice(lo, hi), *box[place + 1 :])
            if stage.partial:
                assert None not in stage.outer, f"{stage.target} is added more than once"
                assert isinstance(stage.form, Reduce)
                identity = stage.form.combiner.identity(stage.body.dtype).value
                whole = partials.setdefault(stage, np.full_like(value, identity))
                whole[box] = JOIN[stage.form.combiner.name](whole[box], value[box])
                continue
            shown = np.full_like(value, poison(value))
            shown[box] = value[box]
            local[stage.target] = shown
            if stage.store is not None:
                assert None not in stage.outer, f"{stage.target} has several writers"
                memory[stage.store][box] = value[box]
    local = {}
    for stage, value in partials.items():
        local[stage.target] = value
        if stage.store is not None:
            memory[stage.store][...] = value
    for stage in kernel.finish:
        local[stage.target] = evaluate(stage, memory, local, ())
        if stage.store is not None:
            memory[stage.store][...] = local[stage.target]


def position(stage: Stage, axis: int) -> int:
    """Where an axis stands in the result's shape."""
    if not isinstance(stage.form, Accumulate):
        return axis
    return next(n for n, a in enumerate(stage.form.at) if a is Axis(axis, stage.extents[axis]))


def evaluate(stage: Stage, memory: Arrays, local: Mapping[Value, Array], tile: Tile) -> Array:
    """A stage over its whole box, sums cut to the tile."""
    stand = {v: Variable(v.name, v.shape, v.dtype) for v in local}

    def change(take: Take) -> Expr | None:
        if isinstance(take.source, Variable):
            return None
        return Take(stand[take.source], take.indices)

    body = replace_reads(stage.body, change)
    for (lo, hi), axis in zip(tile, stage.outer, strict=False):
        if axis in stage.over:
            assert isinstance(stage.form, Reduce) and axis is not None
            at = Axis(axis, stage.extents[axis])
            inside = E.And(E.Less(E.index(lo - 1), at), E.Less(at, E.index(hi)))
            body = E.If(inside, body, stage.form.combiner.identity(body.dtype))
    form = stage.form
    definition = Definition(stage.target.name, stage.shape, body, form)
    arrays = {**memory, **{stand[v]: a for v, a in local.items()}}
    with np.errstate(all="ignore"):
        return np.array(evaluate_values([definition], arrays)[0])


def random_values(graph: Graph, seed: int = 0) -> Arrays:
    """Inputs and assigned variables: floats from N(0, 0.3), integers below 5."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for v in dict.fromkeys([*graph.inputs, *(v for v, _ in graph.assigns)]):
        shape = tuple(map(upper, v.shape))
        if v.dtype.is_float:
            found[v] = (rng.standard_normal(shape) * 0.3 + ("gain" in v.name)).astype(v.dtype.numpy)
            if v.name.endswith(".v"):
                found[v] = np.abs(found[v])
        else:
            found[v] = rng.integers(0, 5, shape).astype(v.dtype.numpy)
    return found


def copied(value: Value, name: str) -> Definition:
    return Definition(
        name, value.shape, read(value, *(Axis(n, e) for n, e in enumerate(value.shape)))
    )
