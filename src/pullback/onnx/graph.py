"""Graphs of ONNX as plain data: nodes in an order in which each value is made before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, NodeProto, ValueInfoProto

from pullback.config import entity
from pullback.ir.dtype import DType
from pullback.onnx.faults import crooked, foreign
from pullback.onnx.read import Array, Store, attribute, kind_of, label, plain

Key = tuple[str, str]  # domain, name


@entity
class Node:
    """An operation: `inputs` and `outputs` are names, an empty one is left out."""

    name: str
    domain: str
    operator: str
    version: int  # since which the operator is what it is; 0: there is no such operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: NodeProto
    opsets: Mapping[str, int]

    def __str__(self) -> str:
        operator = f"{self.domain}.{self.operator}" if self.domain else self.operator
        return f"node {self.name!r}, operator {operator} of version {self.version}"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: its type where it is a tensor, and its extents as far as they are told:
    numbers, names, None.
    """

    name: str
    kind: DType | None = None
    shape: tuple[int | str | None, ...] | None = None
    optional: bool = False
    several: bool = False  # a sequence of tensors, which a list stands for


@entity
class Graph:
    """Nodes with what they read and give. `functions`: those of the model, by name."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    functions: Mapping[Key, FunctionProto]


@dataclass(slots=True)
class Reader:
    """What graphs of one model are read by."""

    opsets: Mapping[str, int]
    store: Store
    functions: Mapping[Key, FunctionProto] = field(default_factory=dict)

    def graph(self, proto: GraphProto, outer: Iterable[str] = ()) -> Graph:
        """A graph with names of an outer one. Raises: StateError, UnsupportedError."""
        constants = {}
        for tensor in proto.initializer:
            if tensor.name in constants:
                raise crooked(f"two initialisers named {tensor.name!r}")
            constants[tensor.name] = self.store.array(tensor, f"initialiser {tensor.name!r}")
        if proto.sparse_initializer:
            raise foreign("an initialiser that is sparse")
        inputs = tuple([port(v, "input") for v in proto.input])
        outputs = tuple([port(v, "output") for v in proto.output])
        nodes = self.nodes(proto.node)
        checked(proto.name, [p.name for p in inputs], [*constants], nodes, outputs, outer)
        return Graph(proto.name, inputs, outputs, constants, nodes, self.functions)

    def nodes(self, protos: Iterable[NodeProto]) -> tuple[Node, ...]:
        """Nodes as plain data."""
        return tuple([self.node(p) for p in protos])

    def node(self, proto: NodeProto) -> Node:
        """One of them. Raises: StateError for an attribute named twice."""
        domain = plain(proto.domain)
        own: dict[str, Any] = {}
        for one in proto.attribute:
            if one.name in own or one.ref_attr_name:
                raise crooked(f"attribute {one.name!r} of {label(proto)}: twice, or of no function")
            own[one.name] = attribute(one, self.store, label(proto))
        told = since(domain, proto.op_type, self.opsets.get(domain, 0))
        name = proto.name or f"-> {', '.join(proto.output)}"
        return Node(
            name, domain, proto.op_type, told, tuple(proto.input), tuple(proto.output), own,
            proto, self.opsets,
        )  # fmt: skip

    def within(self, opsets: Mapping[str, int]) -> Reader:
        """The same for the body of a function, which has versions of its own."""
        return Reader(opsets, self.store, self.functions)


def since(domain: str, operator: str, version: int) -> int:
    """Since which version of its set an operator is what it is in `version`; 0: there is none."""
    if not version or not onnx.defs.has(operator, domain):
        return 0
    try:
        return int(onnx.defs.get_schema(operator, version, domain).since_version)
    except (onnx.defs.SchemaError, OverflowError, TypeError):
        return 0


def port(info: ValueInfoProto, what: str) -> Port:
    """What is told of an input or output."""
    told, optional, several = info.type, False, False
    if told.WhichOneof("value") == "optional_type":
        told, optional = told.optional_type.elem_type, True
    if told.WhichOneof("value") == "sequence_type":
        told, several = told.sequence_type.elem_type, True
    held = told.WhichOneof("value")
    if held is None:
        return Port(info.name, optional=optional, several=several)
    if held != "tensor_type":
        raise foreign(f"{what} {info.name!r} is a {held.removesuffix('_type')}")
    tensor = told.tensor_type
    if not tensor.elem_type:
        return Port(info.name, optional=optional, several=several)
    kind = kind_of(tensor.elem_type, f"{what} {info.name!r}")
    if optional or several:
        return Port(info.name, kind, None, optional, several)
    if not tensor.HasField("shape"):
        return Port(info.name, kind)
    extents = [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    ]
    return Port(info.name, kind, tuple(extents))


def checked(
    name: str,
    inputs: Sequence[str],
    constants: Sequence[str],
    nodes: Sequence[Node],
    outputs: Iterable[Port],
    outer: Iterable[str],
) -> None:
    """Raises: StateError for a name made twice, or read before it is made: circles among them."""
    if len(set(inputs)) != len(inputs) or "" in inputs:
        raise crooked(f"graph {name!r}: inputs {list(inputs)}, of which each has its own name")
    made = {*inputs, *constants}
    seen = made | {*outer}
    for node in nodes:
        for one in node.inputs:
            if one and one not in seen:
                later = any(one in n.outputs for n in nodes)
                why = "made later: a circle, or out of order" if later else "made by nothing"
                raise crooked(f"{node}: it reads {one!r}, which is {why}")
        for one in node.outputs:
            if one and one in made:
                raise crooked(f"{node}: it makes {one!r}, which is there already")
            if one:
                made.add(one)
                seen.add(one)
    for told in outputs:
        if told.name not in seen:
            raise crooked(f"graph {name!r}: output {told.name!r} is made by nothing")
