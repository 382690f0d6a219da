"""The grouping problem: nodes, what each needs, who reads what, who must run before whom.

Values are numbered: definitions by rank (sources first, and every reader of a variable before
the node that overwrites it), then variables. A node's *closure* is itself and the stages that are
computed again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pullback.config import Ints
from pullback.cost.facts import elements, is_identity, points, reduced_axes
from pullback.errors import InvalidIR
from pullback.fuse.inline import Inlined, Role
from pullback.fuse.products import ProductAxes, contraction
from pullback.ir.graph import Definition, Form, Map, Value, Variable

Bind = tuple[int | None, ...]
Reads = tuple[tuple[int, Bind], ...]
Closures = dict[Definition, tuple[Definition, ...]]


@dataclass(slots=True)
class Problem:
    """`values[i]` is a definition for ``i < len(reads)``, else a variable."""

    scene: Inlined
    values: list[Value]
    reads: list[Reads]
    nodes: Ints
    closure: dict[int, Ints]
    target: dict[int, int]
    sizes: list[int]
    points: list[int]
    is_node: list[bool]
    flops: list[int]  # weighted, a point, with the combination of a reduction
    products: list[ProductAxes | None]
    reduced: list[Ints]
    readers: dict[int, Ints] = field(default_factory=dict)
    before: dict[int, Ints] = field(default_factory=dict)
    footprint: int = 0

    def definition(self, number: int) -> Definition:
        value = self.values[number]
        assert isinstance(value, Definition)
        return value

    def form(self, number: int) -> Form:
        return self.scene.forms[self.definition(number)]

    def is_map(self, number: int) -> bool:
        return isinstance(self.form(number), Map)

    def name(self, number: int) -> str:
        return self.values[number].name


def closures(scene: Inlined) -> Closures:
    """Each node with the stages it needs, in definition order."""
    rank = {d: n for n, d in enumerate(scene.order)}
    closure: Closures = {}
    for node in scene.order:
        if scene.roles[node] is not Role.NODE:
            continue
        needed = {node}
        stack = [node]
        while stack:
            for source in scene.needs(stack.pop()):
                if source not in needed and scene.roles[source] is Role.STAGE:
                    needed.add(source)
                    stack.append(source)
        closure[node] = tuple(sorted(needed, key=rank.__getitem__))
    return closure


class Order:
    """Who must run before whom among nodes, as bit sets; refuses what would close a cycle."""

    def __init__(self, scene: Inlined, closure: Closures) -> None:
        self.number = {node: n for n, node in enumerate(closure)}
        self.nodes = list(closure)
        self.above = [0] * len(self.nodes)
        self.read_by_nodes: set[int] = set()
        self.readers: dict[Value, dict[Definition, None]] = {}
        for node, stages in closure.items():
            self._relate(scene, node, stages)

    def append(self, scene: Inlined, node: Definition) -> None:
        """One more node, without stages of its own."""
        self.number[node] = len(self.nodes)
        self.nodes.append(node)
        self.above.append(0)
        self._relate(scene, node, (node,))

    def _relate(self, scene: Inlined, node: Definition, stages: tuple[Definition, ...]) -> None:
        mine = 0
        for source in scene.sources(*stages):
            above = self.number.get(source) if isinstance(source, Definition) else None
            if above is not None:
                mine |= self.above[above] | 1 << above
                self.read_by_nodes.add(above)
            if above is not None or isinstance(source, Variable):
                self.readers.setdefault(source, {})[node] = None
        self.above[self.number[node]] = mine

    def overwrites(self, node: Definition, variable: Variable) -> bool:
        """Let `node` run after every other reader of `variable`; False where it cannot."""
        number = self.number[node]
        others = [self.number[r] for r in self.readers.get(variable, {}) if r is not node]
        if any(self.above[r] >> number & 1 for r in others):
            return False
        more = 0
        for reader in others:
            more |= self.above[reader] | 1 << reader
        self.above[number] |= more
        if number in self.read_by_nodes:
            for n, above in enumerate(self.above):
                if above >> number & 1:
                    self.above[n] |= more
        return True


def reads_itself_safely(
    scene: Inlined, closure: tuple[Definition, ...], node: Definition, variable: Variable
) -> bool:
    """Whether a node may overwrite what its own stages read: same element, or reduced before."""
    if not isinstance(scene.forms[node], Map):
        return variable not in scene.sources(*closure)
    for stage in closure:
        for access in scene.facts[stage].accesses:
            if access.source is not variable:
                continue
            same = is_identity(access.bind, node.shape)
            if stage is node and not same:
                return False
            if isinstance(scene.forms[stage], Map) and not same:
                return False
    return True


def build(scene: Inlined, target: dict[Definition, Variable]) -> Problem:
    """Number everything. `target` holds the nodes that store into a variable in place."""
    closure = closures(scene)
    ranked = _rank(scene, closure, target)
    inputs = [s for s in scene.sources(*ranked) if isinstance(s, Variable)]
    inputs += target.values()
    values: list[Value] = [*ranked, *dict.fromkeys(inputs)]
    number = {v: n for n, v in enumerate(values)}
    reads: list[Reads] = [
        tuple((number[a.source], a.bind) for a in scene.facts[d].accesses) for d in ranked
    ]
    numbered = {
        number[node]: tuple(sorted(number[s] for s in stages)) for node, stages in closure.items()
    }
    problem = Problem(
        scene,
        values,
        reads,
        tuple(sorted(numbered)),
        numbered,
        {number[d]: number[v] for d, v in target.items()},
        [elements(v.shape) for v in values],
        [points(d) for d in ranked],
        [scene.roles[d] is Role.NODE for d in ranked],
        [scene.facts[d].flops + (not isinstance(scene.forms[d], Map)) for d in ranked],
        [contraction(d, scene.forms[d], scene.facts[d], scene.machine) for d in ranked],
        [reduced_axes(d, scene.forms[d]) for d in ranked],
    )
    buffers = [n for n, v in enumerate(values) if n >= len(ranked) or problem.is_node[n]]
    buffers = [n for n in buffers if n not in problem.target]
    problem.footprint = sum(problem.sizes[n] * values[n].dtype.itemsize for n in buffers)
    _relate(problem)
    return problem


def _rank(
    scene: Inlined,
    closure: Closures,
    target: dict[Definition, Variable],
) -> list[Definition]:
    """Definition order, but readers of a variable before the node that overwrites it."""
    number = {d: n for n, d in enumerate(scene.order)}
    writer = {v: d for d, v in target.items()}
    needs = [{number[s] for s in scene.needs(d)} for d in scene.order]
    for node, stages in closure.items():
        for source in scene.sources(*stages):
            late = writer.get(source) if isinstance(source, Variable) else None
            if late is not None and late is not node:
                needs[number[late]].add(number[node])
    return [scene.order[n] for n in in_turn(needs, min)]


def in_turn(
    needs: Sequence[Collection[int]], choose: Callable[[Sequence[int]], int]
) -> Iterator[int]:
    """Every number after those it needs; of those ready, the one that `choose` says.

    Raises: InvalidIR where some need each other.
    """
    waits = list(map(len, needs))
    after: list[list[int]] = [[] for _ in needs]
    for n, before in enumerate(needs):
        for above in before:
            after[above].append(n)
    ready = [n for n, count in enumerate(waits) if count == 0]
    while ready:
        n = choose(ready)
        ready.remove(n)
        yield n
        for m in after[n]:
            waits[m] -= 1
            if waits[m] == 0:
                ready.append(m)
    if any(waits):
        raise InvalidIR("some need each other: none can be first")


def _relate(problem: Problem) -> None:
    """Readers of stored values, and what must run before each node."""
    readers: dict[int, dict[int, None]] = {}
    before: dict[int, dict[int, None]] = {n: {} for n in problem.nodes}
    for node in problem.nodes:
        for stage in problem.closure[node]:
            for source, _ in problem.reads[stage]:
                made = source < len(problem.reads)
                if made and not problem.is_node[source]:
                    continue
                readers.setdefault(source, {})[node] = None
                if made:
                    before[node][source] = None
    for node, variable in problem.target.items():
        before[node].update((r, None) for r in readers.get(variable, {}) if r != node)
    problem.readers = {v: tuple(sorted(r)) for v, r in readers.items()}
    problem.before = {n: tuple(sorted(b)) for n, b in before.items()}
