"""A program's launches over numbered values, where a launch may be run again later.

``y = f(x); ..; use(y)  ->  y = f(x); ..; y' = f(x); use(y')``

The second run is the same kernel on the same inputs, so y' equals y bit for bit; what y takes is
free in between. Loops and branches stay as they are: a launch is repeated where it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pullback.config import Pair
from pullback.cost.facts import size_bytes
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel, renamed
from pullback.ir.program import Block
from pullback.memory.lives import Path, Touch, Walk
from pullback.memory.plan import Needs, working_bytes

Numbers = NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Row:
    """One launch: what it reads and writes, as values by number; working memory in bytes.

    `number`: its own, for good. `home`: the launch of the original program before which, or as
    which, it runs. `over`: see `Needs.over`.
    """

    number: int
    kernel: Kernel
    home: int
    path: Path
    reads: list[int]
    writes: list[int]
    working: int
    over: tuple[Pair, ...] = ()

    def pairs(self) -> list[Pair]:
        """An operand and a result that may be written over it, as values."""
        arguments = list(dict.fromkeys(self.reads + self.writes))
        return [(arguments[x], arguments[y]) for x, y in self.over]


@dataclass(eq=False, slots=True)
class Timeline:
    """Rows in order; the values by number with size (0 for state), first and last row.

    A value is `plain` if one launch makes it and only later launches of the same block use it.
    `foreign`: (place, value) of writes by feeds and loops, which happen before row `place`.
    """

    rows: list[Row]
    values: list[Variable]
    size: Numbers
    first: Numbers
    last: Numbers
    plain: list[bool]
    own: list[bool]
    foreign: list[Pair]

    @classmethod
    def of(
        cls, block: Block, state: Collection[Variable], needs: Mapping[Kernel, Needs]
    ) -> Timeline:
        """The timeline of a fused program."""
        walk = Walk.of(block)
        kept = set(state)
        values = list(walk.touches)
        names = {v: n for n, v in enumerate(values)}
        rows = [
            Row(
                n,
                kernel,
                n,
                path,
                [names[v] for v in kernel.reads],
                [names[v] for v in kernel.writes],
                working_bytes(needs.get(kernel, Needs())),
                needs.get(kernel, Needs()).over,
            )
            for n, (kernel, path) in enumerate(zip(walk.kernels, walk.paths, strict=True))
        ]
        last = max(0, len(rows) - 1)
        spans = [(0, last) if v in kept else walk.life(v) for v in values]
        touches = list(walk.touches.values())
        foreign = [
            (t.place, n) for n, own in enumerate(touches) for t in own if t.writes and not t.launch
        ]
        return cls(
            rows,
            values,
            np.array([0 if v in kept else size_bytes(v) for v in values], np.int64),
            np.array([min(first, last) for first, _ in spans], np.int64),
            np.array([min(end, last) for _, end in spans], np.int64),
            [v not in kept and _is_plain(own) for v, own in zip(values, touches, strict=True)],
            [v not in kept and _is_own(own) for v, own in zip(values, touches, strict=True)],
            foreign,
        )

    def copy(self) -> Timeline:
        """The same launches, to be changed apart."""
        rows = [replace(row, reads=list(row.reads)) for row in self.rows]
        lists = list(self.values), list(self.plain), list(self.own), list(self.foreign)
        values, plain, own, foreign = lists
        return Timeline(rows, values, self.size, self.first, self.last, plain, own, foreign)

    def place(self, number: int) -> int:
        """Where the row of a number is now."""
        return next(n for n, row in enumerate(self.rows) if row.number == number)

    def live(self) -> Numbers:
        """Bytes alive in each row: no plan can need less than the largest."""
        change = np.zeros(len(self.rows) + 1, np.int64)
        np.add.at(change, self.first, self.size)
        np.add.at(change, self.last + 1, -self.size)
        working = [row.working - self._shared(n, row) for n, row in enumerate(self.rows)]
        return np.cumsum(change)[:-1] + np.array(working, np.int64)

    def _shared(self, place: int, row: Row) -> int:
        """Bytes of results that are written over operands which end with their launch."""
        taken: dict[int, int] = {}
        for x, y in row.pairs():
            fresh = x not in taken and y not in taken.values()
            plain = fresh and self.plain[x] and self.plain[y]
            if plain and self.last[x] == place == self.first[y]:
                taken[x] = y
        return int(self.size[list(taken)].sum()) if taken else 0

    def least(self) -> int:
        """Bytes that some launch needs for itself, whatever is computed again."""
        own = [{*row.reads, *row.writes} - {y for _, y in row.pairs()} for row in self.rows]
        needed = [int(self.size[list(values)].sum()) for values in own]
        return max(n + row.working for n, row in zip(needed, self.rows, strict=True))

    def uses(self, value: int, row: Row) -> list[int]:
        """The rows that read a plain value made by `row`, in order."""
        span = range(int(self.first[value]), int(self.last[value]) + 1)
        return [n for n in span if value in self.rows[n].reads and self.rows[n] is not row]

    def repeats(self, source: int, before: int) -> bool:
        """Whether row `source` may run again before row `before`, and finds what it found."""
        row = self.rows[source]
        if row.path != self.rows[before].path or set(row.reads) & set(row.writes):
            return False
        if not all(self.own[w] for w in row.writes):
            return False
        reads = set(row.reads)
        between = (w for other in self.rows[source + 1 : before] for w in other.writes)
        foreign = (v for place, v in self.foreign if source < place <= before)
        return reads.isdisjoint(between) and reads.isdisjoint(foreign)

    def moved(self, source: int, before: int) -> list[Pair]:
        """The values that a repetition takes over, each with its last row before that."""
        row = self.rows[source]
        values = []
        for value in row.writes:
            if self.plain[value] and self.last[value] >= before:
                early = [n for n in self.uses(value, row) if n < before]
                values.append((value, max(early, default=source)))
        return values

    def repeat(self, source: int, before: int, number: int) -> None:
        """Run row `source` again before row `before`; later rows read what that makes."""
        row = self.rows[source]
        taken = self.moved(source, before)
        fresh = {w: len(self.values) + n for n, w in enumerate(row.writes)}
        ends = self.last + (self.last >= before)
        starts = self.first + (self.first >= before)
        again = np.full(len(fresh), before, np.int64)
        for value, early in taken:
            again[fresh[value] - len(self.values)] = ends[value]
            ends[value] = early
            for other in self.rows[before:]:
                if value in other.reads:
                    other.reads = [fresh[v] if v == value else v for v in other.reads]
        for value in row.reads:
            ends[value] = max(ends[value], before)
        self.size = np.concatenate([self.size, self.size[row.writes]])
        self.first = np.concatenate([starts, np.full(len(fresh), before, np.int64)])
        self.last = np.concatenate([ends, again])
        for old in row.writes:
            known = self.values[old]
            self.values.append(Variable(known.name, known.shape, known.dtype, known.origin))
            self.plain.append(self.plain[old])
            self.own.append(True)
        self.foreign = [(place + (place > before), v) for place, v in self.foreign]
        home, new = self.rows[before].home, [fresh[w] for w in row.writes]
        repeated = replace(row, number=number, home=home, reads=list(row.reads), writes=new)
        self.rows.insert(before, repeated)

    def launches(self) -> list[list[tuple[Kernel, Kernel]]]:
        """For each original launch those that take its place, with the kernels they came from."""
        instead: list[list[tuple[Kernel, Kernel]]] = [[] for _ in range(self.rows[-1].home + 1)]
        for row in self.rows:
            old, new = row.kernel.reads + row.kernel.writes, row.reads + row.writes
            names = {v: self.values[n] for v, n in zip(old, new, strict=True)}
            instead[row.home].append((renamed(row.kernel, names), row.kernel))
        return instead


def _is_own(touches: Sequence[Touch]) -> bool:
    """Whether one launch writes a value and nothing else does."""
    writes = [t for t in touches if t.writes]
    return len(writes) == 1 and writes[0].launch


def _is_plain(touches: Sequence[Touch]) -> bool:
    return (
        _is_own(touches)
        and touches[0].writes
        and all(t.launch and t.path == touches[0].path for t in touches)
    )
