"""What a launch costs before it has loops: a roofline of its outer axes and tile, nanoseconds.

Work that does not depend on an outer axis repeats in every tile. What a tile keeps is near; the
first touch of a variable is far; later tiles find it near if a tile's needs fit L2. Axes are
numbered, sets of them bit masks.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from pullback.config import Cap, Ints, Pair
from pullback.cost.shares import of_joined
from pullback.ir.target import Target

# Every second power of two is tried as a number of coordinates of a tile.
TILE_POWER_STEP: Cap = 2
# Square tiles are tried over more coordinates than two to this power.
SQUARE_POWER: Cap = 13


@dataclass(slots=True)
class Demand:
    """What a launch does, by the axes that each part depends on: operations, bytes.

    `sizes`: extents of the axes. `narrow`: work of maps whose last axis an axis cuts: lanes need
    neighbours along it. `runs`: elements beyond L2 that are read and written in runs which an axis
    cuts. `partial`: bytes of sums that each thread keeps for itself where one of the first axes is
    cut, by the axes that they have.
    """

    sizes: list[int]
    vector: Counter[int] = field(default_factory=Counter)
    near: Counter[int] = field(default_factory=Counter)
    narrow: Counter[Pair] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    partial: Counter[Pair] = field(default_factory=Counter)
    reads: list[Pair] = field(default_factory=list)
    products: list[tuple[int, list[Pair], int]] = field(default_factory=list)
    written: int = 0

    def cut(self, on: list[int | None], last: int, count: int) -> None:
        """Note what lies along axis `last` of a stage, for each outer axis that runs along it."""
        self.runs.update({n: count for n, axis in enumerate(on) if axis == last})

    def spread(self, cut: set[int]) -> list[Pair]:
        """Bytes of the sums whose terms are spread over the axes `cut`, and the axes they have."""
        return [
            (size, own)
            for (over, own), size in self.partial.items()
            if any(over >> i & 1 for i in cut)
        ]

    @property
    def masks(self) -> list[int]:
        """The sets of axes that parts depend on."""
        masks = [*self.vector, *self.near]
        masks += [mask for _, mask in self.reads]
        masks += [mask for _, mask in self.partial]
        masks += [mask for _, _, mask in self.products]
        return list(dict.fromkeys(masks))


def far_rate(footprint: int, target: Target) -> float:
    """Bytes a nanosecond of what another launch wrote, where a program has so many bytes.

    Half of the last cache is one program's.
    """
    rates = target.profile.tables["whole"]
    if footprint <= target.l2:
        return rates["near"]
    return rates["cache" if footprint <= target.l3 // 2 else "memory"]


def tiles(sizes: list[int], outer: Ints) -> list[dict[int, int]]:
    """Tile extents to try: powers of two, the last axis filled first; squares of the last two."""
    choices = []
    coordinates = math.prod(sizes[i] for i in outer)
    most = math.ceil(math.log2(max(1, coordinates)))
    for power in {*range(0, most + 1, TILE_POWER_STEP), max(0, most - 1)}:
        tile = {}
        rest = 2**power
        for i in reversed(outer):
            tile[i] = min(sizes[i], rest)
            rest = -(-rest // tile[i])
        choices.append(tile)
        if len(outer) > 1 and power % 2 == 0 and most > SQUARE_POWER:
            side = 2 ** (power // 2)
            choices.append({i: min(sizes[i], side if i in outer[-2:] else 1) for i in outer})
    return choices


def times(
    demand: Demand,
    outer: Ints,
    tile: dict[int, int],
    rate: float,
    target: Target,
) -> list[tuple[float, int]]:
    """(nanoseconds, scratch bytes) of one tiling, on one thread and on all."""
    counts = {i: -(-demand.sizes[i] // tile[i]) for i in outer}
    tiles = math.prod(counts.values())
    again = {}
    for mask in demand.masks:
        apart = [count for i, count in counts.items() if not mask >> i & 1]
        again[mask] = math.prod(apart)
    cut = {i for i, n in tile.items() if n < demand.sizes[i]}
    lanes = target.lanes(4)
    rates = target.profile.tables["whole"]
    launch = target.profile.tables["launch"]
    work = sum(v * again[m] for m, v in demand.vector.items()) / rates["work"]
    # Of a row that tiles cut, each piece costs its vectors and one to enter.
    work += sum(
        v * again[m] * ((-(-tile[i] // lanes) + 1) * lanes / tile[i] - 1) / rates["work"]
        for (i, m), v in demand.narrow.items()
        if i in cut and v > rates["parallel"] * rates["work"]
    )
    runs = sum(n * rates["run"] / tile[i] for i, n in demand.runs.items() if i in cut)
    for flops, groups, mask in demand.products:
        rows = min(
            local * math.prod(n if on >> i & 1 else 1 for i, n in tile.items())
            for on, local in groups
        )
        speed = rates["product_flops"] * of_joined(target.profile, rows)
        work += flops * again[mask] / speed
    scratch = sum(b * again[m] for m, b in demand.near.items()) // tiles
    sums = demand.spread(cut)
    added = sum(b * again[m] for b, m in sums if b > target.l1)  # near ones wait for nobody
    held = scratch + (added + sum(b * again[m] for b, m in demand.reads)) / tiles
    again_rate = rates["near"] if held <= target.l2 else rate
    ways = []
    for used in sorted({1, min(int(launch["threads"]), tiles)}):
        first = sum(b * min(used, again[m]) for b, m in demand.reads) + demand.written
        first += int(runs)
        if used > 1:
            first += 2 * used * sum(b for b, _ in sums)
        more = sum(b * max(0, again[m] - used) for b, m in demand.reads)
        more += 2 * scratch * tiles
        busy = max(work, first / rate + more / again_rate)
        if used > 1 and busy < rates["parallel"]:
            continue
        rounds = -(-tiles // used)
        begin = launch["fork" if used > 1 else "launch"]
        adds = 2 * added / again_rate
        ways.append(((busy + adds) / used * (rounds * used / tiles) + begin, scratch))
    return ways
