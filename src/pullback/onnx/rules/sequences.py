"""Sequences and optional values: of lengths that are known while tracing, so each is a list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import pullback as pb
from pullback.onnx.graph import Node
from pullback.onnx.rules.control import FORMS, Scope, graph_of, run_graph
from pullback.onnx.rules.table import axis_of, demand
from pullback.onnx.values import NOTHING, Row, Value, known

Operands = Sequence[Value | None]


def _row(operands: Operands, place: int = 0) -> Row:
    value = operands[place] if place < len(operands) else None
    demand(isinstance(value, Row), "no sequence")
    assert isinstance(value, Row)
    return value


def _value(operands: Operands, place: int) -> Value:
    value = operands[place] if place < len(operands) else None
    demand(value is not None, "an operand is missing")
    assert value is not None
    return value


def _place(node: Node, operands: Operands, place: int, count: int, most: int) -> int:
    """A place in a sequence of `count`, up to `most`; the last one where none is told."""
    if place >= len(operands) or operands[place] is None:
        return count
    own = int(known(_value(operands, place), f"{node}: a place").reshape(-1)[0])
    demand(-count <= own <= most, f"place {own} of {count}")
    return own + count if own < 0 else own


def empty(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """No values."""
    return [Row(())]


def construct(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """The operands."""
    return [Row([_value(operands, n) for n in range(len(operands))])]


def at(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """One value."""
    items = _row(operands).items
    demand(bool(items), "a value of none")
    return [items[_place(node, operands, 1, len(items), len(items) - 1)]]


def insert(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """One value more."""
    items = _row(operands).items
    own = _place(node, operands, 2, len(items), len(items))
    return [Row((*items[:own], _value(operands, 1), *items[own:]))]


def erase(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """One value less, the last where no place is told."""
    items = _row(operands).items
    demand(bool(items), "a value of none")
    own = min(_place(node, operands, 1, len(items), len(items) - 1), len(items) - 1)
    return [Row((*items[:own], *items[own + 1 :]))]


def length(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """How many values."""
    return [Value(array=np.asarray(len(_row(operands).items), np.int64), plain=True)]


def split(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """Parts of a tensor: of one size, of given ones, or one by one, then with the axis or not."""
    x = _value(operands, 0).tensor
    axis = axis_of(int(node.attributes.get("axis", 0)), x.ndim)
    whole = x.shape[axis]
    demand(isinstance(whole, int), "an axis that is symbolic")
    if len(operands) < 2 or operands[1] is None:
        kept = bool(node.attributes.get("keepdims", 1))
        parts = [pb.take(x, pb.tensor([n]), axis=axis) for n in range(whole)]
        return [Row([Value(p if kept else pb.squeeze(p, axis=axis)) for p in parts])]
    told = known(_value(operands, 1), f"{node}: sizes of parts")
    sizes = [int(s) for s in told.reshape(-1)]
    if told.ndim == 0:
        demand(sizes[0] > 0, f"parts of {sizes[0]}")
        sizes = [min(sizes[0], whole - n) for n in range(0, whole, sizes[0])]
    demand(sum(sizes) == whole and min(sizes, default=0) >= 0, f"parts of {sizes} of {whole}")
    ends = np.cumsum([0, *sizes])
    before = (slice(None),) * axis
    return [Row([Value(x[(*before, slice(a, b))]) for a, b in pairwise(ends.tolist())])]


def concat(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """The values behind one another, or along an axis of their own."""
    tensors = [v.tensor for v in _row(operands).items]
    demand(bool(tensors), "a sequence of none")
    own = bool(node.attributes.get("new_axis", 0))
    axis = axis_of(int(node.attributes["axis"]), tensors[0].ndim + own)
    return [Value(pb.stack(tensors, axis=axis) if own else pb.concat(tensors, axis=axis))]


def mapped(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """A graph of each value; of other sequences those at the same place, tensors as they are."""
    body = graph_of(run, node, "body", scope)
    first = _row(operands)
    every = [_value(operands, n) for n in range(len(operands))]
    rows = [v for v in every if isinstance(v, Row)]
    demand(all(len(r.items) == len(first.items) for r in rows), "sequences of two lengths")
    made = [
        run_graph(run, body, scope, [v.items[n] if isinstance(v, Row) else v for v in every])
        for n in range(len(first.items))
    ]
    return [Row([values[n] for values in made]) for n in range(len(body.outputs))]


def optional(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """The operand, or nothing."""
    return [operands[0] if operands and operands[0] is not None else NOTHING]


def has(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """Whether there is a value."""
    told = bool(operands) and operands[0] is not None and operands[0] is not NOTHING
    return [Value(array=np.asarray(told), plain=True)]


def get(run: Any, node: Node, operands: Operands, scope: Scope) -> list[Value]:
    """The value."""
    value = _value(operands, 0)
    demand(value is not NOTHING, "a value of none")
    return [value]


FORMS.update(
    SequenceEmpty=empty, SequenceConstruct=construct, SequenceAt=at, SequenceInsert=insert,
    SequenceErase=erase, SequenceLength=length, SplitToSequence=split, ConcatFromSequence=concat,
    SequenceMap=mapped, Optional=optional, OptionalHasElement=has, OptionalGetElement=get,
)  # fmt: skip
