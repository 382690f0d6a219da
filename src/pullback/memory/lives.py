"""Lifetimes of a program's own variables, in launches, loops and branches included.

``x = ..; loop { y = x; z = y }  ->  x lives through the loop, y from its write to its last read``
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from pullback.config import Ints, Pair, frozen
from pullback.errors import InvalidIR
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Branch, Feed, HostCall, Item, Launch, Loop, Receive
from pullback.memory.plan import Needs
from pullback.simplify.empty import is_empty

Span = Pair
Path = Ints


@frozen
class Touch:
    """One use of a variable: at or before launch `place`, inside the loops of `path`.

    `launch`: by a launch, not by a feed, a receive or what decides a loop or branch.
    """

    place: int
    path: Path
    writes: bool
    launch: bool


@dataclass(slots=True)
class Walk:
    """Launches in program order; who touches what, when, inside which loops."""

    kernels: list[Kernel] = field(default_factory=list)
    touches: dict[Variable, list[Touch]] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @classmethod
    def of(cls, block: Block) -> Walk:
        """What a fused program touches."""
        walk = cls()
        walk.block(block, ())
        return walk

    def touch(
        self,
        variables: Iterable[Variable],
        place: int,
        path: Path,
        writes: bool,
        launch: bool = False,
    ) -> None:
        for variable in variables:
            self.touches.setdefault(variable, []).append(Touch(place, path, writes, launch))

    def block(self, block: Block, path: Path) -> None:
        for item in block:
            self.item(item, path)

    def item(self, item: Item, path: Path) -> None:
        place = len(self.kernels)
        before = max(0, place - 1)
        if isinstance(item, Launch):
            self.touch(item.kernel.reads, place, path, False, True)
            self.touch(item.kernel.writes, place, path, True, True)
            self.kernels.append(item.kernel)
            self.paths.append(path)
        elif isinstance(item, Feed):
            self.touch(item.targets, place, path, True)
        elif isinstance(item, Receive):
            self.touch(item.sources, before, path, False)
        elif isinstance(item, HostCall):
            # Between two launches: what it touches is alive in both, so that nothing lies over it.
            for here in (before, place):
                self.touch(item.sources, here, path, False)
                self.touch(item.targets, here, path, True)
        elif isinstance(item, Loop):
            self.loop(item, path)
        elif isinstance(item, Branch):
            self.touch([item.predicate], before, path, False)
            self.inside([item.then], path)
            self.inside([item.otherwise], path)
        else:
            raise InvalidIR("lifetimes are for fused programs")

    def loop(self, loop: Loop, path: Path) -> None:
        if loop.counter is not None:
            self.touch([loop.counter], len(self.kernels), path, True)
        inner = self.inside([loop.body], path)
        first, last = self.spans[inner[-1]]
        if loop.counter is not None:
            self.touch([loop.counter], last, path, False)
        if loop.condition is not None:
            self.touch([loop.condition], first, inner, False)

    def inside(self, blocks: list[Block], path: Path) -> Path:
        """Walk blocks that may run any number of times; the path that was given to them."""
        inner = (*path, len(self.spans))
        self.spans.append((0, 0))
        first = len(self.kernels)
        for block in blocks:
            self.block(block, inner)
        self.spans[inner[-1]] = (first, max(first, len(self.kernels) - 1))
        return inner

    def life(self, variable: Variable) -> Span:
        touches = self.touches[variable]
        if not any(t.writes for t in touches) and not is_empty(variable.shape):
            raise InvalidIR(f"plan: {variable} is read but never written")
        common = _common([t.path for t in touches])
        spans = [(t.place, t.place) for t in touches]
        deeper = [t.path[len(common)] for t in touches if len(t.path) > len(common)]
        spans.extend(self.spans[d] for d in deeper)
        opening = touches[0]
        if common and (not opening.writes or opening.path != common):
            spans.append(self.spans[common[-1]])
        return min(s[0] for s in spans), max(s[1] for s in spans)

    def ends(self, variable: Variable, place: int) -> bool:
        """Whether launch `place` is the last to use what launches of its own block made."""
        touches = self.touches[variable]
        here = all(t.launch and t.path == self.paths[place] for t in touches)
        return here and touches[0].writes and touches[-1].place == place

    def begins(self, variable: Variable, place: int) -> bool:
        """Whether a variable lives from launch `place` on, which writes it; not from the start of
        a branch on, as one that is read after the branch does."""
        first = self.touches[variable][0]
        written = first == Touch(place, self.paths[place], True, True)
        return written and self.life(variable)[0] == place


def _common(paths: list[Path]) -> Path:
    """The loops that all of these are in."""
    same = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in same)


def lives(block: Block, state: Collection[Variable]) -> tuple[list[Kernel], dict[Variable, Span]]:
    """The launches of a fused program in order, and first and last launch of its own variables.

    Raises: InvalidIR for a variable that nobody writes.
    """
    walk = Walk.of(block)
    kept = set(state)
    last = max(0, len(walk.kernels) - 1)
    spans: dict[Variable, Span] = {}
    for variable in walk.touches:
        if variable not in kept:
            low, high = walk.life(variable)
            spans[variable] = (min(low, last), min(high, last))
    return walk.kernels, spans


def taken_over(
    block: Block, state: Collection[Variable], needs: Mapping[Kernel, Needs]
) -> dict[Variable, Variable]:
    """Results that are written where an operand lies that nobody reads again.

    ``y = f(x), x's last use  ->  {y: x}``, where the code of `f` allows that (`Needs.over`).
    """
    walk = Walk.of(block)
    kept = set(state)
    operands: dict[Variable, Variable] = {}
    given: set[Variable] = set()
    for place, kernel in enumerate(walk.kernels):
        for pair in needs.get(kernel, Needs()).over:
            x, y = (kernel.arguments[n] for n in pair)
            free = kept.isdisjoint((x, y)) and x not in given and y not in operands
            if free and walk.ends(x, place) and walk.begins(y, place):
                operands[y] = x
                given.add(x)
    return operands
