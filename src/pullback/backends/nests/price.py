"""The price of a launch, read from its loop nest: what really runs, in nanoseconds.

Each loop without another inside is a *region*: in each turn the busiest part of the processor
counts, or the chain of sums that wait for one another. What a memory takes beside that is known
from `reuse`; both overlap but for what is lost where they are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, floor, prod

from pullback.backends.nests.analysis import (
    PACKED,
    Facts,
    LanePlan,
    Varying,
    in_pieces,
    is_strip,
    plan_lanes,
    tiled,
)
from pullback.backends.nests.ports import WINDOW, Lane, Place, Ports, Reader, peeked, stored_in
from pullback.backends.nests.ranges import lowered
from pullback.backends.nests.regions import Region, Spent, of_data
from pullback.backends.nests.reuse import (
    APART,
    Access,
    Level,
    Miss,
    Moves,
    cycled,
    gradual,
    spanned,
    stepped,
    translated,
)
from pullback.backends.nests.samples import ROUGH, SAMPLES, Samples
from pullback.backends.nests.words import dot_of
from pullback.cost.price import Price, together
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.kernel import Kernel
from pullback.ir.nest import (
    Array,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Peek,
    Prefetch,
    Register,
    Routine,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import Node, walk
from pullback.ir.statements import statements
from pullback.ir.target import Target
from pullback.lower.whole import whole
from pullback.machine.machine import LINE, Memory
from pullback.schedule.schedule import Schedule

# Exponent of `together` for instructions and what goes along the second-level cache: the processor
# has it by the time. A product of 1024^3 whose panels do not stay in the first, ms: multiply-adds
# 21.1, the second-level cache 19.8; measured 25.7 to 28.8, priced 40.0 by OVERLAP, 29.8 so. Read
# in place, 4 KB from row to row, it took 36 to 48.
NEAR = 4.0
# Multiply-adds that wait in front of a load while it is under way: so much of its latency is no
# wait. 11 ns of Zen 3, whose third-level cache takes 15.8: 256 bytes of that every 18 KB, four
# lines, cost 20 ns beside 54 of arithmetic. Of 320 ways of 24 convolutions those of the lowest
# price take 1.08 times as long as the best ones if nothing is hidden, 1.05 by 9 to 13 ns.
QUEUE = 70
KEPT = (0.6, 0.8, 1.0)  # of a cache, what is used again: it ends gradually


@lru_cache(maxsize=64)
def price(kernel: Kernel, schedule: Schedule, target: Target, samples: int = SAMPLES) -> Price:
    """What one launch of `kernel` costs by `schedule`, on the machine of `target`."""
    return nest_price(lowered(kernel, whole(kernel, schedule, target)), target, samples)


def nest_price(routine: Routine, target: Target, samples: int = SAMPLES) -> Price:
    """What one launch of a loop nest costs, its arrays as near as they can stay."""
    walker = Walk(routine, target, samples)
    walked(walker)
    return walker.total()


def walked(walker: Walk) -> None:
    """Visit all statements of its nest, of every task."""
    routine = walker.routine
    body: Sequence[Stmt] = routine.body
    if routine.tasks > 1:
        tasks = For(routine.task, index(0), index(routine.tasks), tuple(body))
        body = (tasks, *routine.finish)
    else:
        walker.at.values[routine.task] = 0.0
        body = (*body, *routine.finish)
    path = (Level(1.0),)
    walker.block(body, walker.region(path, 1.0, 1.0), Place(path))


class Walk:
    """Visits a nest once and notes its regions."""

    def __init__(self, routine: Routine, target: Target, samples: int) -> None:
        self.routine, self.target, self.machine = routine, target, target.profile
        self.facts = Facts()
        self.plan: LanePlan = plan_lanes(routine, target, self.facts)
        self.moves: dict[Var, Moves] = {}
        self.reader = Reader(target, self.machine, self.facts, self.moves)
        self.at = Samples(self.facts, frozenset(routine.sizes))
        self.number = self.at.number
        self.regions: list[Region] = []
        self.samples = samples
        self.sampled = 1
        self.control: dict[For, frozenset[Node]] = {}
        self.differing: dict[For, Varying] = {}

    def region(self, path: tuple[Level, ...], turns: float, executions: float) -> Region:
        made = Region(path, turns, executions)
        self.regions.append(made)
        return made

    # -- statements

    def block(self, body: Iterable[Stmt], region: Region, place: Place) -> None:
        seen: set[Node] = set()
        for statement in body:
            self.statement(statement, region, place, seen)

    def statement(self, s: Stmt, region: Region, place: Place, seen: set[Node]) -> None:
        reader, ports, lane = self.reader, region.ports, place.lane
        match s:
            case For():
                self.loop(s, region, place)
            case Guard():
                if self.number(s.condition) != 0:
                    reader.value(ports, s.condition, place, seen)
                    self.read(s.condition, region, place)
                    self.block(s.body, region, place)
            case Transpose():
                self.transpose(s, region, place)
            case Declare() | Set():
                value = s.init if isinstance(s, Declare) else s.value
                self.read(value, region, place)
                reader.value(ports, value, place, seen)
                self.deep(ports, value, lane, s.register)
                around = frozenset(v for v, _ in place.written)
                reader.depends[s.register] = reader.variables(value) | (
                    around if isinstance(s, Declare) else frozenset()
                )
                if isinstance(s, Declare):
                    region.own.add(s.register)
                elif s.register not in region.own and s.register in peeked(value):
                    ports.chains[s.register] = self.waited(value, s.register)
            case Combine():
                self.combine(s, region, place, seen)
            case Store() | StoreCombine():
                self.read(s.value, region, place)
                reader.value(ports, s.value, place, seen)
                if isinstance(s, StoreCombine):
                    self.value_read(s.array, s.offset, region, place, seen)
                    ports.vector += reader.unit("plain") * (lane.groups if lane else 1)
                self.deep(ports, s.value, lane, None)
                reader.store(ports, s.array, s.offset, place, seen)
                self.access(s.array, s.offset, region, place, True)
            case Prefetch():
                ports.load += reader.unit("load")

    def value_read(
        self, array: Array, offset: Expr, region: Region, place: Place, seen: set[Node]
    ) -> None:
        load = Load(array, offset)
        self.reader.value(region.ports, load, place, seen)
        self.access(array, offset, region, place, False)

    def combine(self, s: Combine, region: Region, place: Place, seen: set[Node]) -> None:
        """A sum: the multiply-add is one instruction; sums of one register wait for one another."""
        reader, ports = self.reader, region.ports
        self.read(s.value, region, place)
        fused = s.combiner.name == "sum" and isinstance(s.value, E.Mul)
        fused = fused and s.value.dtype.is_float and self.target.fused
        for kid in s.value.children if fused else (s.value,):
            assert isinstance(kid, Expr)
            reader.value(ports, kid, place, seen)
        self.added(s, fused, region, place)

    def added(self, s: Combine, fused: bool, region: Region, place: Place) -> None:
        """The instruction that adds to a sum, its factors in registers."""
        reader, ports, lane = self.reader, region.ports, place.lane
        count, apart = 1.0, 1.0
        own = reader.variables(s.value)
        held = frozenset().union(*(reader.variables(i) for i in s.indices))
        for var, turns in place.written:
            count *= turns if var in own or var in held else 1
            apart *= turns if var in held else 1
        unit = "multiply_add" if fused else "plain"
        if lane is None:
            ports.scalar += count * reader.unit("scalar")
        else:
            count, apart = count * lane.groups, apart * lane.groups
            parts = max(1, ceil(lane.count * s.register.dtype.itemsize / self.target.vector))
            ports.vector += count * parts * reader.scaled(unit)
            if not self.per_lane(s, lane):
                ports.across += reader.folded(lane, apart / lane.groups)
        if s.register not in region.own:
            wait = reader.unit("chain_multiply_add" if fused else "chain")
            before = ports.chains.get(s.register, 0.0)
            ports.chains[s.register] = before + count / apart * wait

    def dot(self, s: For, region: Region, place: Place, inner: Place) -> bool:
        """Whether a loop over the elements of a word is one instruction, then priced here."""
        dot, lane = dot_of(s, self.facts, self.target), place.lane
        if dot is None or lane is None or not self.per_lane(dot.combine, lane):
            return False
        self.read(dot.combine.value, region, inner)
        for side in (dot.first, dot.second):
            self.reader.word(region.ports, side, place, lane)
        self.added(dot.combine, True, region, place)
        return True

    def deep(self, ports: Ports, value: Expr, lane: Lane | None, into: Register | None) -> None:
        """How long a value takes alone: what the processor sees ahead hides it, or not."""
        wait = self.reader.wait(value)
        if into is not None:
            self.reader.late[into] = wait
        if lane is not None:
            ports.depth = max(ports.depth, wait)

    def per_lane(self, s: Combine, lane: Lane) -> bool:
        """Whether each lane has a sum of its own."""
        own = s.register in lane.varying.registers
        return own or bool(s.indices and lane.varying.of(s.indices[-1]))

    def waited(self, root: Expr, register: Register) -> float:
        """Nanoseconds from a register's value of the turn before to that of this one."""
        longest: dict[Node, float] = {}
        for node in walk(root):
            below = [longest[c] for c in node.children if longest.get(c, -1.0) >= 0]
            if isinstance(node, Peek) and node.register is register:
                longest[node] = 0.0
            elif below and isinstance(node, Expr):
                wait = max(self.reader.unit("chain"), 2 * self.reader.operation(node))
                longest[node] = max(below) + wait
        return longest.get(root, 0.0)

    def transpose(self, s: Transpose, region: Region, place: Place) -> None:
        """A panel copied: a region of its own."""
        rows, columns = self.number(s.rows), self.number(s.columns)
        size = s.source.dtype.itemsize
        executions = region.executions * region.turns
        made = self.region(place.path, 1.0, executions)
        made.packs = True
        made.ports.shuffle = self.turned(s, rows, columns)
        side = self.side(s)
        sizes = tuple(map(float, (ceil(rows / side), ceil(columns / side))))
        sizes += (min(rows, side), min(columns, side))
        levels = tuple(map(Level, sizes))
        path = (*place.path, *levels)
        pairs = (
            (s.source, s.source_offset, (s.source_row, s.word), False),
            (s.target, s.target_offset, (s.word, s.target_row), True),
        )
        for array, offset, (down, along), write in pairs:
            strides = (down * side * size, along * side * size, down * size, along * size)
            terms = (*self.moved(offset)[0], *zip(levels, strides, sizes, strict=True))
            self.keep(made, Access(array, path, len(path) - 2, terms, size, write, False))

    def side(self, s: Transpose) -> int:
        """Rows of the square blocks of a panel; 1: element by element."""
        word = s.source.dtype.itemsize * s.word
        return 1 if word < PACKED else self.target.lanes(word)

    def turned(self, s: Transpose, rows: float, columns: float) -> float:
        """Nanoseconds of the square blocks of a panel; those at its edges are masked, where it is
        not known how much they have.
        """
        side, word = self.side(s), s.source.dtype.itemsize * s.word
        if side == 1:
            return rows * columns * self.reader.unit("turn")
        whole = floor(rows / side) * floor(columns / side)
        edges = ceil(rows / side) * ceil(columns / side) - whole
        counts = s.rows, s.columns
        if all(isinstance(e, E.Const) for e in counts) and is_strip(int(rows), int(columns), side):
            whole, edges = whole + edges, 0
        each = whole * self.reader.unit("pack") + edges * self.reader.unit("pack_masked")
        return each * side**2 * word / PACKED

    # -- loops

    def loop(self, s: For, region: Region, place: Place) -> None:
        lo, turns = self.number(s.lo), self.turns(s)
        if turns <= 0:
            return
        if s.kind is LoopKind.VECTOR:
            self.lanes(s, lo, turns, region, place)
            return
        if s.kind is LoopKind.UNROLL:
            level = Level(turns, written=True)
            self.bind(s, lo + (turns - 1) * s.step / 2, level, turns)
            written = (*place.written, (s.var, int(turns)))
            apart = replace(place, path=(*place.path, level), written=written)
            if place.lane is None or not self.dot(s, region, place, apart):
                self.block(s.body, region, apart)
            return
        if turns == 1:
            self.bind(s, lo, None, 1.0)
            self.block(s.body, region, place)
            return
        samples, tasks = [(turns // 2, turns)], s.var is self.routine.task
        if s.var in self.controls(s):
            most = SAMPLES if tasks else self.samples
            samples = self.at.alike(s, lo, int(turns), self.sampled, most)
        executions = region.executions * region.turns
        around, self.sampled = self.sampled, self.sampled * (1 if tasks else len(samples))
        for sample, count in samples:
            level = Level(turns, count / turns)
            self.bind(s, lo + sample * s.step, level, turns)
            path = (*place.path, level)
            inner = self.region(path, count, executions)
            inner.ports.scalar += self.reader.unit("turn") / 2
            self.block(s.body, inner, replace(place, path=path, written=()))
        self.sampled = around

    def turns(self, s: For) -> float:
        """Of one execution. Between bounds that are data, the loops that these depend on deal out
        the range of the variable once: rows of a sparse matrix.
        """
        span = self.facts.form(s.hi).minus(self.facts.form(s.lo))
        if span.terms and of_data(s.lo) and of_data(s.hi):
            inside = self.reader.variables(s.lo) | self.reader.variables(s.hi)
            levels = {t[0] for v in inside for t in self.moves.get(v, ((), False))[0]}
            around = prod(level.turns for level in levels)
            return max(1.0, ceil((s.var.hi + 1 - s.var.lo) / around / s.step))
        return max(0.0, ceil((self.number(s.hi) - self.number(s.lo)) / s.step))

    def lanes(self, s: For, lo: float, turns: float, region: Region, place: Place) -> None:
        """Whole vectors `unroll` at a time, then masked ones; short ones are written out."""
        count = self.plan.loops[s.var]
        varying = self.varying(s)
        trip = self.facts.form(s.hi).minus(self.facts.form(s.lo))
        short = not trip.terms and turns <= s.unroll * count
        written_out = short or (not trip.terms and tiled(s, self.plan, varying))
        groups = ceil(turns / count) if written_out else s.unroll
        block = min(turns, groups * count)
        level = Level(max(1.0, turns / block))
        self.bind(s, lo, level, turns, int(block))
        masked = (turns % count > 0) / groups if written_out else 0.0
        after = None if trip.terms else int(turns % count)
        last = stored_in(self.target, after)
        pieces = 1
        if after and in_pieces(s, self.plan, varying):
            pieces, last = after.bit_count(), 1
        more = pieces - 1 if written_out else 0
        lane = Lane(varying, count, groups + more, 1 + masked * (last - 1))
        if written_out:
            before = region.ports.across
            region.ports.across = 0.0
            self.block(s.body, region, replace(place, path=(*place.path, level), lane=lane))
            region.ports.shuffle += region.ports.across
            region.ports.across = before
            return
        executions = region.executions * region.turns
        path = (*place.path, level)
        whole = turns // (groups * count)
        if whole:
            inner = self.region(path, whole, executions)
            inner.ports.scalar += self.reader.unit("turn") / 2
            self.block(s.body, inner, Place(path, (), lane))
        rest = ceil((turns - whole * groups * count) / count)
        if rest:
            tail = self.region(path, rest, executions)
            tail.ports.scalar += self.reader.unit("turn")
            at = len(self.regions)
            stores = 1 + (last - 1) / rest
            self.block(s.body, tail, Place(path, (), Lane(varying, count, pieces, stores)))
            for one in self.regions[at - 1 :] if whole else ():
                one.accesses.clear()
                one.ports.across = 0.0

    def varying(self, s: For) -> Varying:
        """What differs between the lanes of a loop."""
        if s not in self.differing:
            own = frozenset(x.register for x in statements(s.body) if isinstance(x, Declare))
            self.differing[s] = Varying(s.var, own)
        return self.differing[s]

    def controls(self, s: For) -> frozenset[Node]:
        """Every node that decides what runs inside a loop."""
        if s not in self.control:
            roots: list[Expr] = []
            for inner in statements(s.body):
                if isinstance(inner, For):
                    roots += [inner.lo, inner.hi]
                elif isinstance(inner, Guard):
                    roots.append(inner.condition)
            self.control[s] = frozenset(walk(roots))
        return self.control[s]

    def bind(self, s: For, value: float, level: Level | None, turns: float, block: int = 1) -> None:
        """A variable's value, and how it moves: with its lower bound, and turn by turn."""
        self.at.values[s.var] = value
        terms, scattered = self.moved(s.lo)
        if level is not None and level.turns > 1:
            terms += ((level, s.step * block, level.turns),)
        self.moves[s.var] = terms, scattered

    # -- arrays

    def moved(self, offset: Expr, scale: int = 1) -> Moves:
        """The terms of an offset by loop levels; whether it is at random within them."""
        every: list[tuple[Level, int, float]] = []
        scattered = False
        for atom, coefficient in self.facts.form(offset).terms:
            factor = coefficient * scale
            if isinstance(atom, Var):
                terms, random = self.moves.get(atom, ((), False))
                every += [(level, step * factor, n) for level, step, n in terms]
                scattered |= random
            elif isinstance(atom, E.FloorDiv | E.Mod) and isinstance(atom.right, E.Const):
                terms, random = self.moved(atom.left)
                divisor = max(1, abs(int(atom.right.value)))
                ways = stepped if isinstance(atom, E.FloorDiv) else cycled
                parts = [(level, s, ways(s, n, divisor)) for level, s, n in terms]
                sizes = [max(1, abs(s)) for _, s, _ in parts]
                if isinstance(atom, E.FloorDiv):
                    sizes = [max(1, s // divisor) for s in sizes]
                pairs = zip(parts, sizes, strict=True)
                every += [(level, size * factor, n) for (level, _, n), size in pairs]
                scattered |= random
            else:
                terms, random = self.cut(atom)
                every += [(level, step * factor, n) for level, step, n in terms]
                scattered |= random
        return tuple(_once(every)), scattered

    def cut(self, atom: Expr) -> Moves:
        """How a bound of loops moves, ``max(0, 1 - i)``: as what it is made of, within its range.
        Of what is data, which is at random, each turn is another one.
        """
        low, high = self.facts.interval(atom)
        span = float(max(1, high - low + 1))
        if isinstance(atom, E.If):
            sides = [self.moved(side) for side in (atom.then, atom.otherwise)]
            terms = [term for side, _ in sides for term in side]
            scattered = any(random for _, random in sides)
        else:
            inside = self.reader.variables(atom)
            terms = [
                (at, APART, n) for v in inside for at, _, n in self.moves.get(v, ((), False))[0]
            ]
            scattered = True
        return tuple((level, step, min(n, span)) for level, step, n in terms), scattered

    def access(self, array: Array, offset: Expr, region: Region, place: Place, write: bool) -> None:
        size = array.dtype.itemsize
        terms, scattered = self.moved(offset, size)
        width, path, torn = size, place.path, False
        if place.lane is not None:
            stride = self.reader.stride(offset, place.lane)
            lanes = place.lane.count * place.lane.groups
            step = LINE + 1 if stride is None and scattered else 1 if stride is None else stride
            if stride is not None and abs(step) * size > LINE:
                across = Level(lanes)
                path, terms = (*path, across), (*terms, (across, step * size, lanes))
                torn = write
            elif stride != 0:
                width = min(int(spanned([(abs(step) * size, lanes)], size)), array.size * size)
        depth = len(region.path)
        self.keep(region, Access(array, path, depth, terms, width, write, scattered, torn))

    def keep(self, region: Region, access: Access) -> None:
        region.accesses.append(access)

    def read(self, root: Expr, region: Region, place: Place) -> None:
        """Every load below an expression."""
        for node in walk(root):
            if isinstance(node, Load):
                self.access(node.array, node.offset, region, place, False)

    # -- the sum

    def total(self) -> Price:
        """All regions: instructions and memories overlap in each."""
        spent = list(self.spent())
        names = [m.name for m in self.machine.memories[1:]]
        sums = tuple((name, sum(s.waits[n] for s in spent)) for n, name in enumerate(names))
        busy = sum(s.own for s in spent if not s.region.packs)
        packing = sum(s.ns for s in spent if s.region.packs)
        tasks = self.routine.tasks
        launch = self.machine.rate("launch", "launch")
        each = self.machine.rate("launch", "task") * tasks if tasks > 1 else 0.0
        return Price(sum(s.ns for s in spent) + launch + each, busy, sums, packing, launch, each)

    def instructions(self, region: Region) -> float:
        """Nanoseconds of all executions, memories left out."""
        region.ports.window = region.ports.vector / self.reader.unit("plain") / WINDOW
        own = region.ports.busy * region.turns + region.ports.across
        if region.turns > 1:
            own += self.reader.unit("enter")
        return own * region.executions

    def spent(self) -> Iterator[Spent]:
        """What each region takes, its instructions and its memories."""
        machine, every = self.machine, [a for r in self.regions for a in r.accesses]
        for access in every:
            for level in access.path:
                level.accesses.append(access)
        # one share ranks ways by its side that they are on: a convolution of 512 channels of 7 x 7
        # 7.3 ms by one, 12.1 by all, 11.8 measured, one Zen 3 core
        exact = self.samples > ROUGH or any(memory.pages for memory in machine.memories)
        shares = KEPT if exact else KEPT[1:2]
        beyond = [gradual(every, m, shares) for m in machine.memories[:-1]]
        waiting = translated(every, machine.memories)
        for region in self.regions:
            own = self.instructions(region)
            waits = [0.0] * (len(machine.memories) - 1)
            far = [waiting.get(access, 0.0) for access in region.accesses]
            translating, late, ordered = sum(far), 0.0, 0.0
            for place, access in enumerate(region.accesses):
                leaping = 0.0
                for number, memory in enumerate(machine.memories[1:]):
                    past = beyond[number + 1] if number + 1 < len(beyond) else {}
                    miss = beyond[number].get(access, Miss()).beyond(past.get(access, Miss()))
                    wait = miss.bytes / (memory.write if access.write else memory.read)
                    wait += miss.bytes / memory.read * access.torn
                    waits[number] += wait
                    if not number and access.streamed:
                        ordered += wait
                    far[place] += wait
                    if not access.write:
                        leaping += self.late(miss, own, memory)
                far[place] += leaping
                late = max(late, leaping)
            near = together(own, ordered, exponent=NEAR)
            ns = together(near, sum(waits) - ordered + translating) + late
            yield Spent(region, own, tuple(waits), tuple(far), ns)

    def late(self, miss: Miss, own: float, memory: Memory) -> float:
        """Nanoseconds that a region of `own` waits for memory after leaps, each of which begins as
        early as the processor looks ahead; those of several accesses begin together. Until more is
        on its way each line is waited for, no longer than for the first in all.
        """
        if not miss.leaps:
            return 0.0
        ahead = WINDOW * self.reader.unit("scalar")
        left = max(0.0, memory.latency - QUEUE * self.reader.unit("multiply_add"))
        lines = max(1.0, miss.bytes / LINE / miss.leaps)
        each = min(lines * left, memory.latency)
        return miss.leaps * each * min(1.0, own / miss.leaps / ahead)


def _once(terms: Sequence[tuple[Level, int, float]]) -> Iterator[tuple[Level, int, float]]:
    """Terms of an offset; of several that one loop moves at random, one: each turn is one place, of
    no more than there are by all of them.

    ``table[rows[i], columns[i]], 8192 turns, 64 x 64 places  ->  4096 places``
    """
    apart: dict[int, tuple[Level, int, float]] = {}
    for level, step, n in terms:
        if abs(step) < APART:
            yield level, step, n
            continue
        _, _, known = apart.get(id(level), (level, step, 1.0))
        apart[id(level)] = level, step, min(level.turns, known * n)
    yield from apart.values()
