"""Definitions as nodes of ONNX: a tensor of the graph for each, broadcast over its axes.

A body is computed node by node over as many axes as it depends on. A read takes elements along each
axis of its source by numbers that are known, or at places that are data; sums of products are
`Einsum`; functions that are spelled by primitives are recognised and have their own names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pullback.algebra.affine import factors
from pullback.config import frozen
from pullback.grad.composites import COMPOSITES
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir import graph as G
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.ir.graph import Definition, Value
from pullback.ir.meaning import work_out
from pullback.ir.node import Node, walk
from pullback.onnx.faults import unwritten
from pullback.onnx.read import NUMBERS

MOST = 1 << 31  # elements of a box that is written out
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMED: dict[Any, str] = {
    F.sigmoid: "Sigmoid", F.tanh: "Tanh", F.erf: "Erf", F.softplus: "Softplus", F.tan: "Tan",
    F.cos: "Cos", F.atan: "Atan", F.asin: "Asin", F.acos: "Acos", F.asinh: "Asinh",
    F.acosh: "Acosh", F.atanh: "Atanh", F.absolute: "Abs",
}  # fmt: skip
PLAIN: dict[type[Expr], str] = {
    E.Add: "Add", E.Mul: "Mul", E.Div: "Div", E.Less: "Less", E.Equal: "Equal", E.Exp: "Exp",
    E.Log: "Log", E.Sqrt: "Sqrt", E.Sin: "Sin", E.If: "Where",
}  # fmt: skip
LOGIC: dict[type[Expr], str] = {E.And: "And", E.Or: "Or", E.Xor: "Xor"}
REDUCED = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}
Boxed = tuple[int, ...]


@frozen
class Lane:
    """A tensor over the axes of a body: the extent of those that it depends on, else 1."""

    name: str
    shape: Boxed


def box_of(shape: Sequence[Any], what: Any) -> Boxed:
    """Extents as numbers. Raises: UnsupportedError for a symbolic one."""
    if not all(isinstance(e, int) for e in shape):
        raise unwritten(f"{what}: shape {tuple(shape)}, which is symbolic")
    return tuple(shape)


class Sheet:
    """Nodes that are written, and the names of values."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.known: dict[Value, str] = {}
        self.constants: dict[Any, str] = {}
        self.taken: set[str] = set()

    def name(self, wanted: str) -> str:
        """A name that nothing has yet."""
        own, number = wanted, 1
        while own in self.taken:
            number += 1
            own = f"{wanted}_{number}"
        self.taken.add(own)
        return own

    def add(self, operator: str, *inputs: str, called: str = "", **attributes: Any) -> str:
        """A node; the name of what it makes."""
        made = self.name(called or operator.lower())
        self.nodes.append(helper.make_node(operator, list(inputs), [made], **attributes))
        return made

    def weight(self, array: Any, called: str = "c") -> str:
        """Numbers; the same ones have one name."""
        array = np.asarray(array)
        key = array.dtype.str, array.dtype.name, array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = self.name(called)
            self.weights.append(numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def shaped(self, name: str, shape: Sequence[int]) -> str:
        """A tensor in another shape."""
        return self.add("Reshape", name, self.weight(np.asarray(shape, np.int64), "shape"))


def write(sheet: Sheet, definition: Definition) -> str:
    """A definition whose sources are there. Raises: UnsupportedError for what has no form."""
    shape, form = box_of(definition.shape, definition), definition.form
    body = Body(sheet, definition)
    if isinstance(form, G.Map):
        lane = body.lane(definition.body)
    elif isinstance(form, G.Reduce):
        lane = body.reduced(form)
    elif isinstance(form, G.Scan) and form.combiner.name == "sum":
        whole = body.spread(body.lane(definition.body))
        axis = sheet.weight(np.asarray(form.axis, np.int64), "axis")
        lane = Lane(sheet.add("CumSum", whole.name, axis), whole.shape)
    else:
        raise unwritten(f"`{definition.name}`: a {type(form).__name__.lower()} has no operator")
    name = lane.name
    if lane.shape != shape:
        whole_shape = sheet.weight(np.asarray(shape, np.int64), "shape")
        name = sheet.add("Expand", name, whole_shape)
    return name


class Body:
    """The body of one definition."""

    def __init__(self, sheet: Sheet, definition: Definition) -> None:
        self.sheet = sheet
        self.definition = definition
        self.box = box_of(definition.extents, definition)
        self.lanes: dict[tuple[Node, bool], Lane] = {}

    def shape(self, node: Expr) -> Boxed:
        """What the lane of a node has."""
        return tuple([e if n in node.axes else 1 for n, e in enumerate(self.box)])

    def lane(self, node: Expr, guarded: bool = False) -> Lane:
        """A node; `guarded`: a condition may leave it out, so a read may be out of range."""
        key = node, guarded
        if key not in self.lanes:
            shape = self.shape(node)
            if math.prod(shape) > MOST:
                raise unwritten(f"`{self.definition.name}`: {math.prod(shape)} elements at once")
            self.lanes[key] = Lane(self.written(node, guarded), shape)
        return self.lanes[key]

    def written(self, node: Expr, guarded: bool) -> str:
        """The name of a node's lane. Raises: UnsupportedError."""
        if isinstance(node, E.Const):
            array = np.asarray(node.value, node.dtype.numpy)
            return self.sheet.weight(array.reshape((1,) * len(self.box)))
        if isinstance(node, E.Axis):
            row = np.arange(self.box[node.number], dtype=np.int64)
            return self.sheet.weight(row.reshape(self.shape(node)), "axis")
        if isinstance(node, E.Take):
            return Read(self, node, guarded).written()
        named = function_of(node)
        if named is not None:
            return self.sheet.add(named[0], self.lane(named[1], guarded).name)
        if isinstance(node, E.Cast):
            return self.cast(node, guarded)
        inner = [c for c in node.children if isinstance(c, Expr)]
        if isinstance(node, E.If):
            names = [self.lane(node.condition, guarded).name]
            names += [self.lane(c, True).name for c in (node.then, node.otherwise)]
        else:
            names = [self.lane(c, guarded).name for c in inner]
        return self.primitive(node, names)

    def primitive(self, node: Expr, names: Sequence[str]) -> str:
        """An operation on lanes."""
        kind = type(node)
        if kind in PLAIN:
            return self.sheet.add(PLAIN[kind], *names)
        if kind in LOGIC:
            bits = "" if node.dtype.is_bool else "Bitwise"
            return self.sheet.add(bits + LOGIC[kind], *names)
        if isinstance(node, E.FloorDiv | E.Mod):
            return self.divided(node, names)
        raise unwritten(f"`{self.definition.name}`: {kind.__name__} has no operator")

    def divided(self, node: Expr, names: Sequence[str]) -> str:
        """Quotients and rests of integers by a positive number, of floats by any."""
        add, (left, right) = self.sheet.add, names
        by = node.children[1]
        if node.dtype.is_float:
            floor = add("Floor", add("Div", left, right))
            if isinstance(node, E.FloorDiv):
                return floor
            return add("Sub", left, add("Mul", floor, right))
        if not (isinstance(by, E.Const) and by.value > 0):
            raise unwritten(f"`{self.definition.name}`: integers divided by what is not a number")
        rest = add("Mod", left, right)
        return rest if isinstance(node, E.Mod) else add("Div", add("Sub", left, rest), right)

    def cast(self, node: E.Cast, guarded: bool) -> str:
        """Of floats to integers at the ends of the type, of NaN 0."""
        own, source = self.lane(node.value, guarded).name, node.value.dtype
        if source == node.to:
            return own
        if source.is_float and node.to.is_integer:
            zero = self.sheet.weight(np.asarray(0, source.numpy))
            own = self.sheet.add("Where", self.sheet.add("IsNaN", own), zero, own)
            low, high = (self.sheet.weight(v) for v in _ends(node.to, source))
            own = self.sheet.add("Min", self.sheet.add("Max", own, low), high)
        plain: dict[str, Any] = {"saturate": 0} if node.to.is_float and node.to.bits == 8 else {}
        return self.sheet.add("Cast", own, to=NUMBERS[node.to], **plain)

    def spread(self, lane: Lane) -> Lane:
        """A lane over the whole box."""
        if lane.shape == self.box:
            return lane
        shape = self.sheet.weight(np.asarray(self.box, np.int64), "shape")
        return Lane(self.sheet.add("Expand", lane.name, shape), self.box)

    def reduced(self, form: G.Reduce) -> Lane:
        """A reduction: of a sum of products as such, else of the whole box."""
        outer = len(self.box) - len(form.over)
        product = self.product(outer) if form.combiner.name == "sum" else None
        if product is not None:
            return product
        whole = self.spread(self.lane(self.definition.body))
        over = self.sheet.weight(np.arange(outer, len(self.box), dtype=np.int64), "axes")
        left, operator = self.box[:outer], REDUCED.get(form.combiner.name)
        if operator is not None:
            return Lane(self.sheet.add(operator, whole.name, over, keepdims=0), left)
        if form.combiner.name not in ("any", "all"):
            raise unwritten(f"`{self.definition.name}`: a reduction by {form.combiner.name}")
        operator = "ReduceMax" if form.combiner.name == "any" else "ReduceMin"
        number = self.sheet.add("Cast", whole.name, to=TensorProto.INT32)
        number = self.sheet.add(operator, number, over, keepdims=0)
        return Lane(self.sheet.add("Cast", number, to=TensorProto.BOOL), left)

    def product(self, outer: int) -> Lane | None:
        """``sum[k] a[i, k] b[k, j]`` as an Einsum; None where no axis is left out by a factor."""
        groups: dict[frozenset[int], list[Expr]] = {}
        for factor in factors(self.definition.body):
            groups.setdefault(factor.axes, []).append(factor)
        whole = frozenset(range(len(self.box)))
        if len(groups) < 2 or whole in groups or frozenset().union(*groups) != whole:
            return None
        if len(self.box) > len(LETTERS):
            return None
        names, terms = [], []
        for axes, own in groups.items():
            lanes = [self.lane(f).name for f in own]
            name = lanes[0]
            for other in lanes[1:]:
                name = self.sheet.add("Mul", name, other)
            order = sorted(axes)
            names.append(self.sheet.shaped(name, [self.box[n] for n in order]))
            terms.append("".join(LETTERS[n] for n in order))
        equation = f"{','.join(terms)}->{LETTERS[:outer]}"
        return Lane(self.sheet.add("Einsum", *names, equation=equation), self.box[:outer])


def _ends(to: DType, source: DType) -> tuple[Any, Any]:
    """The ends of an integer type as numbers of a float type that are within."""
    low, high = to.range()
    kind = source.numpy
    top = np.asarray(high, np.float64).astype(kind)
    if float(top) > high:
        top = np.nextafter(top, np.asarray(0, kind))
    bottom = np.asarray(low, np.float64).astype(kind)
    finite = np.isfinite(bottom.astype(np.float64)) and np.isfinite(top.astype(np.float64))
    if not finite:
        raise unwritten(f"a cast of {source} to {to}")
    return bottom, top


def function_of(node: Expr) -> tuple[str, Expr] | None:
    """The operator of a function that a node spells by primitives, and its argument."""
    if not node.dtype.is_float:
        return None
    if isinstance(node, E.If) and F.relu(node.then) is node:
        return "Relu", node.then
    for known in COMPOSITES.get(type(node), ()):
        if known.function in NAMED:
            args = F.arguments(node, known.function, known.path)
            if args is not None:
                return NAMED[known.function], args[0]
    return None


class Read:
    """``source[i(axes), j(axes), ..]``: by numbers along each axis of the source, or by data."""

    def __init__(self, body: Body, node: E.Take, guarded: bool) -> None:
        self.body = body
        self.node = node
        self.guarded = guarded
        self.sheet = body.sheet
        self.extents = box_of(node.source.shape, node.source)

    def written(self) -> str:
        """The lane's name."""
        source = self.sheet.known[self.node.source]
        axes = [sorted(i.axes) for i in self.node.indices]
        flat = [n for own in axes for n in own]
        if len(set(flat)) != len(flat) or any(map(_reads, self.node.indices)):
            return self.gathered(source)
        name = source
        for place in reversed(range(len(axes))):
            name = self.along(name, place, axes[place])
        order = sorted(range(len(flat)), key=flat.__getitem__)
        if order != list(range(len(flat))):
            name = self.sheet.add("Transpose", name, perm=order)
        return self.reshaped(name, [self.body.box[n] for n in sorted(flat)])

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        wanted = self.body.shape(self.node)
        return name if tuple(shape) == wanted else self.sheet.shaped(name, wanted)

    def along(self, name: str, place: int, axes: Sequence[int]) -> str:
        """One axis of the source by numbers that only axes decide."""
        extent = self.extents[place]
        numbers = self.numbers(self.node.indices[place], axes)
        if numbers.ndim == 1 and np.array_equal(numbers, np.arange(extent)):
            return name
        outside = numbers.size and (numbers.min() < 0 or numbers.max() >= extent)
        if outside and not self.guarded:
            raise unwritten(f"`{self.body.definition.name}`: a read outside of its source")
        table = self.sheet.weight(numbers.clip(0, max(extent - 1, 0)), "places")
        return self.sheet.add("Gather", name, table, axis=place)

    def numbers(self, index: Expr, axes: Sequence[int]) -> Any:
        """An index over the axes that it depends on."""
        known: dict[Node, Any] = {}
        for node in walk([index]):
            if isinstance(node, E.Axis):
                shape = [self.body.box[n] if n == node.number else 1 for n in axes]
                known[node] = np.arange(self.body.box[node.number]).reshape(shape)
            elif isinstance(node, E.Size):
                raise unwritten(f"`{self.body.definition.name}`: the size of a symbolic axis")
        box = [self.body.box[n] for n in axes]
        if math.prod(box) > MOST >> 6:
            raise unwritten(f"`{self.body.definition.name}`: a table of {math.prod(box)} places")
        work_out([index], known)
        return np.broadcast_to(np.asarray(known[index], np.int64), box)

    def gathered(self, source: str) -> str:
        """At places that are data, or of axes that meet: of the source in a row."""
        flat = ""
        for index, extent in zip(self.node.indices, self.extents, strict=True):
            own = self.body.lane(index, self.guarded).name
            if self.guarded:
                low, high = (self.sheet.weight(np.asarray(v)) for v in (0, max(extent - 1, 0)))
                own = self.sheet.add("Min", self.sheet.add("Max", own, low), high)
            if flat:
                flat = self.sheet.add("Mul", flat, self.sheet.weight(np.asarray(extent)))
                flat = self.sheet.add("Add", flat, own)
            else:
                flat = own
        row = self.sheet.shaped(source, [-1])
        return self.sheet.add("Gather", row, flat, axis=0)


def _reads(index: Expr) -> bool:
    return any(isinstance(n, E.Take) for n in walk([index]))
