"""A layered layout: every node below what it reads, few crossings.

    a -> b -> d, a -> c -> d   =>   a: row 0; b, c: row 1, places 0 and 1; d: row 2

Source: Sugiyama, Tagawa, Toda, Methods for Visual Understanding of Hierarchical System Structures,
IEEE Transactions on Systems, Man, and Cybernetics 11 (1981): rows by the longest way, order within
a row by the mean place of the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

Below = Sequence[Sequence[int]]
SWEEPS = 4  # orders improved downwards and upwards; more change little


def layered(below: Below) -> list[tuple[int, int]]:
    """Row and place in the row of each node. `below`: the nodes that each one reads.

    Only a read of a smaller number counts, so any graph has a layout.
    """
    sources = [[s for s in dict.fromkeys(reads) if s < n] for n, reads in enumerate(below)]
    readers: list[list[int]] = [[] for _ in sources]
    for n, reads in enumerate(sources):
        for s in reads:
            readers[s].append(n)
    row = _rows(sources, readers)
    place = _places(row)
    for sweep in range(SWEEPS):
        near = sources if sweep % 2 == 0 else readers
        _sort(row, place, near)
    return list(zip(row, place, strict=True))


def _rows(sources: Below, readers: Below) -> list[int]:
    """The longest way down to each node; what reads nothing stands just above its first reader."""
    row: list[int] = []
    for reads in sources:
        row.append(max((row[s] + 1 for s in reads), default=0))
    for n, reads in enumerate(sources):
        if not reads and readers[n]:
            row[n] = max(0, min(row[r] for r in readers[n]) - 1)
    return row


def _places(row: Sequence[int]) -> list[int]:
    """Places in the rows by number."""
    count: dict[int, int] = {}
    place = []
    for r in row:
        place.append(count.get(r, 0))
        count[r] = place[-1] + 1
    return place


def _sort(row: Sequence[int], place: list[int], near: Below) -> None:
    """Give each row the order of the mean places of its neighbours; ties keep their order."""
    members: dict[int, list[int]] = {}
    for n, r in enumerate(row):
        members.setdefault(r, []).append(n)
    for r in sorted(members):
        middle = {n: _mean([place[s] for s in near[n]], place[n]) for n in members[r]}
        for at, n in enumerate(sorted(members[r], key=lambda n: (middle[n], place[n]))):
            place[n] = at


def _mean(places: Sequence[int], own: int) -> float:
    return sum(places) / len(places) if places else own
