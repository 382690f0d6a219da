"""In which order a tensor that reads itself is computed: weights of axes, from distances of reads.

    f[i, j] = .. f[i-1, j] .. f[i, j-1] ..      distances (1, 0), (0, 1)      time i + j

A read at distance d needs ``w . d >= 1``: its cell is older, by that many steps. All cells of one
time ``w . i`` are independent. Of all whole weights that do, those of the fewest steps are taken.
Source: Lamport, The parallel execution of DO loops, 1974 (the hyperplane method).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import permutations, product

from pullback.algebra.affine import affine
from pullback.algebra.bounds import bounds
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, Take, upper

LARGEST = 8  # of weights that are tried in every combination; larger ones only axis after axis
MANY = 1 << 12  # combinations

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Tensor `reader` reads tensor `source`, `distances` cells before along each axis.

    None where that is not bounded: the axis cannot be ordered.
    """

    reader: int
    source: int
    take: Take
    distances: tuple[Interval | None, ...]

    @classmethod
    def of(cls, reader: int, source: int, take: Take, axes: Sequence[Axis]) -> Link:
        pairs = zip(axes, take.indices, strict=True)
        return cls(reader, source, take, tuple(_distance(a, at, axes) for a, at in pairs))

    def steps(self, weights: Sequence[int]) -> Interval | None:
        """How many steps before, at least and at most; None where that is not known."""
        low = high = 0
        for weight, distance in zip(weights, self.distances, strict=True):
            if weight == 0:
                continue
            if distance is None:
                return None
            ends = [weight * d for d in distance]
            low, high = low + min(ends), high + max(ends)
        return low, high


def _distance(axis: Axis, at: Expr, axes: Sequence[Axis]) -> Interval | None:
    """Between which numbers ``axis - at`` lies; None where other axes or data move it."""
    form = affine(E.subtract(axis, at))
    low = high = form.const
    for term, factor in form.terms:
        if not isinstance(term, Axis) or term in axes:
            return None
        ends = [factor * b for b in bounds(term)]
        low, high = low + min(ends), high + max(ends)
    return low, high


@dataclass(frozen=True, slots=True)
class Order:
    """Times are ``weights . cell``. `lead`: the axis, of weight 1 or -1, that a time settles.

    `turn`: the tensors in the order in which they are computed at one time. `window`: how many
    steps before the oldest read is.
    """

    weights: tuple[int, ...]
    lead: int
    turn: tuple[int, ...]
    window: int

    def count(self, shape: Sequence[Extent]) -> int:
        """Steps, for the largest extents."""
        return 1 + sum(abs(w) * (upper(e) - 1) for w, e in zip(self.weights, shape, strict=True))

    @property
    def skewed(self) -> bool:
        """Whether more than one axis is ordered, so that a time has cells outside of the box."""
        return sum(w != 0 for w in self.weights) > 1


def order(links: Sequence[Link], shape: Sequence[Extent], tensors: int) -> Order | None:
    """The order of the fewest steps; None where there is none."""
    best: Order | None = None
    for weights in _candidates(links, len(shape)):
        candidate = _ordered(weights, links, shape, tensors)
        if candidate is not None and (best is None or candidate.count(shape) < best.count(shape)):
            best = candidate
    return best


def _candidates(links: Sequence[Link], rank: int) -> Iterator[tuple[int, ...]]:
    """Weights to try, small ones first: 0 for an axis that no read moves along, or any amount."""
    choices: list[list[int]] = []
    reach = min(LARGEST, 1 + max((_reach(links, n) for n in range(rank)), default=0))
    for axis in range(rank):
        along = [link.distances[axis] for link in links]
        free = all(d == (0, 0) for d in along) or any(d is None for d in along)
        choices.append([0] if free else sorted(range(-reach, reach + 1), key=abs))
    while _combinations(choices) > MANY:
        longest = max(choices, key=len)
        del longest[-2:]
    yield from product(*choices)
    yield from _one_after_another(links, [n for n, c in enumerate(choices) if len(c) > 1], rank)


def _one_after_another(
    links: Sequence[Link], moving: Sequence[int], rank: int
) -> Iterator[tuple[int, ...]]:
    """Weights of nested loops: a step of an axis outweighs every read along those inside of it.

    Where any order exists, one of these is one; axes that nobody needs for it have weight 0.
    """
    for count in range(1, len(moving) + 1):
        for axes in permutations(moving, count):
            for signs in product((1, -1), repeat=count):
                weights = [0] * rank
                inner = 0
                for axis, sign in zip(reversed(axes), signs, strict=True):
                    weights[axis] = sign * (1 + inner)
                    inner += abs(weights[axis]) * _reach(links, axis)
                yield tuple(weights)


def _reach(links: Sequence[Link], axis: int) -> int:
    """How far any read goes along an axis."""
    known = [d for link in links if (d := link.distances[axis]) is not None]
    return max((max(map(abs, d)) for d in known), default=0)


def _combinations(choices: Sequence[Sequence[int]]) -> int:
    count = 1
    for one in choices:
        count *= len(one)
    return count


def _ordered(
    weights: tuple[int, ...], links: Sequence[Link], shape: Sequence[Extent], tensors: int
) -> Order | None:
    """What `weights` make of it; None where a cell would need one that is not older."""
    units = [n for n, w in enumerate(weights) if abs(w) == 1]
    if not units:
        return None
    same: dict[int, set[int]] = {n: set() for n in range(tensors)}
    window = 1
    for link in links:
        steps = link.steps(weights)
        if steps is None or steps[0] < 0 or (steps[0] == 0 and steps[1] > 0):
            return None
        if steps == (0, 0):
            same[link.reader].add(link.source)
        window = max(window, steps[1])
    try:
        turn = tuple(TopologicalSorter(same).static_order())
    except CycleError:
        return None
    lead = max(units, key=lambda n: (upper(shape[n]), n))
    return Order(weights, lead, turn, window)


def time_of(weights: Sequence[int], place: Sequence[Expr], shape: Sequence[Extent]) -> Expr:
    """The step of a cell, counted from 0: ``w . place``, backwards axes from their last cell."""
    time: Expr = E.index(0)
    for weight, at, extent in zip(weights, place, shape, strict=True):
        if weight < 0:
            last = E.Add(E.extent_expr(extent), E.index(-1))
            time = E.Add(time, E.Mul(E.subtract(last, at), E.index(-weight)))
        elif weight > 0:
            time = E.Add(time, E.Mul(at, E.index(weight)))
    return time
