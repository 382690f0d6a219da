"""The order in which a product of several operands is summed: the one of fewest multiplications.

Of up to `ALL` operands every order is looked at, by their subsets; of more the two that take least
come first, again and again. A step takes as many multiplications as there are values of its names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

Names = frozenset[object]
ALL = 6  # 3^6 steps are compared


def order(terms: Sequence[Names], out: Names, sizes: Mapping[object, int]) -> list[tuple[int, int]]:
    """Pairs of places, each a step: both are taken away, and their product comes last."""
    if len(terms) <= 2:
        return [(0, 1)] * (len(terms) - 1)
    return (
        _places(_best(terms, out, sizes), len(terms))
        if len(terms) <= ALL
        else _greedy(list(terms), out, sizes)
    )


def left(terms: Sequence[Names], inside: Names, out: Names) -> Names:
    """Of the names of a product those that others, `terms`, or the result still ask for."""
    return inside & out.union(*terms)


def _work(names: Names, sizes: Mapping[object, int]) -> int:
    return prod(sizes[n] for n in names)


Steps = list[tuple[int, int]]  # pairs of sets of operands, a bit each


def _best(terms: Sequence[Names], out: Names, sizes: Mapping[object, int]) -> Steps:
    """Every set of operands by its cheapest two parts; of equal ones the first."""
    whole = (1 << len(terms)) - 1
    kept: dict[int, Names] = {}
    for own in range(1, whole + 1):
        inside = frozenset[object]().union(*(t for n, t in enumerate(terms) if own >> n & 1))
        others = [t for n, t in enumerate(terms) if not own >> n & 1]
        kept[own] = left(others, inside, out)
    best: dict[int, tuple[int, Steps]] = {1 << n: (0, []) for n in range(len(terms))}
    for own in range(1, whole + 1):
        part = (own - 1) & own
        while part:
            rest = own ^ part
            if part > rest:
                work = best[part][0] + best[rest][0] + _work(kept[part] | kept[rest], sizes)
                if own not in best or work < best[own][0]:
                    best[own] = work, [*best[part][1], *best[rest][1], (part, rest)]
            part = (part - 1) & own
    return best[whole][1]


def _places(steps: Steps, count: int) -> Steps:
    """Sets of operands as places in a list from which each step takes two."""
    listed = [1 << n for n in range(count)]
    made: Steps = []
    for a, b in steps:
        first, second = sorted((listed.index(a), listed.index(b)))
        made.append((first, second))
        listed = [s for n, s in enumerate(listed) if n not in (first, second)] + [a | b]
    return made


def _greedy(listed: list[Names], out: Names, sizes: Mapping[object, int]) -> Steps:
    """The step of fewest multiplications, of equal ones that of the smaller product, first."""
    made: Steps = []
    while len(listed) > 1:
        rated = []
        for a, b in combinations(range(len(listed)), 2):
            others = [t for n, t in enumerate(listed) if n not in (a, b)]
            inside = listed[a] | listed[b]
            product = left(others, inside, out)
            rated.append((_work(inside, sizes), _work(product, sizes), a, b, product))
        _, _, a, b, product = min(rated, key=lambda r: r[:4])
        made.append((a, b))
        listed = [t for n, t in enumerate(listed) if n not in (a, b)] + [product]
    return made
