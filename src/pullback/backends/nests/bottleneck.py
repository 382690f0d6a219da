"""What holds a kernel back that takes more than twice its limit, in one sentence, for people.

``6.1 times its limit of 29.40 us: 161.10 us are `exps` (net.py:6), whose exp is what it waits for``

The limit is what the floating-point operations take at the peak of multiply-adds, or what each byte
that the kernel needs takes once from the memory that holds them all, whichever is longer, and a
launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from pullback.backends.nests.ports import NAMES, Place
from pullback.backends.nests.price import Walk, nest_price, walked
from pullback.backends.nests.ranges import lowered
from pullback.backends.nests.regions import Region, Spent
from pullback.backends.nests.reuse import Access, Level
from pullback.backends.nests.samples import SAMPLES
from pullback.config import Ints
from pullback.cost.facts import size_bytes
from pullback.ir.expr import Axis, Expr, upper
from pullback.ir.graph import Definition, Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.nest import Mark, Routine, Stmt
from pullback.ir.node import Node, walk
from pullback.ir.target import Target
from pullback.machine.machine import LINE
from pullback.schedule.count import cost
from pullback.schedule.schedule import Schedule

FAR = 2.0  # times its limit from which a kernel is said to be held back
BEGUN = 0.5  # of its price from which what begins a launch is the reason
WORD = 4  # bytes of the elements whose multiply-adds are the peak


def priced(kernel: Kernel, schedule: Schedule, target: Target) -> str:
    """The price, and for what takes more than twice its limit, the reason."""
    nest = lowered(kernel, schedule, marks=True)
    parts = [f"price {nest_price(nest, target)}", held_back(kernel, nest, target)]
    return "\n".join(filter(None, parts))


def held_back(kernel: Kernel, routine: Routine, target: Target) -> str:
    """The sentence; "" for a kernel that is near its limit. `routine`: its nest, with marks."""
    walker = Marked(routine, target, SAMPLES)
    walked(walker)
    price, least = walker.total(), limit(kernel, target)
    if price.ns <= FAR * least:
        return ""
    head = f"{price.ns / least:.1f} times its limit of {least / 1e3:.2f} us: "
    if price.launch + price.tasks > BEGUN * price.ns:
        return f"{head}{(price.launch + price.tasks) / 1e3:.2f} us begin its {routine.tasks} tasks"
    if price.packing > BEGUN * price.ns:
        return f"{head}{price.packing / 1e3:.2f} us copy panels of a product's operands"
    by_stages: dict[Ints, list[Spent]] = {}
    for spent in walker.regions_spent:
        by_stages.setdefault(walker.of(spent.region), []).append(spent)
    stages, most = max(by_stages.items(), key=lambda item: sum(s.ns for s in item[1]))
    own = [kernel.every[n] for n in stages] or list(kernel.every)
    stage = max(own, key=_cost)
    ns = sum(s.ns for s in most)
    origin = stage.target.origin
    place = "" if origin is None else f" ({origin.place})"
    why = reason(max(most, key=lambda s: s.ns), own, walker.memories)
    return f"{head}{ns / 1e3:.2f} us are `{stage.target.name}`{place}, {why}"


class Marked(Walk):
    """A walk over a nest with marks: which stages each region computes."""

    def __init__(self, routine: Routine, target: Target, samples: int) -> None:
        super().__init__(routine, target, samples)
        self.stages: Ints = ()
        self.around: dict[int, Ints] = {}
        self.inside: dict[int, Ints] = {}
        self.regions_spent: list[Spent] = []

    @property
    def memories(self) -> list[str]:
        """Those beyond the nearest."""
        return [m.name for m in self.machine.memories[1:]]

    def region(self, path: tuple[Level, ...], turns: float, executions: float) -> Region:
        """With the stages that were marked last."""
        made = super().region(path, turns, executions)
        self.around[id(made)] = self.stages
        return made

    def of(self, region: Region) -> Ints:
        """The stages that are marked in a region, else those of the loops around it."""
        return self.inside.get(id(region)) or self.around[id(region)]

    def statement(self, s: Stmt, region: Region, place: Place, seen: set[Node]) -> None:
        """What a mark says holds from there on."""
        if isinstance(s, Mark):
            self.stages = s.stages
            before = self.inside.get(id(region), ())
            self.inside[id(region)] = tuple(sorted({*before, *s.stages}))
        super().statement(s, region, place, seen)

    def spent(self) -> Iterator[Spent]:
        """Kept, to be looked at by stages."""
        self.regions_spent = list(super().spent())
        return iter(self.regions_spent)


def limit(kernel: Kernel, target: Target) -> float:
    """Nanoseconds that one launch takes at least, on one thread."""
    machine = target.profile
    peak = 2 * machine.vector / WORD / machine.tables["unit"]["multiply_add"]
    flops = sum(map(_cost, kernel.every))
    touched = _touched(kernel)
    holding = (m for m in machine.memories if not m.bytes or m.bytes >= touched)
    rate = next(holding, machine.memories[-1]).read
    return max(flops / peak, touched / rate) + machine.rate("launch", "launch")


def reason(spent: Spent, stages: Sequence[Stage], memories: Sequence[str]) -> str:
    """Why a region takes as long as it does."""
    region, waits = spent.region, spent.waits
    if sum(spent.far) > spent.own:
        name = memories[max(range(len(waits)), key=waits.__getitem__)]
        access = region.accesses[max(range(len(spent.far)), key=spent.far.__getitem__)]
        verb = "written to" if access.write else "read from"
        return f"where `{access.array.name}` is {verb} {name}{_lying(access)}"
    return _instructions(region, stages)


def _instructions(region: Region, stages: Sequence[Stage]) -> str:
    """By the part of the processor that is busiest."""
    ports = region.ports
    chain = max(ports.chains.values(), default=0.0)
    slow = sorted({name for s in stages for n in walk([s.body]) if (name := _slow(n))})
    parts = {
        "whose turns wait for one another": max(chain, ports.depth * ports.window),
        "which moves elements between lanes": max(ports.shuffle, ports.across),
        f"whose loads are what it waits for{_scattered(region)}": ports.load,
        "whose stores are what it waits for": ports.store,
        "which runs element by element, not in vectors": ports.scalar,
        _arithmetic(slow): ports.vector,
    }
    return max(parts, key=parts.__getitem__)


def _slow(node: Node) -> str:
    """The name of an operation that takes many instructions; "" for others."""
    return NAMES.get(type(node), "") if isinstance(node, Expr) else ""


def _arithmetic(slow: Sequence[str]) -> str:
    if not slow:
        return "whose arithmetic is no multiply-add"
    return f"whose {', '.join(slow)} {'is' if len(slow) == 1 else 'are'} what it waits for"


def _scattered(region: Region) -> str:
    at_random = [a.array.name for a in region.accesses if a.scattered]
    return f": `{at_random[0]}` is read at places that are data" if at_random else ""


def _lying(access: Access) -> str:
    if access.scattered:
        return ", at places that are data"
    return ", element by element" if _apart(access) else ""


def _apart(access: Access) -> bool:
    """Whether each turn of the innermost loop that moves it needs another line."""
    steps = [(access.path.index(at), abs(step)) for at, step, n in access.terms if n > 1]
    return bool(steps) and max(steps)[1] >= LINE and access.width < LINE


def _cost(stage: Stage) -> int:
    whole = Definition(stage.target.name, stage.shape, stage.body, stage.form)
    return cost([whole]).flops


def _touched(kernel: Kernel) -> float:
    """Bytes that a launch needs: what it writes, and of what it reads at most as many elements as
    the axes of its places count.
    """
    wanted: dict[Variable, float] = {v: size_bytes(v) for v in kernel.writes}
    for stage in kernel.every:
        for take in stage_reads(stage):
            if not isinstance(variable := take.source, Variable) or variable in kernel.writes:
                continue
            axes = {n for n in walk(take.indices) if isinstance(n, Axis)}
            count = prod(upper(axis.extent) for axis in axes) * variable.dtype.itemsize
            before = wanted.get(variable, 0)
            wanted[variable] = min(size_bytes(variable), before + count)
    return sum(wanted.values())
