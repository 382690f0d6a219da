"""From which memory each access of a loop nest is served: footprints by loop level.

What one turn of a loop touches fits a cache, or not. If it fits, what the loop touches comes from
beyond once; if not, once in each turn. A processor fetches ahead along a line of steps of one
length; after a leap it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

from pullback.ir.nest import Array
from pullback.machine.machine import LINE, Memory

# Of an offset: bytes from one value of a loop's variable to the next, in how many turns.
Term = tuple[int, float]
# Bytes between values that are data: further than any array is long, so each is a run of its own;
# odd, so that they share no places of a cache.
APART = (1 << 40) + 1
# Bytes of the longest step that is fetched ahead whatever the order. Zen 3, ns that four lines of
# memory take beside 54 of arithmetic, their starts so many bytes apart: 256 4, 512 13, 1024 129,
# 18 KB 136; of the last-level cache 5, 0, 17, 20 and more.
FOLLOWED = 512
# Lines, one after the other, of which each is fetched ahead: ns that 64 bytes of memory take beside
# 12 of arithmetic, of 8 rows in turn 13, 16 15, 32 23.
STREAMS = 16


class Miss(NamedTuple):
    """What an access fetches from beyond a cache, and how often it leaps to another place."""

    bytes: float = 0.0
    leaps: float = 0.0

    def plus(self, other: Miss, share: float = 1.0) -> Miss:
        return Miss(self.bytes + share * other.bytes, self.leaps + share * other.leaps)

    def beyond(self, other: Miss) -> Miss:
        """The part that the next cache has, which fetches `other`."""
        return Miss(max(0.0, self.bytes - other.bytes), max(0.0, self.leaps - other.leaps))


@dataclass(eq=False, slots=True)
class Level:
    """A loop: its turns in one execution, and the share of them that what is below stands for.
    `written`: it is written out.
    """

    turns: float
    share: float = 1.0
    written: bool = False
    accesses: list[Access] = field(default_factory=list)
    touched: dict[int, float] = field(default_factory=dict)

    def footprint(self, line: int = LINE) -> float:
        """Bytes that one turn touches, in whole lines."""
        if line not in self.touched:
            self.touched[line] = sum(union(self.accesses, self, line).values())
        return self.touched[line]


# How an offset moves by loops: bytes, in how many turns of each; whether it is at random within.
Moves = tuple[tuple[tuple[Level, int, float], ...], bool]


@dataclass(eq=False, slots=True)
class Access:
    """Reads or writes of an array in a loop: what its offset moves by in each loop around it.

    `path`: the loops around, outermost first; those from the n-th, `depth`, on are written out.
    `scattered`: its lines are in no order. `torn`: each lane writes to another line, which must be
    read for what else lies there.
    """

    array: Array
    path: tuple[Level, ...]
    depth: int
    terms: tuple[tuple[Level, int, float], ...]
    width: int
    write: bool
    scattered: bool
    torn: bool = False
    # Lengths of steps from the shortest on, each with its turns and its loop's number in `path`.
    steps: list[tuple[int, float, int]] = field(init=False)
    alike: tuple[object, ...] = field(init=False)  # of what touches the same: the same
    known: dict[tuple[int, int], float] = field(init=False)  # spans and crowds, each computed once

    def __post_init__(self) -> None:
        places = {id(level): number for number, level in enumerate(self.path)}
        own = [(places[id(at)], step, n) for at, step, n in self.terms if id(at) in places]
        self.steps = sorted((abs(step), n, number) for number, step, n in own if step)
        self.alike = (self.array, *sorted((step, n) for _, step, n in self.terms))
        self.known = {}

    @property
    def streamed(self) -> bool:
        """Whether it goes along memory in the innermost loop that moves it."""
        moved = [(at, step) for step, _, at in self.steps if at < self.depth]
        return not self.scattered and max(moved, default=(0, 0))[1] <= FOLLOWED

    def bytes(self, first: int, line: int = LINE) -> float:
        """Bytes of the lines that the loops of its path from the n-th on touch."""
        most = self.array.size * self.array.dtype.itemsize + line
        return min(self.fetched(first, line), most)

    def fetched(self, first: int, line: int = LINE) -> float:
        """The same, each line as often as it is touched at random."""
        key = first, line
        if key not in self.known:
            self.known[key] = spanned(self.within(first), self.width, line)
        return self.known[key]

    def crowd(self, first: int, way: int) -> float:
        """How many lines share one place of a cache in the loops from the n-th on."""
        key = first, -way
        if key not in self.known:
            self.known[key] = crowded(self.within(first), self.width, way)
        return self.known[key]

    def leaps(self, level: Level, whole: bool) -> float:
        """How often it goes to another place in one turn of a loop; with `whole` in all of them.
        Steps of the innermost loop are all alike, but at random; those written out go side by side.
        A loop around a few lines goes on where each of them was. Of windows that overlap from turn
        to turn only what is new is fetched.
        """
        steps = [0] * len(self.path)
        for step, _, at in self.steps:
            steps[at] += step
        first = self.path.index(level) + (not whole)
        alike = self.depth - (not self.scattered)  # loops from here on do not leap
        run, count = float(self.width), 1.0
        for number in range(len(self.path) - 1, first - 1, -1):
            step, turns = steps[number], self.path[number].turns
            for onward in steps[first:number] if 0 < step < APART else ():
                if onward and onward % step == 0:
                    turns = min(turns, onward // step)
            if step <= max(run, FOLLOWED) and count <= STREAMS:
                run += step * (turns - 1)
            elif step and number < alike:
                count *= turns
        return count

    def within(self, first: int) -> list[Term]:
        """What its offset moves by in the loops of its path from the n-th on."""
        return [(step, n) for step, n, at in self.steps if at >= first]


def spanned(terms: Iterable[Term], width: int, line: int = LINE) -> float:
    """Bytes of the lines that offsets reach which move by `terms`.

    ``8 rows of 4096 bytes, 16 elements of 4 in each  ->  8 lines``
    ``windows of 7 rows at every second row, 112 of them  ->  229 rows``
    """
    run, count = float(width), 1.0
    row, rows = 0, 1.0
    for step, turns in sorted(t for t in terms if t[0]):
        if step <= max(run, line):
            run += step * (turns - 1)
        elif row and step < APART and step % row == 0 and step <= rows * row:
            rows += step // row * (turns - 1)
        else:
            count *= rows
            row, rows = step, turns
    count *= rows
    return count * max(line, run + (line / 2 if count > 1 and run % line else 0))


def crowded(terms: Iterable[Term], width: int, way: int) -> float:
    """How many lines share one place of a cache whose places repeat after `way` bytes.

    ``32 rows 18 KB apart, in a cache of 4 KB a way  ->  16 in each of 2 places``
    """
    run, count, places = float(width), 1.0, 1.0
    for step, turns in sorted(t for t in terms if t[0]):
        if step <= max(run, LINE):
            run += step * (turns - 1)
        else:
            count *= turns
            places *= min(turns, way // gcd(step, way))
    lines = -(-run // LINE)
    return count * lines / max(1.0, min(way / LINE, places * lines))


def union(accesses: Iterable[Access], level: Level, line: int = LINE) -> dict[Array, float]:
    """Bytes of each array that one turn of a loop touches."""
    alike: dict[tuple[object, ...], float] = {}
    for access in accesses:
        size = access.bytes(access.path.index(level) + 1, line)
        alike[access.alike] = max(alike.get(access.alike, 0.0), size)
    spans: dict[Array, float] = {}
    for (array, *_), size in alike.items():
        assert isinstance(array, Array)
        most = array.size * array.dtype.itemsize
        spans[array] = min(spans.get(array, 0.0) + size, max(most, line))
    return spans


def fitting(access: Access, capacity: float, way: int, line: int = LINE) -> int | None:
    """The outermost loop of whose turns each fits; None where not even the innermost's does."""
    for number, level in enumerate(access.path):
        if level.footprint(line) > capacity:
            continue
        if not way or access.crowd(number + 1, way) <= capacity / way:
            return number
    return None


def _kept(access: Access, number: int, capacity: float, line: int) -> bool:
    """Whether a line at random is there when it is touched again: all that is touched until then
    fits. ``4 KB of 400 KB a turn, beside 4 KB of another array: after 100 turns, 800 KB``
    """
    turns = access.array.size * access.array.dtype.itemsize / access.bytes(number + 1, line)
    return turns * access.path[number].footprint(line) <= capacity


def missed(
    accesses: Iterable[Access], capacity: float, way: int = 0, line: int = LINE
) -> dict[Access, Miss]:
    """What each access fetches, or writes, from beyond a cache of so many bytes, whose places
    repeat after `way`; 0: anything may lie anywhere. Its lines have so many bytes: pages are those
    of the cache of their addresses.

    What several read of one array in one turn of the loop that fits comes once. The outermost
    loop repeats the whole: what fits there is in the cache already.
    """
    misses: dict[Access, Miss] = {}
    first: dict[tuple[object, ...], float] = {}
    for access in accesses:
        place = fitting(access, capacity, way, line)
        if place == 0:
            continue
        number = len(access.path) - 1 if place is None else place
        level, inner = access.path[number], number + (place is None)
        executions = 1.0
        for outer in access.path[:number]:
            executions *= outer.turns * outer.share
        again = access.scattered and not _kept(access, number, capacity, line)
        size = (access.fetched if again else access.bytes)(inner, line)
        executions *= level.share * (level.turns if place is None else 1.0)
        key = access.array, id(level), access.write
        before = first.get(key, 0.0)
        now = max(before, size)
        first[key] = now
        if now > before:
            share = (now - before) / now * executions
            waited = line == LINE and not access.write
            leaps = access.leaps(level, place is not None) if waited else 0.0
            misses[access] = Miss(now * share, min(leaps, now / LINE) * share)
    return misses


def gradual(
    accesses: Sequence[Access], cache: Memory, shares: Sequence[float]
) -> dict[Access, Miss]:
    """What comes from beyond a cache, which keeps these shares of it in equal parts."""
    misses: dict[Access, Miss] = {}
    for share in shares:
        for access, missing in missed(accesses, cache.bytes * share, cache.way).items():
            misses[access] = misses.get(access, Miss()).plus(missing, 1 / len(shares))
    return misses


def translated(accesses: Sequence[Access], memories: Iterable[Memory]) -> dict[Access, float]:
    """Nanoseconds until addresses are known whose pages are not among those that a memory keeps.

    ``784 rows 2 KB apart, two a page, 64 pages kept  ->  392 in each turn of what reads all``
    """
    waits: dict[Access, float] = {}
    for memory in memories:
        kept = memory.page * memory.pages
        for access, miss in missed(accesses, kept, line=memory.page).items() if kept else ():
            waits[access] = waits.get(access, 0.0) + miss.bytes / memory.page * memory.translate
    return waits


def stepped(step: int, turns: float, divisor: int) -> float:
    """Turns of ``(step v) // divisor``, by their number."""
    return max(1.0, abs(step) * turns / divisor)


def cycled(step: int, turns: float, divisor: int) -> float:
    """Values of ``(step v) % divisor``."""
    return min(turns, divisor / gcd(abs(step) or 1, divisor))
