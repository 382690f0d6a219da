"""Nodes of a model, one after the other, as pullback's functions of tensors: a trace."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TypeProto

import pullback as pb
from pullback.errors import MALFORMED, PullbackError
from pullback.ir.expr import upper
from pullback.onnx.faults import Refused, broken, crooked, foreign, retold, undecided, unsupported
from pullback.onnx.graph import Graph, Node, Reader, checked
from pullback.onnx.read import NUMBERS, Array, opsets, plain
from pullback.onnx.rules import FORMS, RULES
from pullback.onnx.rules.table import Entry
from pullback.onnx.values import MOST_PLAIN, Row, Value, foldable, folded, known

Scope = dict[str, Value]
MOST_DEPTH = 32  # of functions and graphs in one another
CODES = frozenset({"E570", "E571", "E572", "E573", "E574", "E575", "E576", "E578"})


class Run:
    """One trace of a model. `reader` reads graphs within nodes, as control flow has them."""

    def __init__(self, reader: Reader, depth: int = 0) -> None:
        if depth > MOST_DEPTH:
            raise crooked(f"functions and graphs of more than {MOST_DEPTH} in one another")
        self.reader = reader
        self.depth = depth

    def graph(self, graph: Graph, scope: Scope) -> list[Value]:
        """The outputs of a graph; `scope` has its inputs and what is outside of it."""
        for name, array in graph.constants.items():
            if name not in scope:
                scope[name] = Value(array=array, plain=is_plain(array))
        self.nodes(graph.nodes, scope)
        return [scope[o.name] for o in graph.outputs]

    def nodes(self, nodes: Sequence[Node], scope: Scope) -> None:
        """Every node: what it makes is put into the scope."""
        for node in nodes:
            operands = [scope[name] if name else None for name in node.inputs]
            while operands and operands[-1] is None:
                operands.pop()
            results = self.node(node, operands, scope)
            if len(results) < sum(map(bool, node.outputs)):
                raise broken(node, f"{len(node.outputs)} outputs, of which {len(results)} are made")
            scope.update({n: v for n, v in zip(node.outputs, results, strict=False) if n})

    def node(self, node: Node, operands: list[Value | None], scope: Scope) -> list[Value]:
        """What one node makes. Raises: coded errors, which name it."""
        try:
            return self.values(node, operands, scope)
        except Refused as error:
            raise unsupported(node, str(error)) from error
        except PullbackError as error:
            if error.code in CODES:
                raise
            raise retold(node, error) from None  # it has all that was said
        except (*MALFORMED, AssertionError) as error:
            raise broken(node, f"{type(error).__name__}: {error}") from error

    def values(self, node: Node, operands: list[Value | None], scope: Scope) -> list[Value]:
        """By the first of these that it is: a function of the model, known ahead, a rule, a
        function of the operator's definition.
        """
        own = self.reader.functions.get((node.domain, node.operator))
        if own is not None:
            return self.function(own, node, operands)
        if not node.version:
            raise Refused("this version of onnx knows no such operator in its operator set")
        if not node.domain and node.operator in ("Constant", "Shape", "Size"):
            return [ahead(node, operands)]
        if node.operator == "Identity" and isinstance(operands[0], Row):
            return operands[:1]  # type: ignore[return-value]
        if not node.domain and node.operator in FORMS:
            return list(FORMS[node.operator](self, node, operands, scope))
        if foldable(node, operands):
            arrays = folded(node, operands)
            return [
                Value(array=a, plain=is_plain(a), made=(node, operands, n))
                for n, a in enumerate(arrays)
            ]
        entry = RULES.get((node.domain, node.operator, node.version))
        if entry is not None:
            results = by_rule(entry, node, operands)
            return [Value(t, made=(node, operands, n)) for n, t in enumerate(results)]
        body = definition(node, operands)
        if body is None:
            raise Refused("it has no rule")
        return self.function(body, node, operands)

    def function(
        self, function: FunctionProto, node: Node, operands: Sequence[Value | None]
    ) -> list[Value]:
        """A function's body in the place of its node. Raises: StateError where it is crooked."""
        versions = {**node.opsets, **opsets(function.opset_import)}
        reader = self.reader.within(versions)
        nodes = reader.nodes(filled(function, node))
        checked(function.name, function.input, (), nodes, (), ("",))
        scope: Scope = {}
        given = [*operands, *[None] * len(function.input)]
        for name, value in zip(function.input, given, strict=False):
            scope[name] = ABSENT if value is None else value
        Run(reader, self.depth + 1).nodes([without(n, scope) for n in nodes], scope)
        made = function.output[: len(node.outputs)]
        missing = [n for n, out in zip(made, node.outputs, strict=False) if out and n not in scope]
        if missing:
            raise crooked(f"function {function.name!r}: output {missing[0]!r} is made by nothing")
        return [scope.get(name, ABSENT) for name in made]


ABSENT = Value()


def is_plain(array: Array) -> bool:
    """Whether numbers are shapes, axes or places: whole, and few."""
    return array.dtype.kind in "iub" and array.size <= MOST_PLAIN


def without(node: Node, scope: Scope) -> Node:
    """A node of a function without the inputs that its caller leaves out."""
    left = [name if scope.get(name) is not ABSENT else "" for name in node.inputs]
    if tuple(left) == node.inputs:
        return node
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:]
    proto.input.extend(left)
    rest = node.outputs, node.attributes, proto, node.opsets
    return Node(node.name, node.domain, node.operator, node.version, tuple(left), *rest)


def ahead(node: Node, operands: Sequence[Value | None]) -> Value:
    """Constants, and extents of tensors. Raises: UnsupportedError for a symbolic one."""
    if node.operator == "Constant":
        return constant(node)
    value = operands[0] if operands else None
    if value is None:
        raise broken(node, "an operand is missing")
    shape = value.shape
    if not all(isinstance(e, int) for e in shape):
        raise undecided(f"{node}: shape {shape}, which is symbolic")
    if node.operator == "Size":
        return Value(array=np.asarray(int(np.prod(shape, dtype=object)), np.int64), plain=True)
    part = slice(node.attributes.get("start", 0), node.attributes.get("end"))
    return Value(array=np.asarray(shape[part], np.int64), plain=True)


def constant(node: Node) -> Value:
    """The value of a Constant."""
    if len(node.attributes) != 1:
        raise broken(node, f"attributes {sorted(node.attributes)}, of which there is one")
    ((name, value),) = node.attributes.items()
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
             "value_floats": np.float32}  # fmt: skip
    if name in kinds:
        value = np.asarray(value, kinds[name])
    elif name != "value" or not isinstance(value, np.ndarray):
        raise foreign(f"{node}: {name}")
    return Value(array=value, plain=is_plain(value))


def by_rule(entry: Entry, node: Node, operands: Sequence[Value | None]) -> Sequence[Any]:
    """What a rule gives: tensors."""
    given: list[Any] = []
    for place, value in enumerate(operands):
        if value is None:
            given.append(None)
        elif entry.numbers(place):
            given.append(
                known(value, f"{node}: the values of {node.inputs[place]!r} decide a shape")
            )
        else:
            given.append(value.tensor)
    settings = {**defaults(node.domain, node.operator, node.version), **node.attributes}
    strange = node.attributes.keys() - entry.settings
    if strange:
        raise Refused(f"attribute {min(strange)!r}")
    settings = {name: v for name, v in settings.items() if name in entry.settings}
    if "outputs" in entry.settings:
        settings["outputs"] = tuple(map(bool, node.outputs))
    if "version" in entry.settings:
        settings["version"] = node.version
    results = entry.function(*given, **settings)
    results = results if isinstance(results, tuple | list) else (results,)
    for y in results:
        size = math.prod(upper(e) for e in y.shape) * y.dtype.itemsize
        if size > memory():
            raise broken(node, f"a result of {size} bytes, where this machine has {memory()}")
    return results


@functools.cache
def memory() -> int:
    """Bytes of this machine, beyond which no value is laid out."""
    if not hasattr(os, "sysconf"):
        return 1 << 34
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def defaults(domain: str, operator: str, version: int) -> Mapping[str, Any]:
    """What attributes are where a node says nothing; None where the operator does not say."""
    schema = onnx.defs.get_schema(operator, version, domain)
    told: dict[str, Any] = {}
    for name, one in schema.attributes.items():
        if one.required:
            continue
        value = (
            onnx.helper.get_attribute_value(one.default_value) if one.default_value.name else None
        )
        if isinstance(value, list):
            value = [v.decode() if isinstance(v, bytes) else v for v in value]
        told[name] = value.decode() if isinstance(value, bytes) else value
    return told


def definition(node: Node, operands: Sequence[Value | None]) -> FunctionProto | None:
    """The function by which ONNX defines an operator, of these operands; None: it has none."""
    version = node.opsets.get(node.domain, 0)
    schema = onnx.defs.get_schema(node.operator, version, node.domain)
    function = FunctionProto()
    if schema.has_function:
        function.ParseFromString(schema.get_function_with_opset_version(version))
        return function
    if not schema.has_context_dependent_function:
        return None
    types = [type_of(v).SerializeToString() for v in operands]
    try:
        text = schema.get_context_dependent_function_with_opset_version(
            version, node.proto.SerializeToString(), types
        )
    except Exception as error:  # another library's, of a node that is not its operator's
        raise Refused(f"its definition by other operators: {error}") from error
    function.ParseFromString(text)
    return function if function.node else None


def type_of(value: Value | None) -> TypeProto:
    """A value's type as ONNX has it."""
    if value is None:
        return TypeProto()
    kind = value.tensor.dtype if value.array is None else pb.dtype(value.array.dtype)
    shape = [e if isinstance(e, int) else str(e) for e in value.shape]
    return onnx.helper.make_tensor_type_proto(NUMBERS[kind], shape)


def filled(function: FunctionProto, node: Node) -> list[NodeProto]:
    """The nodes of a function with a node's attributes for those it refers to."""
    given = {a.name: a for a in node.proto.attribute}
    given = {**{a.name: a for a in function.attribute_proto}, **given}
    for name, value in defaults_of(node).items():
        given.setdefault(name, value)
    return [_filled(proto, given) for proto in function.node]


def defaults_of(node: Node) -> dict[str, onnx.AttributeProto]:
    """Attributes that an operator's definition gives values."""
    if not node.version:
        return {}
    schema = onnx.defs.get_schema(node.operator, node.version, node.domain)
    return {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}


def _filled(proto: NodeProto, given: Mapping[str, onnx.AttributeProto]) -> NodeProto:
    own = NodeProto()
    own.CopyFrom(proto)
    del own.attribute[:]
    for one in proto.attribute:
        if one.ref_attr_name and one.ref_attr_name not in given:
            continue
        copy = own.attribute.add()
        copy.CopyFrom(given[one.ref_attr_name] if one.ref_attr_name else one)
        copy.name = one.name
        if copy.HasField("g"):
            nodes = [_filled(n, given) for n in copy.g.node]
            del copy.g.node[:]
            copy.g.node.extend(nodes)
    return own


__all__ = ["Run", "Scope", "plain"]
