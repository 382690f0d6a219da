"""Schedules read back from their text.

``sweep of stages [2] in 0 loops, axis 0 in lanes; in flight 2, if long 1, blocks of 64``
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from math import prod
from typing import Any

from pullback.errors import SyntaxFormError
from pullback.ir.kernel import Kernel
from pullback.ir.tokens import Tokens
from pullback.schedule.contraction import products
from pullback.schedule.schedule import (
    LOOPS,
    Left,
    Loops,
    Place,
    Residence,
    Right,
    Schedule,
    Slot,
    Step,
    Way,
)
from pullback.schedule.slots import tile_shape
from pullback.schedule.text import SAID

FIELDS = {said: name for name, said in SAID.items()}
SIDES = {f"{kind.__name__.lower()} {way.value}": way for kind in (Left, Right) for way in kind}
FLAGS = ("scattered", "ahead", "through", "turned")
PLACES = {place.value: place for place in Place}
WAYS = {way.value: way for way in Way}


def read_schedule(text: str, kernel: Kernel) -> Schedule:
    """The schedule of `kernel` that a text describes; what scratch holds follows from the tile.

    Raises: SyntaxFormError with the line and a caret under the first wrong token.
    """
    reader = _Reader(kernel)
    for number, line in enumerate(text.strip().splitlines() or [""], 1):
        if number == 1 or not line.strip().startswith("#"):
            reader.line(Tokens(line, number))
    return reader.made()


@dataclass(slots=True)
class _Reader:
    """Lines of a schedule, in order."""

    kernel: Kernel
    schedule: Schedule = field(default_factory=lambda: Schedule((), 0, 0, (), (), (), ()))
    homes: dict[int, Residence] = field(default_factory=dict)

    def say(self, **facts: Any) -> None:
        """Facts of the schedule."""
        self.schedule = replace(self.schedule, **facts)

    def line(self, t: Tokens) -> None:
        if t.number == 1:
            self.head(t)
        elif t.phrase("stage"):
            self.home(t)
        elif t.phrase("arguments"):
            self.say(streamed=_numbers(t))
            t.said("past the caches")
        elif t.phrase("outer axes in the order"):
            self.say(order=_numbers(t))
        elif t.next:
            self.step(t)
        t.end()

    def head(self, t: Tokens) -> None:
        """``4 tasks over tiles of (64, 128), split 1, vectors of 64 bytes, 0 bytes scratch``"""
        tasks, tile = t.whole(), list[int]()
        t.said("tasks over tiles of (")
        while not t.skip(")"):
            tile.append(t.whole())
            if t.next != ")":
                t.take(",")
        split, vector = _number(t, ", split"), _number(t, ", vectors of")
        self.say(tasks=tasks, tile=tuple(tile), split=split, vector=vector)
        t.said("bytes")
        if t.number_after(",") is not None:
            t.said("bytes scratch")

    def home(self, t: Tokens) -> None:
        """``2 in scratch 0``, or ``1 in memory of stage 4``"""
        number = t.whole()
        t.said("in")
        places = ", ".join(PLACES)
        place = t.one_of(PLACES, f"no place is called {t.next}: there are {places}")
        slot = t.whole() if t.kind == "number" else None
        if (slot is not None) != (place is Place.SCRATCH):
            t.fail(f"{place.value} {'without a number' if slot is None else slot}")
        self.homes[number] = Residence(place, slot, t.number_after("of stage"))

    def step(self, t: Tokens) -> None:
        """``sweep of stages [2] in 0 loops, axis 0 in lanes; in flight 2, ..``"""
        stages, part = self.kernel.stages, "steps"
        if t.phrase("finish :"):
            stages, part = self.kernel.finish, "finish"
        way = t.one_of(WAYS, f"not a line of a schedule: {t.line.strip()}")
        t.said("of stages")
        members = _numbers(t)
        if not members or max(members) >= len(stages):
            t.fail(f"stages {list(members)} of {len(stages)}")
        level = _number(t, "in")
        t.said("loops")
        lane = t.number_after(", axis")
        if lane is not None:
            t.said("in lanes")
        column, product = t.number_after(", columns along"), None
        if column is not None:
            product = products(stages[members[0]]).get(column)
            if product is None:
                t.fail(f"stage {members[0]} is no contraction with columns {column}")
            word = t.number_after(", words of")
            product = replace(product, word=1 if word is None else word, direct=False)
        step = Step(members, way, level, lane, product, loops=_read_loops(t, way))
        self.say(**{part: (*getattr(self.schedule, part), step)})

    def made(self) -> Schedule:
        """What all lines say together. Raises: SyntaxFormError where they are of another kernel."""
        kernel, homes = self.kernel, self.homes
        every, tile = kernel.every, self.schedule.tile
        if sorted(homes) != list(range(len(every))) or len(tile) != len(kernel.outer):
            what = f"{len(homes)} stages in a tile of {len(tile)} axes"
            what = f"line 1: {what}, the kernel has {len(every)} in {len(kernel.outer)}"
            raise SyntaxFormError(what, code="E172")
        numbers = sorted({h.slot for h in homes.values() if h.slot is not None})
        slots = {slot: n for n, slot in enumerate(numbers)}
        residences = tuple(
            home if home.slot is None else replace(home, slot=slots[home.slot])
            for home in (homes[n] for n in range(len(every)))
        )
        schedule = replace(self.schedule, residences=residences)
        return replace(schedule, slots=scratch_slots(kernel, schedule))


def scratch_slots(kernel: Kernel, schedule: Schedule) -> tuple[Slot, ...]:
    """What each piece of scratch must hold of the stages that live in it."""
    slots: dict[int, Slot] = {}
    for number, home in enumerate(schedule.residences):
        if home.slot is None:
            continue
        stage, last = kernel.every[number], number >= len(kernel.stages)
        size = prod(tile_shape(stage, None if last else schedule.tile))
        before = slots.get(home.slot, Slot(stage.body.dtype, 0))
        slots[home.slot] = replace(before, size=max(before.size, size))
    return tuple(slots[n] for n in sorted(slots))


def _read_loops(t: Tokens, way: Way) -> Loops | None:
    """``; in flight 2, if long 1, blocks of 64``"""
    facts: dict[str, Any] = {}
    more = t.skip(";")
    while more:
        _fact(t, facts)
        more = t.skip(",")
    kind = LOOPS.get(way)
    wanted = {item.name: item.default for item in fields(kind)} if kind else {}
    missing = [name for name, value in wanted.items() if value is MISSING and name not in facts]
    for problem, names in (("with", facts.keys() - wanted.keys()), ("without", missing)):
        if names:
            t.fail(f"{way.value} {problem} {', '.join(SAID.get(n, n) for n in sorted(names))}")
    return kind(**facts) if kind else None


def _fact(t: Tokens, facts: dict[str, Any]) -> None:
    """``8 x 48 sums``, ``exact to 4``, ``right in panels``, ``fetched ahead``"""
    if t.kind == "number":
        facts["rows"] = t.whole()
        t.said("x")
        facts["columns"] = t.whole()
        t.said("sums")
        return
    words: list[str] = []
    while t.kind == "name":
        words.append(t.take())
    said = " ".join(words)
    name = FIELDS.get(said, words[0] if words else "")
    if name in FLAGS:
        facts[name] = True
    elif said in SIDES:
        facts[name] = SIDES[said]
    elif t.kind != "number":
        facts[said] = said
    elif said in FIELDS:
        facts[name] = t.whole()
    else:
        t.fail(f"no count is called {said}")


def _number(t: Tokens, before: str) -> int:
    t.said(before)
    return t.whole()


def _numbers(t: Tokens) -> tuple[int, ...]:
    """``[0, 2]``"""
    return tuple(t.listed("[", "]", lambda: t.whole()))
