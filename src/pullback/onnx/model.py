"""`pb.onnx.load`: a model of ONNX as a module, compiled for the shapes it is called with."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto

import pullback as pb
from pullback.config import Cap, Options
from pullback.nn.base.module import Module
from pullback.nn.base.parameter import Parameter
from pullback.onnx.apart import watched
from pullback.onnx.faults import Wanted, crooked, uncalled, undecided, unreadable
from pullback.onnx.graph import Graph, Port, Reader
from pullback.onnx.read import Array, Store, model_of, opsets, plain
from pullback.onnx.run import Run, Scope, is_plain
from pullback.onnx.values import MOST_KNOWN, NOTHING, Row, Value
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import current

KEPT: Cap = 64  # programs by values of inputs that decide shapes; what is used least goes
Inputs = Mapping[str, Any]
Counts = tuple[tuple[str, int], ...]  # of sequences, by name


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    dims: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Model:
    """A model from a file, from its bytes, or as onnx has it: a module that can be trained.

    `dims` makes named sizes symbolic, one program for all: ``{"batch": (1, 64)}``, or a `pb.dim`.

    Raises: StateError for what is no model, or one whose parts do not fit (E571 to E573);
        UnsupportedError for types that no tensor has (E574).

    Example:
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 21]> f (float[n] x) => (float[n] y)'
        >>> model = pb.onnx.load(parser.parse_model(text + " { y = Relu(x) }"))
        >>> model(pb.tensor([-1.0, 1.0]))
        Tensor([0., 1.], dtype=float32)
    """
    proto, folder = model_of(source)
    return Model(proto, Store(folder), dims, options)


class Model(Module):
    """A graph of ONNX. Initialisers of floats with an axis are its parameters, by their names;
    means and variances of batch norms its buffers.

    ``model(x, y)``, ``model(input=x)``: a tensor, or a tuple of them; `run` takes and gives dicts.

    Example:
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 21]> f (float[n] x) => (float[n] y)'
        >>> pb.onnx.load(parser.parse_model(text + " { y = Neg(x) }")).outputs
        (Port(name='y', kind=float32, shape=('n',), optional=False, several=False),)
    """

    def __init__(
        self,
        proto: ModelProto,
        store: Store,
        dims: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(proto, ModelProto) or not proto.HasField("graph"):
            raise unreadable("a model without a graph")
        functions = {(plain(f.domain), f.name): f for f in proto.functions}
        self.reader = Reader(opsets(proto.opset_import), store, functions)
        self.graph = self.reader.graph(proto.graph)
        self.options = options
        self.dims = {name: _dim(name, given) for name, given in (dims or {}).items()}
        self.constants: dict[str, Value] = {}
        self.asked: frozenset[str] = frozenset()
        self.programs: OrderedDict[Any, Any] = OrderedDict()
        self._own(self.graph)

    def _own(self, graph: Graph) -> None:
        """Initialisers as parameters, buffers and constants."""
        measured = {
            n for node in graph.nodes if node.operator == "BatchNormalization"
            for n in node.inputs[3:5]
        }  # fmt: skip
        given = {p.name for p in graph.inputs}
        for name, array in graph.constants.items():
            if array.ndim and array.size and pb.dtype(array.dtype).is_float and name not in given:
                if name in measured:
                    self.register_buffer(name, pb.tensor(array))
                else:
                    self.register_parameter(name, Parameter(pb.tensor(array)))
            else:
                tensor = pb.tensor(array) if array.size != 1 else None
                self.constants[name] = Value(tensor, array, plain=is_plain(array))

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What a call must be given: inputs that no initialiser stands in for."""
        return tuple([p for p in self.graph.inputs if p.name not in self.graph.constants])

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What a call gives."""
        return self.graph.outputs

    def forward(self, *args: Any, **named: Any) -> Any:
        """The outputs, one alone or a tuple. Raises: ArgumentError for inputs that do not fit."""
        if len(args) > len(self.inputs):
            raise uncalled(f"{len(args)} inputs for {self._names()}")
        given = dict(zip([p.name for p in self.inputs], args, strict=False))
        twice = given.keys() & named.keys()
        if twice:
            raise uncalled(f"input {min(twice)!r} by place and by name")
        results = tuple(self.run({**given, **named}).values())
        return results[0] if len(results) == 1 else results

    def run(self, inputs: Inputs) -> dict[str, Any]:
        """The outputs by name, of inputs by name. Raises: ArgumentError."""
        given = self._fitted(inputs)
        while True:
            fixed = {name: _numbers(name, given[name]) for name in self.asked & given.keys()}
            free, counts = _apart({n: x for n, x in given.items() if n not in fixed})
            try:
                results = self._program(fixed, list(free), counts)(*free.values())
            except Wanted as more:
                self._know(more.names)
                continue
            cells = (*self._parameters.values(), *free.values())
            if current() is None and any(getattr(t, "requires_grad", False) for t in cells):
                every = [y for r in results for y in (r if isinstance(r, list) else [r])]
                watched([y for y in every if y is not None])
            return dict(zip([p.name for p in self.outputs], results, strict=True))

    def _know(self, names: frozenset[str]) -> None:
        """Inputs whose values decide the program; parameters that do are none any more."""
        self.asked |= names
        for home in (self._parameters, self._buffers):
            for name in names & home.keys():
                array = np.asarray(home.pop(name))
                own = Value(pb.tensor(array), array)
                self.constants = {**self.constants, name: own}  # a copy of the model has its own

    def _program(self, fixed: Mapping[str, Array], free: list[str], counts: Counts) -> Any:
        numbers = tuple([(n, a.dtype.str, a.shape, a.tobytes()) for n, a in fixed.items()])
        key = id(self), tuple(free), counts, numbers  # of a copy of the model others
        if key not in self.programs:
            ports = {p.name: p for p in self.graph.inputs}
            several = {f"{n}[{k}]": ports[n] for n, count in counts for k in range(count)}
            ports |= several
            shapes = [self._declared(ports[name]) for name in free] if self.dims else None
            body = partial(self._traced, fixed, free, counts)
            body.__name__ = self.graph.name or "model"  # type: ignore[attr-defined]
            self.programs[key] = pb.jit(body, shapes=shapes, options=self.options)
            if len(self.programs) > KEPT:
                self.programs.popitem(last=False)
        self.programs.move_to_end(key)
        return self.programs[key]

    def _declared(self, port: Port) -> Any:
        shape = port.shape or ()
        if not any(e in self.dims for e in shape if isinstance(e, str)):
            return None
        unknown = [e for e in shape if not isinstance(e, int) and e not in self.dims]
        if unknown:
            raise uncalled(
                f"input {port.name!r} of shape {shape}: dims= says nothing of {unknown[0]!r}"
            )
        return tuple([self.dims[e] if isinstance(e, str) else e for e in shape])

    def _traced(
        self, fixed: Mapping[str, Array], free: list[str], counts: Counts, *tensors: Any
    ) -> tuple[Any, ...]:
        scope: Scope = dict(self.constants)
        for name, cell in (*self._parameters.items(), *self._buffers.items()):
            scope[name] = Value(cell, given=name)
        for name, array in fixed.items():
            scope[name] = Value(pb.tensor(array) if array.size <= 1 else None, array)
        for name, tensor in zip(free, tensors, strict=True):
            scope[name] = Value(tensor, given=name)
        for name, count in counts:
            items = [scope.pop(f"{name}[{n}]") for n in range(count)]
            scope[name] = Row(items) if count >= 0 else NOTHING
        values = Run(self.reader).graph(self.graph, scope)
        return tuple([_given(p, v) for p, v in zip(self.graph.outputs, values, strict=True)])

    def _fitted(self, inputs: Inputs) -> dict[str, Any]:
        """Inputs as tensors. Raises: ArgumentError for names, types and shapes that do not fit."""
        ports = {p.name: p for p in self.graph.inputs}
        strange = inputs.keys() - ports.keys()
        missing = [p.name for p in self.inputs if p.name not in inputs]
        if strange or missing:
            what = f"no input {min(strange)!r}" if strange else f"input {missing[0]!r} is missing"
            raise uncalled(f"{what}: {self._names()}")
        sizes: dict[str, Any] = {}
        given = {}
        for name, port in ports.items():
            if name in inputs and (port.optional or port.several):
                given[name] = _whole(port, inputs[name])
            elif name in inputs:
                given[name] = _tensor(port, inputs[name])
                _fit(port, given[name], sizes)
        return given

    def _names(self) -> str:
        return f"the inputs are {', '.join(repr(p.name) for p in self.inputs) or 'none'}"

    def __repr__(self) -> str:
        names = [f"{p.name}: {p.kind}{list(p.shape or ())}" for p in self.inputs]
        return f"Model({self.graph.name!r}, {', '.join(names)})"


def _apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], Counts]:
    """Every tensor by a name of its own; how many each sequence has, -1 of what is not there."""
    free: dict[str, Any] = {}
    counts: list[tuple[str, int]] = []
    for name, x in given.items():
        if x is None:
            counts.append((name, -1))
        elif isinstance(x, list):
            counts.append((name, len(x)))
            free |= {f"{name}[{n}]": one for n, one in enumerate(x)}
        else:
            free[name] = x
    return free, tuple(counts)


def _whole(port: Port, given: Any) -> Any:
    """An optional value or a sequence: a tensor, a list of them, or None. Raises: ArgumentError."""
    if given is None and port.optional:
        return None
    listed = given if port.several else [given]
    if not isinstance(listed, list | tuple) or (port.several and isinstance(given, Tensor)):
        raise uncalled(f"input {port.name!r} is a {type(given).__name__}, a list is wanted")
    items = [_tensor(port, one) for one in listed]
    for one in items:
        _fit(port, one, {})
    return items if port.several else items[0]


def _given(port: Port, value: Value) -> Any:
    """An output: a tensor, a list of them, or None. Raises: StateError for another type."""
    if isinstance(value, Row):
        return [_given(port, v) for v in value.items]
    if value is NOTHING:
        return None
    kind = value.tensor.dtype
    if port.kind is not None and kind != port.kind:
        raise crooked(f"output {port.name!r} is {kind}, where the model says {port.kind}")
    return pb.asarray(value.tensor)


def _dim(name: str, given: Any) -> Any:
    return pb.dim(name, *given) if isinstance(given, tuple | list) else given


def _tensor(port: Port, given: Any) -> Any:
    if isinstance(given, np.ndarray | np.generic):
        return np.asarray(given)
    if isinstance(given, Tensor):
        return given
    try:
        return np.asarray(given, None if port.kind is None else port.kind.numpy)
    except (TypeError, ValueError, OverflowError) as error:
        raise uncalled(f"input {port.name!r}: {error}") from error


def _fit(port: Port, x: Any, sizes: dict[str, Any]) -> None:
    kind = pb.dtype(x.dtype)
    if port.kind is not None and kind != port.kind:
        raise uncalled(f"input {port.name!r} is {kind}, {port.kind} is wanted")
    if port.shape is None:
        return
    wanted = [sizes.setdefault(e, n) if isinstance(e, str) else e
              for e, n in zip(port.shape, x.shape, strict=False)]  # fmt: skip
    same = all(e is None or e == n for e, n in zip(wanted, x.shape, strict=False))
    if len(x.shape) != len(port.shape) or not same:
        raise uncalled(f"input {port.name!r} of shape {tuple(x.shape)}, {port.shape} is wanted")


def _numbers(name: str, x: Any) -> Array:
    """The numbers of an input that decides shapes. Raises: UnsupportedError while tracing."""
    if isinstance(x, Tensor) and current() is not None:
        raise undecided(f"the values of input {name!r} decide shapes: pass it as a NumPy array")
    array = np.asarray(x)
    if array.size > MOST_KNOWN:
        raise undecided(f"input {name!r} of {array.size} elements decides shapes")
    return array
