"""A Python function as an operation: traced, its definitions written in the text form.

What is written is read again and traced beside the function: where the two are not the same
definitions, nothing is given.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.composite.syntax import REDUCTIONS
from pullback.errors import ArgumentError, PullbackError, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import graph as G
from pullback.ir import program as P
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Definition, Graph, Value, Variable
from pullback.ir.node import walk
from pullback.ir.notation import Names
from pullback.ir.text import definition_text
from pullback.operations.operation import Operation, parse
from pullback.operations.spelled import Speller, refused
from pullback.simplify.graph import simplify_graph
from pullback.tensor.face.tensor import Tensor, shape_of
from pullback.tensor.face.tree import flatten, parameter_names
from pullback.tensor.record.trace import Trace, tracing

LETTERS = "ijklmnpqrstuvw"
WORDS = frozenset((*REDUCTIONS, "and", "or", "not", "True", "False"))  # no names of tensors
FORMS = {P.Loop: "a loop", P.Branch: "a branch", P.Feed: "a feeder", P.Receive: "a receiver",
         P.HostCall: "a call of the host"}  # fmt: skip


def from_function(function: Callable[..., Any], *examples: Any, name: str = "") -> Operation:
    """The operation that a function of tensors is, in the shapes and types of the examples.

    An example is an array, a tensor, or a shape of float32, numbers and `pb.dim`s, which become the
    symbols of the file.

    Raises: UnsupportedError at the user's line for what no file says: loops and branches, states
        and what is drawn, scatters, derivatives by hand; ArgumentError for what is no example.
    """
    own = name or getattr(function, "__name__", "")
    own = own if own.isidentifier() else "operation"
    arguments = _arguments(function, examples)
    outputs = traced(function, arguments)
    doc = " ".join((getattr(function, "__doc__", None) or "").split("\n\n")[0].split())
    text = Writer(arguments, outputs).text(own, doc)
    operation = parse(text)
    said = {e for v in arguments for e in v.shape}
    free: dict[str, Any] = {
        e.name: e for d in G.topological(outputs) for e in d.shape
        if isinstance(e, Dim) and e not in said
    }  # fmt: skip
    try:
        again = traced(lambda *tensors: operation(*tensors, **free), arguments)
    except PullbackError as problem:
        last = next((v for v in outputs if isinstance(v, Definition)), None)
        raise refused(f"{own} is written, and not read: {problem.what}", last) from problem
    odd = _different(arguments, outputs, again)
    if odd is not None:
        raise refused(f"`{odd.name}` is another definition where it is read again", odd)
    return operation


def _arguments(function: Callable[..., Any], examples: Sequence[Any]) -> list[Variable]:
    """A variable for each example. Raises: ArgumentError."""
    try:
        inspect.signature(function).bind(*examples)
    except TypeError as problem:
        raise ArgumentError(f"{len(examples)} examples: {problem}", code="E554") from problem
    except ValueError:  # of some built-in functions
        pass
    names = parameter_names(function, len(examples))
    made: list[Variable] = []
    for name, example in zip(names, examples, strict=True):
        if hasattr(example, "shape") and hasattr(example, "dtype"):
            kind = D.dtype(str(example.dtype))
            shape = tuple(example.shape)
        elif isinstance(example, tuple | list):
            kind, shape = D.float32, shape_of(tuple(example))
        else:
            what = f"{name} is a {type(example).__name__}, no example of a tensor"
            raise ArgumentError(what, help="an array, or a shape: (3, 4)", code="E554")
        made.append(Variable(_word(name), shape, kind))
    for extent in (e for v in made for e in v.shape):
        if isinstance(extent, Dim) and _word(extent.name) != extent.name:
            what = f"no symbol of a file is called {extent.name}"
            raise ArgumentError(what, help='pb.dim("n", 1, 64)', code="E554")
    return made


def traced(function: Callable[..., Any], arguments: Sequence[Variable]) -> list[Value]:
    """What a function makes of variables. Raises: UnsupportedError for more than definitions."""
    trace = Trace(host=False)
    trace.own.update(arguments)
    with tracing(trace):
        made = flatten(function(*[Tensor(v) for v in arguments]))
        values = [h.value for h in made.handles]
        results = [Variable(f"y{n}", v.shape, v.dtype) for n, v in enumerate(values)]
        trace.recording.segment.assigns.update(zip(results, values, strict=True))
        trace.flush()
    if not values:
        raise UnsupportedError("it gives no tensor: no file says that", code="E557")
    captured = [variable for _, variable in trace.captured.values()]
    program = trace.recording.finish((*arguments, *captured, *results))
    for item in program.body:
        if not isinstance(item, P.Compute):
            raise refused(FORMS.get(type(item), type(item).__name__), _first(item))
    graphs = [item.graph for item in program.body if isinstance(item, P.Compute)]
    for graph in graphs:
        for target, value in graph.assigns:
            if target not in results:
                own = value if isinstance(value, Definition) else None
                raise refused(f"a state, `{target.name}`", own)
    for definition in G.topological(values):
        for read in definition.reads:
            if read.source in captured:
                what = f"`{read.source.name}`, a tensor that is no argument"
                raise refused(what, definition)
    return values


def _first(item: Any) -> Definition | None:
    """Some definition in an item: what tells the user's line."""
    stack = [item]
    while stack:
        one = stack.pop(0)
        if isinstance(one, P.Compute):
            return next(iter(one.graph.definitions), None)
        stack += [*getattr(one, "body", ()), *getattr(one, "then", ())]
    return None


def _different(
    arguments: Sequence[Variable], own: Sequence[Value], again: Sequence[Value]
) -> Definition | None:
    """The first definition that is not the same, as simplified; None where all are."""
    lines, others = _lines(arguments, own), _lines(arguments, again)
    for (text, definition), (other, _) in zip(lines, others, strict=False):
        if text != other:
            return definition or next(iter(G.topological(own)), None)
    return None if len(lines) == len(others) else lines[-1][1]


def _lines(
    arguments: Sequence[Variable], values: Sequence[Value]
) -> list[tuple[str, Definition | None]]:
    """Definitions as text, values by number."""
    results = [Variable(f"result{n}", v.shape, v.dtype) for n, v in enumerate(values)]
    graph = simplify_graph(Graph(tuple(zip(results, values, strict=True))))
    order: list[Value] = [*arguments, *graph.definitions]
    names = Names({v: f"v{n}" for n, v in enumerate(order)}, {f"v{n}" for n in range(len(order))})
    lines: list[Any] = [(definition_text(d, names), d) for d in graph.definitions]
    for _, value in graph.assigns:
        lines.append((names(value), value if isinstance(value, Definition) else None))
    return lines


def _word(name: str) -> str:
    """A name as the text form has them."""
    plain = re.sub(r"\W", "_", name) or "_"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    return f"_{plain}" if plain in WORDS else plain


@dataclass(slots=True)
class Writer:
    """Definitions on their way to a file."""

    arguments: Sequence[Variable]
    outputs: Sequence[Value]
    names: dict[Value, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    fixed: dict[str, int] = field(default_factory=dict)  # symbols for extents that no read says

    def text(self, name: str, doc: str) -> str:
        """The file. Raises: UnsupportedError."""
        order = G.topological(self.outputs)
        every: list[Value] = [*self.arguments, *order]
        self.taken |= {e.name for v in every for e in v.shape if isinstance(e, Dim)}
        for value in every:
            self.names[value] = self.free(_word(value.name))
        lines = [self.line(definition) for definition in order]
        results: list[str] = []
        for value in self.outputs:
            if isinstance(value, Variable) or self.names[value] in results:
                lines.append(self.copied(value, results))
            else:
                results.append(self.names[value])
        inputs = [self.signature(self.names[v], v) for v in self.arguments]
        outputs = [self.signature(n, v) for n, v in zip(results, self.outputs, strict=True)]
        where = [f"{symbol} = {extent}" for symbol, extent in self.fixed.items()]
        code = "\n".join(lines)
        rows = {"inputs": inputs, "outputs": outputs, "where": where}
        listed = [f"{key} = [{', '.join(_quoted(t) for t in own)}]" for key, own in rows.items()]
        head = [f"documentation = {_quoted(doc)}", f"name = {_quoted(name)}"]
        sizes = {e.name: e for v in every for e in v.shape if isinstance(e, Dim)}
        tried = ", ".join(f"{n} = {min(e.hi, max(e.lo, 5 + k))}" for k, (n, e) in
                          enumerate(sizes.items()))  # fmt: skip
        test = ["", "[test]", f"sizes = {{{tried}}}"]
        return "\n".join([*head, *listed, f"code = '''\n{code}\n'''", *test, ""])

    def free(self, wanted: str) -> str:
        """A name that nothing has."""
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name

    def signature(self, name: str, value: Value) -> str:
        return f"{name}{{{value.dtype.name}}}[{', '.join(str(e) for e in value.shape)}]"

    def copied(self, value: Value, results: list[str]) -> str:
        """A result that is an argument, or another result."""
        name = self.free("y")
        results.append(name)
        axes = self.letters(len(value.shape))
        return f"{name}[{', '.join(axes)}] = {self.names[value]}[{', '.join(axes)}]"

    def letters(self, count: int) -> list[str]:
        known = [a for a in (*LETTERS, *(f"i{n}" for n in range(count))) if a not in self.taken]
        return known[:count]

    def line(self, d: Definition) -> str:
        """``c[i, j] = sum[k](a[i, k] * b[k, j])``. Raises: UnsupportedError."""
        if d.rule is not None:
            raise refused("a derivative that is given by hand", d)
        if d.keep is not G.Keep.AUTO:
            raise refused("what is kept in memory, or never", d)
        if isinstance(d.form, G.Accumulate | G.Scan):
            raise refused("a write at places that are data, or a running sum", d)
        axes = self.axes(d)
        speller = Speller(d, self.names, axes)
        rank = len(d.shape)
        left = f"{self.names[d]}[{', '.join(axes[:rank])}]"
        body = speller.text(d.body)
        if isinstance(d.form, G.Reduce):
            body = f"{d.form.combiner.name}[{', '.join(axes[rank:])}]({body})"
        return f"{left} = {f'stop({body})' if d.stop else body}"

    def axes(self, d: Definition) -> list[str]:
        """Names of the axes; one whose extent no read says has that of a symbol."""
        letters = self.letters(len(d.extents))
        said = {axis: self.said(d, axis) for axis in range(len(d.extents))}
        names: list[str] = []
        for axis, extent in enumerate(d.extents):
            declared = d in self.outputs and axis < len(d.shape)
            if declared or said[axis] == [extent]:
                names.append(letters[axis])
            else:
                names.append(self.symbol(d, letters[axis], extent, names))
        return names

    def said(self, d: Definition, axis: int) -> list[Extent]:
        """The extents of axes that are read at a bare axis."""
        own = [
            extent
            for take in d.reads
            for index, extent in take.places
            if isinstance(index, E.Axis) and index.number == axis
        ]
        return list(dict.fromkeys(own))

    def symbol(self, d: Definition, letter: str, extent: Extent, used: Sequence[str]) -> str:
        """A symbol that has the extent of an axis. Raises: UnsupportedError."""
        if isinstance(extent, Dim):
            sizes = {n.dim for n in walk(d.roots) if isinstance(n, E.Size)}
            if extent.name in used or extent in sizes:
                raise refused(f"an axis of {extent} elements that no read says", d)
            return extent.name
        name = f"{letter}{extent}"
        if name not in self.fixed:
            self.fixed[self.free(name)] = extent
        return name


def _quoted(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")
