"""What the extents of a run make of a program's memory, which is planned by their upper bounds.

    x (n, 8), n in 1..512, a run of 20   ->  24 rows of 8, not 512
    x (8, n), given as rows of 20        ->  copied on the device, rows are 512 apart there

Memory is as large as the largest run so far wanted. Sizes are rounded up, eight to each power of
two, so that what is planned for a run serves others of about its size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

import numpy as np

from pullback.backends.cuda.driver import Driver, Side
from pullback.backends.cuda.exchange import Held
from pullback.backends.cuda.memory import Resident
from pullback.backends.cuda.pool import pool_of
from pullback.backends.host.exchange import box
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.memory.plan import Buffer, Plan, fitted

Sizes = Mapping[str, int]


def leading(variable: Variable, sizes: Sizes) -> int:
    """Bytes of a variable: rows as far apart as bounds say, as many as `sizes` says, if it does."""
    rows = [sizes.get(e.name, e.hi) if isinstance(e, Dim) else e for e in variable.shape[:1]]
    return prod((*rows, *box(variable)[1:])) * variable.dtype.itemsize


def lies(variable: Variable, shape: tuple[int, ...]) -> bool:
    """Whether rows of an array of this shape are as far apart as those of the variable."""
    return shape[1:] == box(variable)[1:]


class Planned:
    """The plans of a program, by extents; those that are `entire` have their bounds in each."""

    def __init__(self, whole: Plan, entire: Collection[Variable]) -> None:
        self._whole = whole
        self._entire = entire
        shapes = [b.variable.shape for b, _ in whole.placed if b.variable is not None]
        every = {e for shape in shapes for e in shape[:1] if isinstance(e, Dim)}
        self._bounds = {e.name: e.hi for e in every}
        self._plans: dict[tuple[int, ...], Plan] = {}

    def of(self, sizes: Sizes) -> Plan:
        """That of a run."""
        if not self._bounds:
            return self._whole
        most = {name: min(above(sizes[name]), hi) for name, hi in self._bounds.items()}
        key = tuple(most.values())
        made = self._plans.get(key)
        if made is None:
            made = self._plans[key] = fitted(self._whole, lambda b: self._size(b, most))
        return made

    def _size(self, buffer: Buffer, sizes: Sizes) -> int:
        own = buffer.variable
        return buffer.size if own is None or own in self._entire else leading(own, sizes)


def above(size: int) -> int:
    """The least of eight sizes to each power of two that is no smaller."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


class Rooms:
    """Memory by what lies there; None is the arena. What grows moves, once the run before, which
    `done` marks the end of, is over.
    """

    def __init__(self, driver: Driver, held: Held, done: int) -> None:
        self._driver, self._held, self._done = driver, held, done
        self._own: dict[Variable | None, int] = {}

    def wanted(self, what: Variable | None, size: int, planned: str) -> int:
        """The address of so many bytes. Raises: DeviceError."""
        pool, old = pool_of(self._driver), self._own.get(what)
        if old is not None:
            if size <= pool.size(old):
                return old
            self._driver.reached(self._done)
            self._held.end(self._own.pop(what))
        own = self._own[what] = self._held.keep(pool.give, pool.take(size, planned))
        return own

    def at(self, what: Variable) -> int | None:
        """Where it lies; None: it has no memory of its own."""
        return self._own.get(what)


Move = tuple[Side, Side, tuple[int, int, int]]


def boxed(variable: Variable, own: int, array: Resident) -> Iterator[Move]:
    """What is copied between the memory of a variable and an array, whose rows follow one another:
    both sides; slices, rows and bytes of each.

    ``(2, 3, 4) in (2, 5, 6)  ->  rows 6 and 4 apart, 5 and 3 of them to a slice; (2, 3, 4)``
    """
    if 0 in array.shape:
        return
    kind = variable.dtype.itemsize
    (width, pitch), (height, rows), (depth, slices), *outer = (
        *_groups(array.shape, box(variable)),
        *((1, 1),) * 3,
    )
    left, right = ([group[side] for group in outer[::-1]] for side in (0, 1))
    for n, place in enumerate(np.ndindex(*left)):
        over = int(np.ravel_multi_index(place, right)) * slices * rows * pitch
        wide = Side(own + over * kind, pitch * kind, rows)
        dense = Side(array.address + n * depth * height * width * kind, width * kind, height)
        yield wide, dense, (depth, height, min(width * kind, array.nbytes))


def _groups(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[tuple[int, int]]:
    """Axes that run together in both, the last first: ``(2, 3, 4) in (9, 5, 4) -> 12 of 20, ..``"""
    groups: list[tuple[int, int]] = []
    own = other = 1
    for size, most in zip(shape[::-1], whole[::-1], strict=True):
        own, other = own * size, other * most
        if size != most:
            groups.append((own, other))
            own = other = 1
    return [*groups, (own, other)] if own != 1 or not groups else groups
