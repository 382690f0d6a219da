"""Which part of a processor a straight run of statements keeps busy, and for how long.

``acc[8, 32] += a[i] * b[j]``: 16 multiply-adds, 8 loads that go to all lanes, 2 of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log2

from pullback.backends.nests.analysis import Facts, Varying, compute_bytes
from pullback.backends.nests.reuse import Level, Moves
from pullback.cost.facts import ROUNDING, WIDENING
from pullback.ir import expr as E
from pullback.ir.dtype import DType, int64, is_short
from pullback.ir.expr import Expr
from pullback.ir.nest import Array, Load, Native, Peek, Register, Var
from pullback.ir.node import Node, walk
from pullback.ir.target import MOST_PICKED, Target
from pullback.machine.machine import LINE, Machine
from pullback.schedule.contraction import WORD

NAMES: Mapping[type[Expr], str] = {
    E.Exp: "exp",
    E.Log: "log",
    E.Sqrt: "sqrt",
    E.Sin: "sin",
    E.Div: "div",
}
FREE = (E.Const, Var, Peek, E.Axis, E.Size)
LATENCY = 3.0  # times as long as in flow until a function's value is there
WINDOW = 300.0  # instructions that a processor looks ahead
QUOTIENT = 6  # plain operations of an integer's quotient by a constant; of a power of two one


@dataclass(slots=True)
class Ports:
    """Nanoseconds that each part is busy in one turn; `chain`: what waits for the turn before."""

    vector: float = 0.0
    load: float = 0.0
    store: float = 0.0
    shuffle: float = 0.0
    scalar: float = 0.0
    chains: dict[object, float] = field(default_factory=dict)
    across: float = 0.0
    depth: float = 0.0
    window: float = 0.0

    @property
    def busy(self) -> float:
        """Of the part that is busiest."""
        chain = max(self.chains.values(), default=0.0)
        chain = max(chain, self.depth * self.window)
        return max(self.vector, self.load, self.store, self.shuffle, self.scalar, chain)


@dataclass(slots=True)
class Lane:
    """A loop in lanes: what differs between them, how many they are, groups side by side.

    `stores`: instructions that store a group.
    """

    varying: Varying
    count: int
    groups: int
    stores: float = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement stands: the loops around, those written out, lanes."""

    path: tuple[Level, ...]
    written: tuple[tuple[Var, int], ...] = ()
    lane: Lane | None = None


@dataclass(slots=True)
class Reader:
    """Prices expressions in one place: in lanes or without, in loops that are written out."""

    target: Target
    machine: Machine
    facts: Facts
    moves: Mapping[Var, Moves]
    depends: dict[Register, frozenset[Var]] = field(default_factory=dict)
    known: dict[Node, frozenset[Var]] = field(default_factory=dict)
    late: dict[Register, float] = field(default_factory=dict)
    waits: dict[Node, float] = field(default_factory=dict)

    def wait(self, root: Expr) -> float:
        """Nanoseconds from loads to a value, one operation after the other."""
        for node in walk(root, skip=self.waits):
            below = max((self.waits[c] for c in node.children), default=0.0)
            if isinstance(node, Peek):
                below = self.late.get(node.register, 0.0)
            elif isinstance(node, Expr) and node.children and not isinstance(node, Load):
                below += self.latency(node)
            self.waits[node] = below
        return self.waits[root]

    def latency(self, e: Expr) -> float:
        """Nanoseconds that the next one waits for an operation."""
        if not e.dtype.is_float:
            return 0.0
        return max(self.unit("chain_multiply_add"), LATENCY * self.operation(e))

    def unit(self, name: str) -> float:
        return self.machine.tables["unit"][name]

    def variables(self, e: Node) -> frozenset[Var]:
        """The variables that a value depends on, those of registers included."""
        done = self.known.get(e)
        if done is not None:
            return done
        for node in walk(e, skip=self.known):
            own = frozenset().union(*(self.known[c] for c in node.children))
            if isinstance(node, Var):
                own |= {node}
            elif isinstance(node, Peek):
                own |= self.depends.get(node.register, frozenset())
            self.known[node] = own
        return self.known[e]

    def times(self, e: Expr, place: Place) -> float:
        """How often a value is made in loops that are written out."""
        times = 1.0
        own, lane = self.variables(e), place.lane
        for var, count in place.written:
            if var in own:
                times *= count
        return times * lane.groups if lane is not None and lane.varying.of(e) else times

    def shared(self, e: Expr, place: Place) -> float:
        """In how many turns of loops an integer is the same: it is made in front of them."""
        if not isinstance(e, E.Binary) or e.left.dtype is not int64 or self.facts.reads(e):
            return 1.0
        own = {level for v in self.variables(e) for level, *_ in self.moves.get(v, ((), False))[0]}
        turns = 1.0
        for level in reversed(place.path):
            if level in own and not level.written:
                break
            turns *= 1.0 if level.written else level.turns
        return turns

    def parts(self, e: Expr, lane: Lane) -> int:
        """Vector registers that a value of all lanes takes."""
        size = e.dtype.itemsize if e.dtype.is_float else min(4, e.dtype.itemsize)
        if e.dtype.is_float:
            size = compute_bytes(e.dtype)
        return max(1, ceil(lane.count * size / self.target.vector))

    def scaled(self, name: str) -> float:
        """A unit for vectors of the target, which may be shorter than the machine's."""
        return self.unit(name) * max(1.0, self.target.vector / self.machine.vector)

    def value(
        self,
        ports: Ports,
        root: Expr,
        place: Place,
        seen: set[Node],
    ) -> None:
        """Add what it takes to make `root`; `seen` is made already."""
        stack: list[Node] = [root]
        fused: set[Node] = set()
        while stack:
            e = stack.pop()
            if e in seen or not isinstance(e, Expr):
                continue
            seen.add(e)
            if isinstance(e, Load):
                self.load(ports, e, place, seen)
                continue
            stack.extend(e.children)
            if isinstance(e, FREE) or e in fused:
                continue
            if isinstance(e, E.Add) and e.dtype.is_float and self.target.fused:
                product = next((k for k in (e.left, e.right) if isinstance(k, E.Mul)), None)
                if product is not None:
                    fused.add(product)
            count, lane = self.times(e, place), place.lane
            if lane is not None and lane.varying.of(e):
                ports.vector += count * self.parts(e, lane) * self.operation(e)
            else:
                ports.scalar += count * self.alone(e) / self.shared(e, place)

    def operation(self, e: Expr) -> float:
        """Nanoseconds of one vector instruction, or of a function."""
        table = self.machine.tables["float64" if e.dtype.itemsize == 8 else "float32"]
        name = e.name if isinstance(e, Native) else NAMES.get(type(e), "")
        known = table.get(name) or 2 * self.machine.tables["float32"].get(name, 0.0)
        if known and e.dtype.is_float:
            return known * max(1.0, self.target.vector / self.machine.vector)
        if isinstance(e, E.FloorDiv | E.Mod):
            return _quotient(e) * self.scaled("plain")
        if isinstance(e, E.Cast) and e.to == e.value.dtype:
            return 0.0
        return self.scaled("multiply_add" if isinstance(e, E.Mul | E.Add) else "plain")

    def alone(self, e: Expr) -> float:
        """Nanoseconds of an operation without lanes; functions are those of vectors."""
        name = e.name if isinstance(e, Native) else NAMES.get(type(e), "")
        if e.dtype.is_float and name in self.machine.tables["float32"]:
            return self.operation(e)
        return self.unit("scalar") * (_quotient(e) if isinstance(e, E.FloorDiv | E.Mod) else 1)

    def stride(self, offset: Expr, lane: Lane) -> int | None:
        """Elements between lanes; None where it is not one number."""
        if not lane.varying.of(offset):
            return 0
        form = self.facts.form(offset)
        if any(lane.varying.of(a) for a in form.without(lane.varying.var).atoms):
            return None
        return form.of(lane.varying.var)

    def load(self, ports: Ports, e: Load, place: Place, seen: set[Node]) -> None:
        """A read, and what its address is made of beyond sums of loop variables."""
        count, lane = self.times(e, place), place.lane
        self.address(ports, e.offset, place, seen)
        if lane is None or not lane.varying.of(e):
            ports.load += count * self.unit("load")
            return
        stride, parts = self.stride(e.offset, lane), self.parts(e, lane)
        if stride is not None and abs(stride) <= MOST_PICKED:
            across = 1 + self.crossing(e.array, e.offset) if stride else 1.0
            ports.load += count * parts * max(1, abs(stride)) * across * self.scaled("load")
            moves = max(0, abs(stride) - 1) + (stride < 0)
            half = is_short(e.dtype)
            ports.vector += count * parts * self.converted(e.dtype, WIDENING)
            ports.shuffle += count * parts * (moves + half) * self.scaled("shuffle")
        elif stride is None and self.repeats(e.offset, lane):
            ports.load += count * parts * 2 * self.scaled("load")
            ports.shuffle += count * parts * 2 * self.scaled("shuffle")
        else:
            ports.load += count * lane.count * self.unit("gather")

    def converted(self, kind: DType, operations: int) -> float:
        """Nanoseconds of what floats of 8 bits take beside a shuffle."""
        return operations * self.scaled("plain") if is_short(kind) and kind.bits == 8 else 0.0

    def word(self, ports: Ports, side: Load | E.Const, place: Place, lane: Lane) -> None:
        """A word of a sum of products, for each lane or one for all."""
        if isinstance(side, E.Const):
            return
        self.address(ports, side.offset, place, set())
        count = self.times(side, place)
        if not lane.varying.of(side):
            ports.load += count * self.unit("load")
            return
        parts = max(1, ceil(lane.count * WORD / self.target.vector))
        ports.load += count * parts * self.scaled("load")

    def repeats(self, offset: Expr, lane: Lane) -> bool:
        """Whether lanes differ by quotients and remainders alone, which are whole short vectors."""
        atoms = [a for a in self.facts.form(offset).atoms if lane.varying.of(a)]
        plain = (E.FloorDiv, E.Mod)
        return all(isinstance(a, plain) and not self.facts.loads(a) for a in atoms)

    def address(
        self,
        ports: Ports,
        offset: Expr,
        place: Place,
        seen: set[Node],
    ) -> None:
        for atom in self.facts.form(offset).atoms:
            if not isinstance(atom, Var):
                self.value(ports, atom, place, seen)

    def store(
        self,
        ports: Ports,
        array: Array,
        offset: Expr,
        place: Place,
        seen: set[Node],
    ) -> None:
        """A write of a value that is there."""
        self.address(ports, offset, place, seen)
        count, lane = 1.0, place.lane
        own = self.variables(offset)
        for var, turns in place.written:
            count *= turns if var in own else 1
        if lane is None or not lane.varying.of(offset):
            ports.store += count * self.unit("store")
            return
        stride = self.stride(offset, lane)
        count *= lane.groups
        if stride in (1, -1):
            parts = max(1, ceil(lane.count * array.dtype.itemsize / self.target.vector))
            across = 1 + self.crossing(array, offset) / 2
            ports.store += count * parts * lane.stores * across * self.scaled("store")
            half = is_short(array.dtype)
            ports.vector += count * parts * self.converted(array.dtype, ROUNDING)
            ports.shuffle += count * (half + (stride == -1)) * self.scaled("shuffle")
        elif self.target.masks and stride is not None and 1 < stride <= MOST_PICKED:
            parts = stride * max(1, ceil(lane.count * array.dtype.itemsize / self.target.vector))
            ports.store += count * parts * self.scaled("store")
            ports.shuffle += count * parts * self.scaled("shuffle")
        else:
            ports.store += count * lane.count * self.unit("scatter")

    def folded(self, lane: Lane, sums: float) -> float:
        """Nanoseconds to add up the lanes of so many sums alike, of the groups of a reduction.

        Two vectors become one by two shuffles and an addition, as long as there are two.
        """
        shuffle, plain = self.unit("shuffle"), self.unit("plain")
        blocks = ceil(sums / lane.count)
        joined = sums / blocks
        halved = log2(max(1.0, lane.count / joined))
        each = (joined - 1) * (2 * shuffle + plain) + halved * (shuffle + plain)
        return blocks * each + sums * (lane.groups - 1) * plain

    def crossing(self, array: Array, offset: Expr) -> float:
        """Of the vectors along an offset, the share that lies across two cache lines."""
        size = array.dtype.itemsize
        form = self.facts.form(offset)
        steps = [form.const, *(c for a, c in form.terms if isinstance(a, Var) and a.hi > a.lo)]
        whole = all(s * size % LINE in (0, size * (s == 1)) for s in steps)
        return 0.0 if whole else min(1.0, self.target.vector / LINE)


def stored_in(target: Target, last: int | None) -> int:
    """Instructions that store so many last lanes: powers of two of them, one under a mask; None:
    it is not known when the code is made how many they are.
    """
    return 1 if target.masks or not last else last.bit_count()


def _quotient(e: E.FloorDiv | E.Mod) -> int:
    """Plain operations: a shift or a mask by a power of two."""
    by = e.right
    return 1 if isinstance(by, E.Const) and int(by.value).bit_count() == 1 else QUOTIENT


def peeked(root: Expr) -> set[Register]:
    """The registers that a value is made of."""
    return {n.register for n in walk(root) if isinstance(n, Peek)}
