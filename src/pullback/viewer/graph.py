"""A traced program as nodes: what was given, definitions, adjoints, and what is made of adjoints.

    y = sum[k] x * w;  dw = dy * x;  w' = w - dw   =>   columns 0, 1 and 2

An adjoint is named after its primal and has the very origin of it, or of a reader if that has none;
so has what belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pullback.errors import Origin
from pullback.ir.graph import Definition, Value, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Branch, Compute, Feed, Item, Launch, Loop

COLUMNS = ("definitions", "adjoints", "made of adjoints", "kernels")
PRIMAL, ADJOINT, AFTER = range(3)

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A block of a program: which loops and branches it is in, by number and for people.

    `part`: of what is computed there, one after the other, which; 0 where that does not matter.
    """

    path: Path = ()
    label: str = ""
    part: int = 0

    def inside(self, number: int, label: str) -> Place:
        """A block in this one."""
        joined = f"{self.label}, {label}" if self.label else label
        return Place((*self.path, number), joined)


@dataclass(eq=False, slots=True)
class Node:
    """A value in the graph, numbered in the order of the program.

    `below`: the numbers of what it reads. `assigns`: the variables that it is given to.
    """

    value: Value
    kind: str
    place: Place
    column: int
    below: tuple[int, ...] = ()
    assigns: list[Variable] = field(default_factory=list)
    kernels: tuple[int, ...] = ()


def placed(block: Block, place: Place | None = None) -> Iterator[tuple[Place, Item]]:
    """Every item with the block that it is in, in program order."""
    place = place or Place()
    number = 0
    for item in block:
        yield place, item
        if isinstance(item, Loop):
            yield from placed(item.body, place.inside(number, f"loop of {item.count}"))
        elif isinstance(item, Branch):
            condition = item.predicate.name
            yield from placed(item.then, place.inside(number, f"if {condition}"))
            yield from placed(item.otherwise, place.inside(number + 1, f"if not {condition}"))
        number += 2 * isinstance(item, Loop | Branch)


class Graph:
    """The nodes of a traced program."""

    def __init__(self, program: Block) -> None:
        self.nodes: list[Node] = []
        self.number: dict[Value, int] = {}
        self._fed = {
            t for _, item in placed(program) if isinstance(item, Feed) for t in item.targets
        }
        self._assigned: dict[Variable, int] = {}
        self._adjoints: set[tuple[str, int]] = set()
        self._origins: set[int] = set()
        for part, (place, item) in enumerate(placed(program)):
            if isinstance(item, Compute):
                self._compute(replace(place, part=part), item)
        self._settle()

    def _compute(self, place: Place, item: Compute) -> None:
        for definition in item.graph.definitions:
            if definition not in self.number:
                self._definition(place, definition)
        for target, value in item.graph.assigns:
            number = self._of(place, value)
            self._assigned[target] = number
            if target is not value:
                self.nodes[number].assigns.append(target)

    def _definition(self, place: Place, definition: Definition) -> None:
        below = tuple([self._of(place, source) for source in definition.sources])
        given = [s for s in definition.sources if isinstance(s, Variable)]
        for source in given:
            self._name(source.name, source.origin)
        column = self._column(definition, below)
        kind = type(definition.form).__name__.lower()
        self._add(Node(definition, kind, place, column, below))
        self._name(definition.name, definition.origin)
        for source in given:
            self._name(source.name, source.origin or definition.origin)
        if column == PRIMAL:
            self._origins.add(id(definition.origin))

    def _column(self, definition: Definition, below: Sequence[int]) -> int:
        origin = id(definition.origin)
        if (definition.name, origin) in self._adjoints:
            return ADJOINT
        if all(self.nodes[n].column == PRIMAL for n in below):
            return PRIMAL
        return ADJOINT if origin in self._origins else AFTER

    def _name(self, name: str, origin: Origin | None) -> None:
        """From here on, what has that name after a d, and this origin, is the adjoint."""
        self._adjoints.add((f"d{name}", id(origin)))

    def _of(self, place: Place, value: Value) -> int:
        """The number of a value; a variable becomes a node where it is first read."""
        if value not in self.number:
            kind = "feed" if value in self._fed else "given"
            made = self._assigned.get(value) if isinstance(value, Variable) else None
            below = () if made is None else (made,)
            self._add(Node(value, kind if made is None else "carried", place, PRIMAL, below))
        return self.number[value]

    def _add(self, node: Node) -> None:
        self.number[node.value] = len(self.nodes)
        self.nodes.append(node)

    def _settle(self) -> None:
        """Variables stand in the first column that reads them."""
        first: dict[int, int] = {}
        for node in self.nodes:
            for n in node.below:
                first[n] = min(first.get(n, node.column), node.column)
        for n, node in enumerate(self.nodes):
            if isinstance(node.value, Variable):
                node.column = first.get(n, PRIMAL)


def link(nodes: Sequence[Node], fused: Block) -> list[tuple[Place, Kernel, list[int]]]:
    """The launches of a program as run, each with the numbers of the definitions it computes.

    A stage keeps name and origin of its definition; of several with both, those in the same block
    count, in their order. What is a stage of no kernel is computed by those of its readers.
    """
    known: dict[tuple[Path, str, int], list[int]] = {}
    for n, node in enumerate(nodes):
        if isinstance(node.value, Definition):
            known.setdefault(_key(node.place, node.value), []).append(n)
    launches = [(p, i.kernel) for p, i in placed(fused) if isinstance(i, Launch)]
    seen: dict[tuple[Path, str, int], int] = {}
    launched: list[tuple[Place, Kernel, list[int]]] = []
    computed: dict[int, list[int]] = {}
    for number, (place, kernel) in enumerate(launches):
        own: dict[int, None] = {}
        for stage in kernel.every:
            key = _key(place, stage.target)
            same = known.get(key, ())
            turn = seen.get(key, 0)
            seen[key] = turn + 1
            if same:
                own[same[min(turn, len(same) - 1)]] = None
        for n in own:
            computed.setdefault(n, []).append(number)
        launched.append((place, kernel, list(own)))
    _inherit(nodes, computed)
    return launched


def _key(place: Place, definition: Definition) -> tuple[Path, str, int]:
    return place.path, definition.name, id(definition.origin)


def _inherit(nodes: Sequence[Node], computed: Mapping[int, Iterable[int]]) -> None:
    """What is no stage anywhere is computed where it is read."""
    of: list[dict[int, None]] = [{} for _ in nodes]
    for n in range(len(nodes) - 1, -1, -1):
        of[n].update(dict.fromkeys(computed.get(n, ())))
        nodes[n].kernels = tuple(sorted(of[n]))
        for below in nodes[n].below:
            inner = isinstance(nodes[below].value, Definition) and below not in computed
            if inner and nodes[n].kind != "carried":
                of[below].update(of[n])


def lines(nodes: Sequence[Node]) -> list[object]:
    """The line of the user's that made each node; None where none did."""
    origins = [node.value.origin for node in nodes]
    place = {o: o.place for o in origins if o is not None}
    return [None if o is None else place[o] for o in origins]


def kernels(nodes: Sequence[Node]) -> list[object]:
    """The launches that compute each node; of what is given, those of its first reader beside it.

    None where there are none.
    """
    groups: list[object] = [node.kernels or None for node in nodes]
    for n, node in reversed(list(enumerate(nodes))):
        for below in node.below:
            other = nodes[below]
            same = (other.column, other.place) == (node.column, node.place)
            if same and isinstance(other.value, Variable):
                groups[below] = groups[n]
    return groups
