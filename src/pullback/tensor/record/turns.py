"""Turns at states: of several threads, one at a time writes to a state, and nobody looks meanwhile.

A call of a compiled function that assigns states has them to itself from when it looks for their
memory until it ends. Whoever else assigns one of them, or reads one, waits in line. Values that
were taken before stay as they are: a call copies what somebody still holds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from threading import get_ident

from pullback.backends.host.rings import Server
from pullback.backends.host.system import process

NONE: frozenset[int] = frozenset()


class Turn:
    """A place in the line: whose it is, the states it looks at and writes to, by `id`.

    Made without arguments, for calls that nobody keeps waiting must be quick.
    """

    __slots__ = ("owner", "reads", "writes")
    owner: int
    reads: frozenset[int]
    writes: frozenset[int]

    def meets(self, other: Turn) -> bool:
        """Whether one writes to what the other looks at or writes to."""
        apart = self.writes.isdisjoint(other.writes) and self.writes.isdisjoint(other.reads)
        return not (apart and self.reads.isdisjoint(other.writes))


class Turns:
    """The line, in the order in which its members came."""

    def __init__(self) -> None:
        self.line: list[Turn] = []
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        process.tell(self)

    def begin(self, reads: frozenset[int], writes: frozenset[int]) -> Turn:
        """Wait until nobody writes to what is looked at, or looks at what is written, until `end`.

        A thread does not wait for itself, nor one that calls back for the one it calls back for;
        nor does either wait for who waits for it: who has a turn takes the next one right after.
        """
        turn = Turn()
        turn.owner, turn.reads, turn.writes = get_ident(), reads, writes
        with self._lock:
            alone = not self.line
            self.line.insert(0 if alone else self._place(turn), turn)
        if not alone:
            self._wait(turn)
        return turn

    def looked(self, turn: Turn) -> None:
        """What was to be looked at is held now."""
        with self._moved:
            turn.reads = NONE
            self._moved.notify_all()

    def end(self, turn: Turn) -> None:
        """The next ones may go."""
        with self._lock:
            self.line.remove(turn)
            if self.line:
                self._moved.notify_all()

    def _wait(self, turn: Turn) -> None:
        try:
            with self._moved:
                while self._barred(turn):
                    self._moved.wait()
        except BaseException:
            self.end(turn)
            raise

    def _barred(self, turn: Turn) -> bool:
        """Whether somebody before it has what it wants."""
        earlier = self.line[: self.line.index(turn)]
        met = [other for other in earlier if other.meets(turn)]
        return bool(met) and not set(_masters(met)) <= set(_masters([turn]))

    def _place(self, turn: Turn) -> int:
        """Behind what its thread, or the one it calls back for, has already; else at the end."""
        (mine,) = _masters([turn])
        own = [n for n, master in enumerate(_masters(self.line)) if master == mine]
        return own[-1] + 1 if own else len(self.line)

    def forked(self) -> None:
        """A child: the threads that wrote are not there."""
        self.line = []
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)

    def ended(self) -> None:
        """Nobody waits for an end."""


def _masters(line: Sequence[Turn]) -> list[int]:
    """The threads on whose behalf these were taken."""
    threads = threading.enumerate()
    masters = {t.ident: t.master for t in threads if isinstance(t, Server)}
    return [masters.get(turn.owner, turn.owner) for turn in line]


turns = Turns()
