"""Checked runs: launch by launch, in fenced memory, with an eye on what each one writes.

    memory of a variable:  fence | array | fence        all of it a pattern before the first write

The pattern is a signalling NaN that no arithmetic makes. Where it stands in a result, something was
read before it was written; where a fence has changed, a launch wrote outside of its arrays. A NaN
of another kind, which nothing that was read had, was born in this launch: the definitions behind it
are evaluated one after the other to name the one that made it.

Integers by zero, and negative powers of integers, have values (see docs/accuracy.md) that nobody
wants. They leave no mark in a result: whether there are any is a definition of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod

import numpy as np

from pullback.backends.base import Call, Part
from pullback.backends.host.exchange import Array, box, shown
from pullback.backends.host.interpret import Interpreter, Plain, Values, refused
from pullback.backends.host.system import address, memory
from pullback.errors import DivisionError, IndexRangeError, InvalidIR, NaNError
from pullback.ir import expr as E
from pullback.ir.dtype import bool_
from pullback.ir.expr import Expr
from pullback.ir.graph import (
    COMBINERS,
    Accumulate,
    Definition,
    Graph,
    Reduce,
    Value,
    Variable,
)
from pullback.ir.kernel import Kernel
from pullback.ir.node import Node, walk
from pullback.ir.program import Block, Branch, Compute, HostCall, Loop, Receive, items, written
from pullback.ir.text import show

Oracle = Callable[[Sequence[Value], Mapping[Variable, Array]], list[Array]]

FENCE = 256  # bytes on each side of an array
ROUTINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
# A signalling NaN by element size; arithmetic sets the quiet bit of what it passes on.
PATTERNS = {8: 0x7FF5A5A5A5A5A5A5, 4: 0x7FA5A5A5, 1: 0xA5}
SHORT = {"float16": 0x7D5A, "bfloat16": 0x7FA5}
QUIET = {"float64": 1 << 51, "float32": 1 << 22, "float16": 1 << 9, "bfloat16": 1 << 6}


class Fenced:
    """The memory of one variable."""

    def __init__(self, variable: Variable) -> None:
        kind, shape = variable.dtype, box(variable)
        size = kind.itemsize
        self.pattern = SHORT.get(kind.name, PATTERNS.get(size, 0xA5A5))
        self.quiet = QUIET.get(kind.name, 0)
        self.count = prod(shape)
        self.edge = FENCE // size
        room = memory((self.count + 2 * self.edge) * size)
        self.words = room.view(f"u{size}")[: self.count + 2 * self.edge]
        self.words[:] = self.pattern
        self.inner = self.words[self.edge : self.edge + self.count].reshape(shape)
        self.array: Array = self.inner.view(kind.numpy)

    @property
    def whole(self) -> bool:
        """Whether both fences stand."""
        before, after = self.words[: self.edge], self.words[self.edge + self.count :]
        return bool((before == self.pattern).all() and (after == self.pattern).all())

    def unread(self) -> Array:
        """Where the pattern came through arithmetic; as it was, it may still be written."""
        plain = self.inner & ((1 << (8 * self.inner.itemsize - 1)) - 1)  # without the sign
        return np.asarray(plain == (self.pattern | self.quiet)) & bool(self.quiet)

    def untouched(self) -> Array:
        """Where nothing was written."""
        return np.asarray(self.inner == self.pattern)


class Checked(Plain):
    """Runs the launches of a program one by one; `barriers` and `moved` are not counted.

    `oracle` evaluates definitions: it tells which one a NaN was born in.
    """

    def __init__(
        self,
        body: Block,
        groups: Sequence[Sequence[Kernel]],
        calls: Mapping[Kernel, Call],
        oracle: Oracle,
    ) -> None:
        graphs = [item.graph for item in items(body) if isinstance(item, Compute)]
        self.launches = 0
        self._body = body
        self._written = frozenset(written(body))
        self._read = frozenset(_read(body))
        self.calls = calls
        self.oracle = oracle
        self.kernels = dict(zip(graphs, groups, strict=True))
        self.divisions = {g: _divisions(g) for g in graphs}

    def run(self, bindings: Mapping[Variable, Array], sizes: Mapping[str, int]) -> None:
        """Run on arrays shaped by upper bounds; they are written where nothing was found.

        Raises: NaNError, IndexRangeError, what callbacks raise; InvalidIR for a fault of the
        compiler's.
        """
        run = _Run(self, sizes)
        # what is only written holds the pattern until then
        values = {v: a for v, a in bindings.items() if v in self._read or v not in self._written}
        interpreter = Interpreter(values, run.compute, refused, sizes)
        try:
            with np.errstate(all="ignore"):
                interpreter.run(self._body)
        finally:
            self.launches = run.launches
        for variable, array in bindings.items():
            if variable in self._written and variable in interpreter.values:
                run.finished(variable)
                array[...] = interpreter.values[variable]


def _read(body: Block) -> Iterator[Variable | None]:
    for item in items(body):
        if isinstance(item, Compute):
            yield from item.graph.inputs
        elif isinstance(item, Receive | HostCall):
            yield from item.sources
        elif isinstance(item, Branch):
            yield item.predicate
        elif isinstance(item, Loop):
            yield item.condition


class _Run:
    """One run: the memory of its variables."""

    def __init__(self, checked: Checked, sizes: Mapping[str, int]) -> None:
        self.kernels, self.calls = checked.kernels, checked.calls
        self.divisions, self.oracle = checked.divisions, checked.oracle
        self.sizes = sizes
        self.fenced: dict[Variable, Fenced] = {}
        self.launches = 0

    def compute(self, graph: Graph, values: Values) -> Values:
        """One simultaneous assignment. Raises: as `Checked.run`."""
        before = {v: np.array(shown(v, values[v], self.sizes)) for v in graph.inputs}
        self.divide(graph, before)
        for kernel in self.kernels[graph]:
            call = self.calls[kernel]
            passed = tuple(dict.fromkeys(v for part in call.parts for v in part.arguments))
            clean = not any(_nan(self.seen(v, values)) for v in passed if v in values)
            self.launch(call, passed, values)
            for variable in call.writes:
                if self.fenced[variable].unread().any():
                    raise InvalidIR(f"{call.name}: {variable} has what was never written")
                if clean and _nan(self.seen(variable, values)):
                    raise self.born(graph, before, variable)
        return {}

    def divide(self, graph: Graph, before: Values) -> None:
        """Raises: DivisionError where a result stands on a division of integers by 0."""
        roots, own = self.divisions[graph]
        if not any(hit.any() for hit in self.oracle(roots, before)):
            return
        hits = self.oracle([where for _, where in own], before)
        definition, places = next((d, h) for (d, _), h in zip(own, hits, strict=True) if h.any())
        line = show(definition).splitlines()[-1].strip()
        place = np.argwhere(places)[0].tolist()
        what = f"`{definition.name}` at {place}: an integer by 0, or to a negative power: {line}"
        raise DivisionError(what, origin=definition.origin)

    def seen(self, variable: Variable, values: Values) -> Array:
        """What a variable holds, but where nothing was written yet."""
        array = values[variable]
        own = self.fenced.get(variable)
        if own is not None and array is own.array:
            array = np.where(own.untouched(), np.zeros((), array.dtype), array)
        return shown(variable, array, self.sizes)

    def launch(self, call: Call, passed: Sequence[Variable], values: Values) -> None:
        """Run all tasks of a launch in fenced memory. Raises: InvalidIR, IndexRangeError."""
        self.launches += 1
        for variable in passed:
            own = self.fenced.get(variable)
            if own is None:
                own = self.fenced[variable] = Fenced(variable)
            if variable in values and values[variable] is not own.array:
                here = shown(variable, own.array, self.sizes)
                here[...] = shown(variable, values[variable], self.sizes)
            values[variable] = own.array
        for part in call.parts:
            self.part(call, part)
        for variable in passed:
            if not self.fenced[variable].whole:
                raise InvalidIR(f"{call.name} writes outside of {variable}")

    def part(self, call: Call, part: Part) -> None:
        """Run the tasks of one routine, in order. Raises: IndexRangeError."""
        code, error = part.code, np.zeros(3, np.int64)
        facts = code.stored
        working = [_patterned(size) for size in (facts.scratch, *facts.shared)]
        slots = [address(self.fenced[v].array) for v in part.arguments]
        slots += map(address, working[1:])
        slots += [self.sizes[name] for name in facts.sizes]
        block = np.array([*slots, address(error)], np.int64)
        given = address(block), address(working[0])
        for task in range(facts.tasks):
            ROUTINE(code.body)(given[0], task, given[1])
        if code.finish:
            ROUTINE(code.finish)(given[0], 0, given[1])
        state, site, value = error.tolist()
        if state:
            raise IndexRangeError.checked(value, facts.sites[site])

    def born(self, graph: Graph, before: Values, result: Variable) -> NaNError:
        """The error that names the first definition with NaN of what had none."""
        order = graph.definitions
        known: dict[Value, Array] = dict(before.items())
        known.update(zip(order, self.oracle(order, before), strict=True))
        for definition in order:
            if _nan(known[definition]) and not any(_nan(known[s]) for s in definition.sources):
                place = np.argwhere(np.isnan(known[definition]))[0].tolist()
                line = show(definition).splitlines()[-1].strip()
                what = f"`{definition.name}` is NaN at {place}, and nothing that it reads is: "
                return NaNError(what + line, origin=definition.origin)
        return NaNError(
            f"`{result.name}` is NaN, and nothing that was read is", origin=result.origin
        )

    def finished(self, variable: Variable) -> None:
        """Raises: InvalidIR where a part of a result was never written."""
        own = self.fenced.get(variable)
        if own is None or not own.quiet:
            return
        if shown(variable, own.untouched(), self.sizes).any():
            raise InvalidIR(f"{variable} is not written everywhere")


Divisions = tuple[list[Definition], list[tuple[Definition, Definition]]]


def _divisions(graph: Graph) -> Divisions:
    """Whether results stand on a division of integers by 0; and each definition with such places.

    What nobody reads, as a mask drops it, is none of the first.
    """
    marks: dict[Value, Definition] = {}
    asked = {value for _, value in graph.assigns}
    roots: list[Definition] = []
    own: list[tuple[Definition, Definition]] = []
    for definition in graph.definitions:
        form, body = definition.form, definition.body
        over = form.over if isinstance(form, Reduce) else ()
        domain = form.domain if isinstance(form, Accumulate) else (*definition.shape, *over)
        hit, alone = _divided(body, marks), _divided(body, {})
        if alone is not None:
            own.append((definition, Definition("divisions", domain, alone)))
        if hit is None:
            continue
        if over:
            mark = Definition("divisions", definition.shape, hit, Reduce(COMBINERS["any"], over))
        else:
            mark = Definition("divisions", domain, hit)
        if definition in asked or isinstance(form, Accumulate):
            roots.append(mark)
        else:
            marks[definition] = mark
    return roots, own


def _divided(body: Expr, marks: Mapping[Value, Definition]) -> Expr | None:
    """Whether what is computed of `body` divides an integer by 0; what is not chosen is not."""
    no = E.const(False, bool_)
    divides: dict[Node, Expr | None] = {}
    for node in walk(body):
        kids = [divides.get(k) for k in node.children]
        if isinstance(node, E.If) and (kids[1] or kids[2]):
            kids[1:] = [E.If(node.condition, kids[1] or no, kids[2] or no)]
        own = _by_zero(node)
        if isinstance(node, E.Take) and node.source in marks:
            own = node.of(marks[node.source])
        hits = [k for k in (*kids, own) if k is not None]
        divides[node] = reduce(E.Or, hits) if hits else None
    return divides[body]


def _by_zero(node: Node) -> Expr | None:
    """Whether a node itself does: its divisor is 0, or the exponent of `whole_power` negative."""
    if isinstance(node, E.FloorDiv | E.Mod) and node.dtype.is_integer:
        if isinstance(node.right, E.Const) and node.right.value:
            return None
        return E.Equal(node.right, E.const(0, node.dtype))
    if isinstance(node, E.If) and isinstance(node.then, E.If) and node.dtype.is_integer:
        inner = node.then.otherwise
        if isinstance(inner, E.If) and isinstance(inner.condition, E.Equal):
            minus = E.const(-1, node.dtype)
            return node.condition if minus in inner.condition.children else None
    return None


def _patterned(size: int) -> Array:
    """Working memory full of the pattern."""
    room = memory(-(-size // 8) * 8 + 64)
    room.view(np.int64)[:] = PATTERNS[8]
    return room


def _nan(array: Array) -> bool:
    return array.dtype.kind not in "biu" and bool(np.isnan(array).any())
