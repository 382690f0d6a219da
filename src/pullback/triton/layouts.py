"""Whether the blocks of all programs are one product of matrices, of arrays with strides.

    total[b, m, n] = sum[k](left[b, m, k] * right[b, k, n])

The places that are loaded and stored are computed for all programs and steps of a call, and rows
and columns are told by them: their places are evenly apart, each (b, m, n) is stored once, and each
k is in one step. Blocks may lie beyond what is stored: nothing comes from behind there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pullback.config import frozen
from pullback.triton.indices import ROOM, Array, Indices, Parts
from pullback.triton.nodes import Value

_TURN, _STEP = 0, 1  # what the lanes of a block's axis go with: its program, or the loop's step
_ROLES = ((_TURN, _STEP), (_STEP, _TURN), (_TURN, _TURN))


@frozen
class Strided:
    """Where a matrix lies: ``offset + b * strides[0] + i * strides[1] + j * strides[2]``."""

    offset: int
    extents: tuple[int, int, int]
    strides: tuple[int, int, int]

    @property
    def reach(self) -> int:
        """The place of the last element."""
        pairs = zip(self.extents, self.strides, strict=True)
        return self.offset + sum((n - 1) * by for n, by in pairs)

    @property
    def apart(self) -> bool:
        """Whether no two elements of a matrix share a place; all of a batch may share it."""
        pairs = list(zip(self.strides, self.extents, strict=True))
        reach = 0
        for stride, extent in sorted(pairs[self.strides[0] == 0 :]):
            if extent > 1 and stride <= reach:
                return False
            reach += stride * (extent - 1)
        return True


@frozen
class Layout:
    """Where the matrices of a product lie; `total` is told by where it is stored."""

    left: Strided
    right: Strided
    total: Strided


@frozen
class _Places:
    """Places of blocks, or truths: of the turn alone, along the first axis, along the second."""

    alone: Array
    first: Array
    second: Array

    def by_turn(self, axis: int) -> Array:
        """The truths along an axis, of each turn."""
        along: Array = (self.first, self.second)[axis] & self.alone[:, None]
        return along


@frozen
class _Line:
    """Places that are evenly apart, and the number of each one."""

    offset: int
    stride: int
    extent: int
    numbers: Array


def laid(
    indices: Indices,
    left: Sequence[Value],
    right: Sequence[Value],
    stored: Sequence[Value],
    turned: tuple[bool, bool],
) -> Layout | str:
    """Where the matrices lie whose blocks have these pointers and masks; or why it is not known.

    A block that is `turned` is multiplied with its axes the other way around.
    """
    if not len(indices.turns["x"]) or not indices.steps:
        return "it is empty"
    shapes = [v[0].type.shape for v in (left, right, stored)]
    if max(len(indices.turns["x"]), indices.steps) * max(map(max, shapes)) > ROOM:
        return "it has more blocks than are looked at"
    blocks = list(zip((left, right, stored), _ROLES, (*turned, False), strict=True))
    at = [p for v, r, t in blocks if (p := _split(indices, v[0], v[:1], r, t)) is not None]
    live = [p for v, r, t in blocks if (p := _split(indices, v[0], v[1:], r, t)) is not None]
    if len(at) + len(live) < 6:
        return "rows and columns of its blocks are not apart"
    rows, columns = live[2].by_turn(0), live[2].by_turn(1)
    kept = rows.any(1) & columns.any(1)
    inner = live[0].second & live[1].first
    if not kept.any() or not inner.any():
        return "it is empty"
    beyond = rows & ~live[0].by_turn(0), columns & ~live[1].by_turn(1)
    if any(more[kept].any() for more in beyond):
        return "rows or columns are stored that are not loaded"
    terms = _evenly(at[0].second[inner])
    other = None if terms is None else _along(terms, at[1].first[inner])
    if terms is None or other is None or terms.extent < inner.sum():
        return "its terms are not evenly apart, each once"
    tiles = _Tiles(
        (at[0].alone[kept], at[1].alone[kept], at[2].alone[kept]),
        (at[0].first[kept], at[1].second[kept]),
        (at[2].first[kept], at[2].second[kept]),
        (rows[kept], columns[kept]),
        (terms, other),
    )
    made = tiles.laid(batch=False) or tiles.laid(batch=True)
    return made or "its blocks are no tiles of matrices, each of one program"


def _split(
    indices: Indices, pointer: Value, of: Sequence[Value], roles: tuple[int, int], turned: bool
) -> _Places | None:
    """A block's places, or its mask, by what the parts go with; of no mask, what always holds."""
    truth = of[:1] != (pointer,)
    parts: Parts | None = indices.parts(of[0]) if of else ()
    if parts is None:
        return None
    counts = len(indices.turns["x"]), indices.steps
    by, kind = (np.logical_and, bool) if truth else (np.add, np.int64)
    shape = pointer.type.shape[:: -1 if turned else 1]
    alone = np.full(counts[_TURN], truth, kind)
    lanes = [np.full((counts[role], n), truth, kind) for role, n in zip(roles, shape, strict=True)]
    for part in parts:
        own = part.swapaxes(2, 3) if turned else part
        wide = [size > 1 for size in own.shape]
        goes = [axis for axis in (0, 1) if wide[2 + axis]]
        if wide[_STEP] and not goes and _STEP in roles:
            goes = [roles.index(_STEP)]
        if (
            len(goes) > 1
            or any(wide[1 - roles[axis]] for axis in goes)
            or (wide[_STEP] and not goes)
        ):
            return None
        if not goes:
            alone = by(alone, own.reshape(-1))
        for axis in goes:
            lanes[axis] = by(lanes[axis], own.reshape(own.shape[roles[axis]], -1))
    return _Places(alone, *lanes)


@frozen
class _Tiles:
    """Blocks of all turns: what is of a turn alone, of `left` the rows and of `right` the columns,
    rows and columns of the store, and which of them are stored; `terms` are the two of each k.
    """

    alone: tuple[Array, Array, Array]
    loaded: tuple[Array, Array]
    stored: tuple[Array, Array]
    live: tuple[Array, Array]
    terms: tuple[_Line, _Line]

    def laid(self, batch: bool) -> Layout | None:
        """The matrices, where the turn alone tells rows and columns, or one of a batch."""
        sides = zip(self.loaded, self.alone, self.live, strict=False)
        m, n = (_evenly(at if batch else at + alone[:, None], live) for at, alone, live in sides)
        if m is None or n is None:
            return None
        sets = [_sets(line, live) for line, live in zip((m, n), self.live, strict=True)]
        pairs = zip((m, n), self.stored, self.live, strict=True)
        ends = [end for line, at, live in pairs if (end := _within(line, at, live)) is not None]
        if len(ends) < 2 or sets[0] is None or sets[1] is None:
            return None
        one = _evenly(self.alone[2] + ends[0][1] + ends[1][1])
        if one is None or (one.extent > 1 and not batch):
            return None
        left, right = (_along(one, alone if batch else 0 * alone) for alone in self.alone[:2])
        if left is None or right is None or not self.once((one, m, n), (sets[0], sets[1])):
            return None
        a, b = self.terms
        extents = one.extent, m.extent, n.extent
        return Layout(
            _strided((left, m, a)),
            _strided((right, b, n)),
            Strided(one.offset, extents, (one.stride, ends[0][0], ends[1][0])),
        )

    def once(self, lines: tuple[_Line, _Line, _Line], sets: tuple[Array, Array]) -> bool:
        """Whether each element is stored, by one turn."""
        one, m, n = lines
        tiles = (one.numbers * m.extent + sets[0]) * n.extent + sets[1]
        sizes = self.live[0].sum(1) * self.live[1].sum(1)
        whole = one.extent * m.extent * n.extent
        return len(np.unique(tiles)) == len(tiles) and int(sizes.sum()) == whole


def _strided(lines: tuple[_Line, _Line, _Line]) -> Strided:
    b, i, j = lines
    offset = b.offset + i.offset + j.offset
    return Strided(offset, (b.extent, i.extent, j.extent), (b.stride, i.stride, j.stride))


def _evenly(at: Array, live: Array | None = None) -> _Line | None:
    """Places as a line, where they are evenly apart; those that are not `live` have any number."""
    own = np.unique(at if live is None else at[live])
    steps = np.unique(np.diff(own))
    if len(steps) > 1:
        return None
    stride = int(steps[0]) if len(steps) else 1
    return _Line(int(own[0]), stride, len(own), (at - own[0]) // stride)


def _along(line: _Line, at: Array) -> _Line | None:
    """Other places as a line of the same numbers."""
    least, most = line.numbers.argmin(), line.numbers.argmax()
    stride = int(at[most] - at[least]) // max(1, line.extent - 1)
    offset = int(at[least])
    if stride < 0 or (at != offset + stride * line.numbers).any():
        return None
    return _Line(offset, stride, line.extent, line.numbers)


def _within(line: _Line, at: Array, live: Array) -> tuple[int, Array] | None:
    """How far what is stored is apart by the numbers of a line, and what is left at each turn."""
    every = np.arange(len(at))
    first = live.argmax(1)
    moved, steps = (v - v[every, first][:, None] for v in (at, line.numbers))
    wide = live & (steps != 0)
    if not wide.any() and line.extent > 1:
        return None
    place = np.unravel_index(wide.argmax(), wide.shape)
    stride = int(moved[place] // steps[place]) if wide.any() else 1
    if stride < 1 or (moved != stride * steps)[live].any():
        return None
    return stride, at[every, first] - stride * line.numbers[every, first]


def _sets(line: _Line, live: Array) -> Array | None:
    """Which set of the numbers of a line each turn has, where no two sets share one."""
    own = np.where(live, line.numbers, -1)
    least = np.where(live, line.numbers, line.extent).min(1)
    _, place, ids = np.unique(least, return_index=True, return_inverse=True)
    if (own[place][ids] != own).any() or live[place].sum() != line.extent:
        return None
    return ids
