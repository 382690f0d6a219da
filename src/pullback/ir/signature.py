"""The signature of a program: a hash of all that decides its code, equal in every process.

``x = a + b; loop 9 { a = x }  ->  "def 64 map ..", "assign ..", "loop ..", hashed``

Variables are numbered by first use, definitions and expressions as they appear. Callbacks, counts
of loops and names do not count, but where a data index may be out of range names and user lines
do: they are in the message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.config import Pair, entity
from pullback.errors import InvalidIR, Origin
from pullback.ir import program as P
from pullback.ir.expr import Axis, Cast, Const, Dim, Extent, Size, Take
from pullback.ir.graph import Accumulate, Definition, Form, Graph, Reduce, Scan, Value, Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.node import Node


def digest(*parts: str) -> str:
    """A hash of several texts, 64 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=32)
    for part in parts:
        data = part.encode()
        state.update(f"{len(data)}:".encode())
        state.update(data)
    return state.hexdigest()


@entity
class Signature:
    """`digest`: 64 hexadecimal digits. `variables`: the program's, by number, state first."""

    digest: str
    variables: tuple[Variable, ...]


def signature(program: P.Program, *, names: bool = True) -> Signature:
    """The signature of a traced program, with `names` in messages or of its structure alone.

    Raises: InvalidIR for one that is already fused.
    """
    writer = _Writer()
    state = writer.variables(program.state)
    writer.lines.append(f"state {state}")
    writer.block(program.body)
    if names and writer.checks:
        writer.names()
    return Signature(digest("\n".join(writer.lines)), tuple(writer.met))


def graph_signature(graph: Graph, *, names: bool = True) -> str:
    """The digest of a program that computes `graph` and nothing else."""
    return signature(P.Program((P.Compute(graph),)), names=names).digest


def kernel_digest(kernel: Kernel) -> str:
    """The digest of a kernel's structure: equal in every process, and for kernels that differ only
    in which values they name. Such take equal arguments in equal order.
    """
    writer = _Writer()
    writer.variables(kernel.arguments)
    for stage in kernel.stages:
        writer.stage(stage)
    writer.lines.append(f"over {_extents(kernel.outer)} {kernel.tiling}")
    for stage in kernel.finish:
        writer.stage(stage)
    return digest("\n".join(writer.lines))


def checks(kernel: Kernel) -> tuple[object, ...]:
    """What the messages of a kernel say about indices that are data: structure does not."""
    said: list[object] = []
    for stage in kernel.stages + kernel.finish:
        data = [t for t in stage_reads(stage) if t.is_data]
        said += [(repr(t.source), t.source.origin, t.origin) for t in data]
        if isinstance(stage.form, Accumulate):
            said.append((repr(stage.target), stage.target.origin))
    return tuple(said)


@dataclass(slots=True)
class _Writer:
    """Numbers everything in order of appearance; a line for each thing numbered.

    `data` holds the expressions that depend on a read, `checks` says whether one is an index.
    """

    lines: list[str] = field(default_factory=list)
    place: dict[Any, int] = field(default_factory=dict)
    met: list[Variable] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    data: set[Node] = field(default_factory=set)
    checked: list[Take] = field(default_factory=list)
    checks: bool = False

    def block(self, block: P.Block) -> None:
        self.lines.append("{")
        for item in block:
            self.item(item)
        self.lines.append("}")

    def item(self, item: P.Item) -> None:
        if isinstance(item, P.Compute):
            self.graph(item.graph)
        elif isinstance(item, P.Loop):
            counter = "" if item.counter is None else self.variable(item.counter)
            condition = "" if item.condition is None else self.variable(item.condition)
            self.lines.append(f"loop {counter} {condition}")
            self.block(item.body)
        elif isinstance(item, P.Branch):
            self.lines.append(f"branch {self.variable(item.predicate)}")
            self.block(item.then)
            self.block(item.otherwise)
        elif isinstance(item, P.Feed):
            self.lines.append(f"feed {self.variables(item.targets)}")
        elif isinstance(item, P.Receive):
            self.lines.append(f"receive {self.variables(item.sources)}")
        elif isinstance(item, P.HostCall):
            places = self.variables(item.sources), self.variables(item.targets)
            self.lines.append(f"host {item.name} {item.library} {places}")
        else:
            raise InvalidIR(f"{type(item).__name__} in a traced program")

    def graph(self, graph: Graph) -> None:
        for definition in graph.definitions:
            if definition not in self.place:
                self.definition(definition)
        for target, value in graph.assigns:
            self.lines.append(f"assign {self.variable(target)} {self.value(value)}")

    def definition(self, d: Definition) -> None:
        roots = self.expressions(d.roots)
        if isinstance(d.form, Accumulate) and not self.data.isdisjoint(d.form.at):
            self.checks = True
        self.place[d] = len(self.place)
        self.definitions.append(d)
        head = f"def {_extents(d.shape)} {_form(d.form)}"
        self.lines.append(f"{head} {d.stop} {d.keep.value} {roots}")

    def stage(self, stage: Stage) -> None:
        roots = self.expressions(stage.roots)
        store = "" if stage.store is None else self.place[stage.store]
        self.place[stage.target] = len(self.place)
        head = f"stage {_extents(stage.shape)} {_form(stage.form)}"
        self.lines.append(f"{head} {stage.outer} {store} {roots}")

    def variables(self, variables: Iterable[Variable]) -> list[int]:
        return [self.variable(v) for v in variables]

    def variable(self, variable: Variable) -> int:
        number = self.place.get(variable)
        if number is None:
            number = self.place[variable] = len(self.place)
            self.met.append(variable)
            self.lines.append(f"var {variable.dtype.name} {_extents(variable.shape)}")
        return number

    def value(self, value: Value) -> int:
        if isinstance(value, Variable):
            return self.variable(value)
        if value not in self.place:
            raise InvalidIR(f"{value} is read before it is defined")
        return self.place[value]

    def expressions(self, roots: Sequence[Node]) -> list[int]:
        """Number what is new, children first."""
        place = self.place
        stack = list(roots)
        while stack:
            node = stack[-1]
            if node in place:
                stack.pop()
                continue
            new = [kid for kid in node.children if kid not in place]
            if new:
                stack.extend(new)
                continue
            stack.pop()
            self.node(node)
        return [place[root] for root in roots]

    def node(self, node: Node) -> None:
        kids = node.children
        if isinstance(node, Take):
            facts = str(self.value(node.source))
            if not self.data.isdisjoint(kids):
                self.checks = True
                self.checked.append(node)
            self.data.add(node)
        else:
            facts = _facts(node)
            if not self.data.isdisjoint(kids):
                self.data.add(node)
        numbers = [self.place[kid] for kid in kids]
        self.lines.append(f"{type(node).__name__} {facts} {numbers}")
        self.place[node] = len(self.place)

    def names(self) -> None:
        """What messages about data indices say."""
        places: dict[Pair, str] = {}
        values: list[Value] = [*self.met, *self.definitions]
        for value in values:
            self.lines.append(f"name {value.name!r} {_place(value.origin, places)!r}")
        for take in self.checked:
            self.lines.append("" if take.origin is None else take.origin.excerpt())


def _facts(node: Node) -> str:
    """The fields of a node that are not nodes."""
    if isinstance(node, Const):
        value = node.value.hex() if isinstance(node.value, float) else repr(node.value)
        return f"{value} {node.kind.name}"
    if isinstance(node, Axis):
        return f"{node.number} {_extents((node.extent,))}"
    if isinstance(node, Size):
        return _extents((node.dim,))
    if isinstance(node, Cast):
        return node.to.name
    return ""


def _place(origin: Origin | None, known: dict[Pair, str]) -> str:
    """`file:line`, looked up once for each instruction."""
    if origin is None:
        return ""
    key = id(origin.code), origin.offset
    if key not in known:
        known[key] = origin.place
    return known[key]


def _extents(shape: Iterable[Extent]) -> str:
    return ",".join(f"{e.name!r}:{e.lo}:{e.hi}" if isinstance(e, Dim) else str(e) for e in shape)


def _form(form: Form) -> str:
    if isinstance(form, Reduce):
        return f"reduce {form.combiner.name} {_extents(form.over)}"
    if isinstance(form, Scan):
        return f"scan {form.combiner.name} {form.axis}"
    if isinstance(form, Accumulate):
        return f"accumulate {form.combiner.name} {_extents(form.domain)}"
    return "map"
