"""A fused program as the machine's flat code: one image of 8-byte words.

Every address that depends on where the image or a variable's memory lies is a patch, applied once
for the arena and again for the state variables of each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from pullback.backends.base import Call, Image, Part, lined
from pullback.backends.host.native import Op
from pullback.backends.host.rings import Calls, Ring
from pullback.backends.host.system import Array, address
from pullback.errors import InvalidIR
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import (
    Block,
    Branch,
    Feed,
    HostCall,
    Item,
    Launch,
    Loop,
    Receive,
    items,
)
from pullback.memory.plan import Plan

WIDTH = 8  # words of an instruction
CALLED = 8  # words that a C function is given
FOREVER = 1 << 40  # a loop of more steps than this is ended by something else


@dataclass(eq=False, slots=True)
class Assembled:
    """The words, and what must still be added to them."""

    words: Array
    patches: dict[Variable, list[int]]
    sizes: dict[str, list[int]]
    errors: list[int]
    rings: list[Ring]
    producers: list[tuple[list[Ring], Calls]]
    launches: dict[int, Call]
    hosts: dict[int, tuple[HostCall, int]]  # with its words: addresses, then sizes by `named`


@dataclass(slots=True)
class _Assembler:
    """Code and data are collected apart; data addresses are relative until both are known."""

    calls: Mapping[Kernel, Call]
    plan: Plan
    arena: int
    rows: int
    code: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    # (whether it is in code, word) -> data word
    inner: list[tuple[bool, int, int]] = field(default_factory=list)
    patches: list[tuple[bool, int, Variable]] = field(default_factory=list)
    sizes: list[tuple[int, str]] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    rings: list[Ring] = field(default_factory=list)
    producers: list[tuple[list[Ring], Calls]] = field(default_factory=list)
    launches: dict[int, Call] = field(default_factory=dict)
    hosts: dict[int, tuple[HostCall, int]] = field(default_factory=dict)
    order: int = 0

    @property
    def here(self) -> int:
        """The place of the next instruction."""
        return len(self.code) // WIDTH

    def emit(self, op: Op, *operands: int) -> int:
        """Append an instruction; its place."""
        place = self.here
        self.code.extend([int(op), *operands, *[0] * (WIDTH - 1 - len(operands))])
        return place

    def later(self, place: int, operand: int, value: int) -> None:
        """Fill in an operand."""
        self.code[place * WIDTH + 1 + operand] = value

    def point(self, place: int, operand: int, variable: Variable) -> None:
        """An operand is the address of `variable`."""
        self.patches.append((True, place * WIDTH + 1 + operand, variable))

    def reserve(self, words: Sequence[int]) -> int:
        """Append data; its place."""
        place = len(self.data)
        self.data.extend(words)
        return place

    def relative(self, place: int, operand: int, data: int) -> None:
        """An operand is the address of data word `data`."""
        self.inner.append((True, place * WIDTH + 1 + operand, data))

    def block(self, block: Block, loops: tuple[Loop, ...], exits: list[int], known: bool) -> None:
        feeds: list[Feed] = []
        for item in block:
            if isinstance(item, Feed):
                feeds.append(item)
                continue
            self.feeds(feeds, loops, exits, known)
            feeds = []
            self.item(item, loops, exits, known)
        self.feeds(feeds, loops, exits, known)

    def item(self, item: Item, loops: tuple[Loop, ...], exits: list[int], known: bool) -> None:
        if isinstance(item, Launch):
            self.launch(item)
        elif isinstance(item, Loop):
            self.loop(item, loops, known)
        elif isinstance(item, Branch):
            self.branch(item, loops, exits)
        elif isinstance(item, Receive):
            ring = self.ring(item)
            self.emit(Op.RECEIVE, address(ring.words))
        elif isinstance(item, HostCall) and item.native is not None:
            self.native(item, *item.native)
        elif isinstance(item, HostCall):
            self.hosts[self.emit(Op.HOST)] = item, len(self.data)
            for variable in (*item.sources, *item.targets):
                self.patches.append((False, self.reserve([0]), variable))
            self.sizes += [(self.reserve([0]), name) for name in named(item)]
        else:
            raise InvalidIR(f"{type(item).__name__} in a fused program")

    def native(self, item: HostCall, function: int, words: Sequence[int | None]) -> None:
        """A call of a C function: its words stand in a row, addresses among them."""
        place = self.emit(Op.CALL, function)
        self.hosts[place] = item, len(self.data)
        self.relative(place, 1, len(self.data))
        variables = iter((*item.sources, *item.targets))
        for word in words:
            at = self.reserve([word or 0])
            if word is None:
                self.patches.append((False, at, next(variables)))
        self.reserve([0] * (CALLED - len(words)))

    def launch(self, item: Launch) -> None:
        call = self.calls[item.kernel]
        number = self.order
        self.order += 1
        shared = self.arena + self.plan.shared[number]
        working = [self.arena + self.plan.scratch[number], self.plan.stride[number]]
        if call.shares:
            blocks = [self.passed(part, shared) for part in call.parts]
            body, finish = self.rows, 0
            rows = self.table(call, blocks)
            start = self.reserve(working)
            for row in call.shares:
                self.inner.append((False, self.reserve([0]), rows + 3 * row))
        else:
            body, finish = call.parts[0].code.body, call.parts[0].code.finish
            start = self.reserve(working)
            self.passed(call.parts[0], shared)
        checks = int(bool(call.sites))
        place = self.emit(Op.LAUNCH, body, 0, call.tasks, finish, call.moved, checks)
        self.relative(place, 1, start + 2)
        self.launches[place] = call

    def passed(self, part: Part, shared: int) -> int:
        """The block of words that a routine is given."""
        start = len(self.data)
        for variable in part.arguments:
            self.patches.append((False, self.reserve([0]), variable))
        for size in part.code.stored.shared:
            self.reserve([shared])
            shared += lined(size)
        for name in part.code.stored.sizes:
            self.sizes.append((self.reserve([0]), name))
        self.errors.append(self.reserve([0]))
        return start

    def table(self, call: Call, blocks: list[int]) -> int:
        """A row {body, block, task} for each task of each part."""
        start = len(self.data)
        for part, block in zip(call.parts, blocks, strict=True):
            for task in range(part.tasks):
                row = self.reserve([part.code.body, 0, task])
                self.inner.append((False, row + 1, block))
        return start

    def loop(self, loop: Loop, loops: tuple[Loop, ...], known: bool) -> None:
        slot = self.reserve([0, 0])
        begin = self.emit(Op.SET, 0, 0)
        self.relative(begin, 0, slot)
        top = self.here
        exits: list[int] = []
        if loop.condition is not None:
            test = self.emit(Op.BRANCH, 0, 0)
            self.point(test, 0, loop.condition)
            exits.append(test * WIDTH + 2)
        test = self.emit(Op.TEST, 0, loop.count, 0, 0, loop.start, loop.step)
        self.relative(test, 0, slot)
        exits.append(test * WIDTH + 3)
        if loop.counter is None:
            self.relative(test, 3, slot + 1)
        else:
            self.point(test, 3, loop.counter)
        if _boundary(loop, loops):
            self.emit(Op.STEP)
        settled = loop.condition is None and loop.count < FOREVER
        self.block(loop.body, (*loops, loop), exits, known and settled)
        self.emit(Op.JUMP, top)
        for word in exits:
            self.code[word] = self.here

    def branch(self, item: Branch, loops: tuple[Loop, ...], exits: list[int]) -> None:
        test = self.emit(Op.BRANCH, 0, 0)
        self.point(test, 0, item.predicate)
        self.block(item.then, loops, exits, False)
        skip = self.emit(Op.JUMP, 0)
        self.later(test, 1, self.here)
        self.block(item.otherwise, loops, exits, False)
        self.later(skip, 0, self.here)

    def ring(self, item: Feed | Receive) -> Ring:
        ring = Ring(item, len(self.rings))
        self.rings.append(ring)
        return ring

    def feeds(
        self, feeds: list[Feed], loops: tuple[Loop, ...], exits: list[int], known: bool
    ) -> None:
        """Feeds in a row share a producer; a stop between them would tear a step."""
        if not feeds:
            return
        rings = [self.ring(f) for f in feeds]
        outer = loops[:-1]
        fed = any(isinstance(i, Feed) for loop in outer for i in loop.body)
        steps = loops[-1].count if loops else 1
        rounds = prod(loop.count for loop in outer)
        self.producers.append((rings, Calls(rounds, steps, known and not fed, bool(loops))))
        for number, ring in enumerate(rings):
            first = int(number == 0 and bool(loops) and loops[-1].body[0] is feeds[0])
            place = self.emit(Op.FEED, address(ring.words), 0, first)
            exits.append(place * WIDTH + 2)

    def image(self) -> Assembled:
        """Code, then data."""
        end = self.emit(Op.END)
        size = len(self.code)
        words = np.array(self.code + self.data, np.int64)
        base = address(words)
        for in_code, place, data in self.inner:
            words[place if in_code else size + place] = base + 8 * (size + data)
        patches: dict[Variable, list[int]] = {}
        for in_code, place, variable in self.patches:
            patches.setdefault(variable, []).append(place if in_code else size + place)
        sizes: dict[str, list[int]] = {}
        for place, name in self.sizes:
            sizes.setdefault(name, []).append(size + place)
        errors = [size + place for place in self.errors]
        launches = {place: call for place, call in self.launches.items() if place < end}
        hosts = {place: (call, size + data) for place, (call, data) in self.hosts.items()}
        return Assembled(words, patches, sizes, errors, self.rings, self.producers, launches, hosts)


def named(call: HostCall) -> list[str]:
    """The symbolic extents of what a call of the host is passed, in order."""
    every = (e for v in (*call.sources, *call.targets) for e in v.shape)
    return list(dict.fromkeys(e.name for e in every if isinstance(e, Dim)))


def _talks(loop: Loop) -> bool:
    return any(isinstance(i, Feed | Receive) for i in loop.body)


def _any_talks(block: Block) -> bool:
    for item in block:
        if isinstance(item, Loop) and (_talks(item) or _any_talks(item.body)):
            return True
        if isinstance(item, Branch) and (_any_talks(item.then) or _any_talks(item.otherwise)):
            return True
    return False


def _boundary(loop: Loop, outer: tuple[Loop, ...]) -> bool:
    """Whether an iteration is a step of the user's: it feeds or hands out, or is outermost."""
    return _talks(loop) or (not outer and not _any_talks(loop.body))


def kept(image: Image) -> set[Variable]:
    """State that a program reads before it writes it: its runs come one after the other."""
    read: set[Variable] = set()
    wrote: set[Variable] = set()
    for launch in (item for item in items(image.block) if isinstance(item, Launch)):
        read.update(v for v in launch.kernel.reads if v not in wrote)
        wrote.update(launch.kernel.writes)
    return read & wrote & set(image.state)


def assemble(image: Image, arena: int, rows: int) -> Assembled:
    """The code of a program whose temporaries lie at `arena` as its plan says.

    `rows` is the address of the routine that runs the rows of a launch of several parts.
    """
    assembler = _Assembler(image.calls, image.plan, arena, rows)
    assembler.emit(Op.BEGIN)
    top: list[int] = []
    assembler.block(image.block, (), top, True)
    end = assembler.here
    for word in top:
        assembler.code[word] = end
    return assembler.image()
