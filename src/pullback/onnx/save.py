"""`pb.onnx.save`: what a function does, as a file of ONNX."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from pullback.ir.graph import Definition, Value, Variable, topological
from pullback.ir.program import Compute, Program, items
from pullback.nn.base.weights import write_atomically
from pullback.onnx.faults import unwritten
from pullback.onnx.read import MOST_BYTES, NUMBERS
from pullback.onnx.written import Sheet, box_of, write
from pullback.tensor.face.tensor import Tensor, from_array
from pullback.tensor.face.tree import flatten, leaf_names
from pullback.tensor.record.trace import Handle, Trace, tracing

OPSET = 21


def save(
    function: Callable[..., Any], args: Sequence[Any], path: str | os.PathLike[str]
) -> ModelProto:
    """Write what a function or a module does with arguments of these shapes as a model of ONNX, of
    operator set 21: maps, reductions, products, running sums. What it captures are initialisers.

    Raises: UnsupportedError for what has no form there: loops, branches, states that it assigns,
        scatters, symbolic extents (E577); StateError where nothing can be written.

    Example:
        >>> import tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "model.onnx")
        >>> model = pb.onnx.save(lambda x: pb.tanh(x) * 2, [pb.ones(3)], path)
        >>> [node.op_type for node in model.graph.node]
        ['Tanh', 'Mul']
    """
    model = exported(function, args)
    size = model.ByteSize()
    if size >= MOST_BYTES:
        raise unwritten(f"a model of {size} bytes, where a message has fewer than {MOST_BYTES}")
    write_atomically(Path(path), model.SerializeToString())
    return model


def exported(function: Callable[..., Any], args: Sequence[Any]) -> ModelProto:
    """The model. Raises: as `save`."""
    trace = Trace(host=False)
    given = flatten((tuple(args), {}), from_array)
    names = leaf_names(function, given)
    arguments = [
        trace.fresh(name, box_of(h.shape, name), h.dtype)
        for name, h in zip(names, given.handles, strict=True)
    ]
    with tracing(trace):
        whole, _ = given.rebuild([Tensor(v) for v in arguments])
        values = [h.value for h in flatten(function(*whole)).handles]
        outputs = [Variable(f"result{n}", v.shape, v.dtype) for n, v in enumerate(values)]
        trace.recording.segment.assigns.update(zip(outputs, values, strict=True))
        trace.flush()
    if trace.assigned:
        raise unwritten("it assigns a state")
    captured = [(h, v) for h, v in trace.captured.values()]
    program = trace.recording.finish((*arguments, *[v for _, v in captured], *outputs))
    return _model(program, arguments, captured, outputs, getattr(function, "__name__", "model"))


def _model(
    program: Program,
    arguments: Sequence[Variable],
    captured: Sequence[tuple[Handle, Variable]],
    outputs: Sequence[Variable],
    name: str,
) -> ModelProto:
    sheet = Sheet()
    inputs = []
    for variable in arguments:
        sheet.known[variable] = own = sheet.name(variable.name)
        inputs.append(_info(own, variable))
    for handle, variable in captured:
        sheet.known[variable] = own = sheet.name(variable.name)
        sheet.weights.append(numpy_helper.from_array(np.asarray(handle), own))
    for item in items(program.body):
        if not isinstance(item, Compute):
            raise unwritten(f"a {type(item).__name__.lower()} has no form that is written")
        _computed(sheet, item)
    results = []
    for variable in outputs:
        own = sheet.name(variable.name)
        sheet.nodes.append(helper.make_node("Identity", [sheet.known[variable]], [own]))
        results.append(_info(own, variable))
    nodes = _without_identities(sheet.nodes, [r.name for r in results], [i.name for i in inputs])
    graph = helper.make_graph(nodes, name, inputs, results, sheet.weights)
    versions = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=versions, producer_name="pullback", ir_version=10)


def _computed(sheet: Sheet, item: Compute) -> None:
    """Every definition of a step, then what variables become, all at once."""
    for definition in topological(value for _, value in item.graph.assigns):
        if definition not in sheet.known:
            try:
                sheet.known[definition] = write(sheet, definition)
            except RecursionError as error:
                raise unwritten(f"`{definition.name}`: terms too deep in one another") from error
    new: dict[Value, str] = {v: sheet.known[value] for v, value in item.graph.assigns}
    sheet.known.update(new)


def _info(name: str, value: Variable | Definition) -> Any:
    return helper.make_tensor_value_info(name, NUMBERS[value.dtype], box_of(value.shape, name))


def _without_identities(nodes: Sequence[Any], results: Sequence[str], given: Sequence[str]) -> Any:
    """A result has the name of what makes it, where that is a node and nothing else is."""
    makers = {o: n for n in nodes for o in n.output}
    kept = []
    for node in nodes:
        source = node.input[0] if node.input else ""
        last = node.op_type == "Identity" and node.output[0] in results and source not in given
        if last and source in makers and source not in results:
            _renamed(nodes, source, node.output[0])
        else:
            kept.append(node)
    return kept


def _renamed(nodes: Sequence[Any], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for n, name in enumerate(names):
                if name == old:
                    names[n] = new
