"""Branches and loops: a condition or a count that is known is written out, the rest are forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

import pullback as pb
from pullback.config import Cap
from pullback.errors import ShapeError
from pullback.onnx.faults import Refused
from pullback.onnx.graph import Graph, Node
from pullback.onnx.rules.table import axis_of, demand
from pullback.onnx.values import Value, at_once, known

UNROLLED: Cap = 256  # steps of a loop that are written out one by one
Scope = dict[str, Value]


def graph_of(run: Any, node: Node, name: str, scope: Scope) -> Graph:
    """A graph that a node has."""
    proto = node.attributes.get(name)
    demand(isinstance(proto, GraphProto), f"no attribute {name!r}")
    return run.reader.graph(proto, scope)  # type: ignore[no-any-return]


def run_graph(run: Any, graph: Graph, scope: Scope, values: Sequence[Value]) -> list[Value]:
    """What it makes of values."""
    demand(len(values) == len(graph.inputs), f"{len(values)} values for {len(graph.inputs)} inputs")
    own = {**scope, **{p.name: v for p, v in zip(graph.inputs, values, strict=True)}}
    return list(type(run)(run.reader, run.depth + 1).graph(graph, own))


def if_(run: Any, node: Node, operands: Sequence[Value | None], scope: Scope) -> list[Value]:
    """The branch that a known condition takes; else both, as `pb.cond`."""
    graphs = [graph_of(run, node, name, scope) for name in ("then_branch", "else_branch")]
    condition = operands[0] if operands else None
    if condition is None:
        raise Refused("no condition")
    told = condition.array if condition.array is not None else at_once(condition)
    if told is not None:
        return run_graph(run, graphs[0 if told.reshape(-1)[0] else 1], scope, ())

    def taken(graph: Graph) -> Any:
        return lambda: tuple([pb.asarray(v.tensor) for v in run_graph(run, graph, scope, ())])

    try:
        results = pb.cond(pb.reshape(condition.tensor, ()), taken(graphs[0]), taken(graphs[1]))
    except (ShapeError, Refused):  # of different shapes, or no tensors: the condition is asked for
        told = known(condition, f"{node}: its branches differ in shape, and which is taken")
        return run_graph(run, graphs[0 if told.reshape(-1)[0] else 1], scope, ())
    return [Value(t) for t in results]


def loop(run: Any, node: Node, operands: Sequence[Value | None], scope: Scope) -> list[Value]:
    """Steps one by one, of a known count; a condition that the body changes must be known too."""
    body = graph_of(run, node, "body", scope)
    operands = [*operands, *[None] * (2 - len(operands))]
    limit, condition, *carried = operands
    demand(all(v is not None for v in carried), "a carried value that is left out")
    if limit is None:
        raise Refused("a loop without a count")
    count = int(known(limit, f"{node}: how often it runs").reshape(-1)[0])
    demand(count <= UNROLLED, f"{count} steps, of which {UNROLLED} are written out at most")
    state: list[Value] = [v for v in carried if v is not None]
    rows: list[list[Any]] = [[] for _ in body.outputs[1 + len(state) :]]
    if condition is not None and not _true(condition, node):
        count = 0
    for step in range(count):
        number = Value(array=np.asarray(step, np.int64), plain=True)
        again, *made = run_graph(run, body, scope, [number, condition or TRUE, *state])
        state, outputs = made[: len(state)], made[len(state) :]
        for row, value in zip(rows, outputs, strict=True):
            row.append(value.tensor)
        if not _true(again, node):
            break
    demand(all(rows), "rows of a loop without a step")
    return [*state, *[Value(pb.stack(row)) for row in rows]]


TRUE = Value(array=np.asarray(True), plain=True)


def _true(value: Value, node: Node) -> bool:
    return bool(known(value, f"{node}: whether it goes on").reshape(-1)[0])


def scan(run: Any, node: Node, operands: Sequence[Value | None], scope: Scope) -> list[Value]:
    """`pb.scan` over rows of the inputs; of version 8 for each sample, by its own axis."""
    body = graph_of(run, node, "body", scope)
    attributes = node.attributes
    count = int(attributes.get("num_scan_inputs", 0))
    early = node.version == 8
    given = list(operands[1:] if early else operands)
    demand(not early or operands[0] is None, "lengths of sequences")
    demand(all(v is not None for v in given) and 0 < count <= len(given), "operands left out")
    tensors = [v.tensor for v in given if v is not None]
    states, inputs = tensors[: len(tensors) - count], tensors[len(tensors) - count :]
    if early:
        demand(not any(attributes.get("directions", ())), "directions")
        samples = [_scanned(run, body, scope, [s[n] for s in states], [x[n] for x in inputs])
                   for n in range(inputs[0].shape[0])]  # fmt: skip
        return [Value(pb.stack(list(row))) for row in zip(*samples, strict=True)]
    axes = attributes.get("scan_input_axes") or [0] * count
    turned = attributes.get("scan_input_directions") or [0] * count
    rows = [pb.moveaxis(x, axis_of(a, x.ndim), 0) for x, a in zip(inputs, axes, strict=True)]
    rows = [pb.flip(x, axis=0) if d else x for x, d in zip(rows, turned, strict=True)]
    results = _scanned(run, body, scope, states, rows)
    own = results[len(states) :]
    back = attributes.get("scan_output_directions") or [0] * len(own)
    own = [pb.flip(y, axis=0) if d else y for y, d in zip(own, back, strict=True)]
    places = attributes.get("scan_output_axes") or [0] * len(own)
    own = [pb.moveaxis(y, 0, axis_of(a, y.ndim)) for y, a in zip(own, places, strict=True)]
    return [Value(t) for t in (*results[: len(states)], *own)]


def _scanned(
    run: Any, body: Graph, scope: Scope, states: Sequence[Any], inputs: Sequence[Any]
) -> list[Any]:
    def step(carry: Any, rows: Any) -> Any:
        values = run_graph(run, body, scope, [Value(t) for t in (*carry, *rows)])
        made = [pb.asarray(v.tensor) for v in values]
        return tuple(made[: len(states)]), tuple(made[len(states) :])

    last, rows = pb.scan(step, tuple(states), tuple(inputs))
    return [*last, *rows]


FORMS = {"If": if_, "Loop": loop, "Scan": scan}
