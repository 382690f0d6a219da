"""How many vectors of sums are in flight, where each lane has a sum of its own: by price.

``y[j] = sum[k] x[k, j]     ->  (unroll.0, 8)``: eight vectors of j read whole lines of a row of x
``y[i, j] = sum[k] x[i + k, j] w[k], 16 of j  ->  (abreast.0, 4)``: sums of four rows, none waits
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import prod

from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.errors import OptionError
from pullback.ir.expr import upper
from pullback.ir.graph import Reduce
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.schedule.choices import ABREAST, UNROLLS, Choices, choices_of
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Step, SweepLoops, Way


def in_flight(kernel: Kernel, target: Target, chosen: Choices) -> Choices:
    """`chosen` and the vectors of the lowest price of the loop over lanes that does the most, where
    it is around sums, then its rows. Work that one core does anyway is not worth the search.

    Sums along the lanes stay as they are: how many there are is the order that they add up in.
    """
    steps = choose(kernel, target, chosen).steps if kernel.tiling is None else ()
    if not steps:
        return chosen
    step = max(steps, key=lambda step: _points(kernel, step))
    room = _room([kernel.stages[n] for n in step.stages], step, target)
    least = _ns(kernel, target, chosen) if room else 0.0
    if least < target.profile.rate("whole", "parallel_sweep"):
        return chosen
    lane = step.vector
    assert lane is not None
    vectors = -(-upper(kernel.stages[step.lead].extents[lane]) // target.lanes(4))
    counts = [n for n in UNROLLS if 1 < n <= min(vectors, room)]
    chosen = _cheapest(kernel, target, chosen, f"unroll.{step.lead}", counts)
    made = next(s for s in scheduled(kernel, target, chosen).steps if step.lead in s.stages)
    flown = made.loops.unroll if isinstance(made.loops, SweepLoops) else room
    counts = [n for n in ABREAST if 1 < n <= room // min(vectors, flown)]
    return _cheapest(kernel, target, chosen, f"abreast.{step.lead}", counts)


def _cheapest(
    kernel: Kernel, target: Target, chosen: Choices, name: str, counts: Iterable[int]
) -> Choices:
    """`chosen`, or with the number of the lowest price, of those that the loop has."""
    prices: dict[Choices, float] = {}
    for given in (chosen, *(choices_of({**dict(chosen), name: count}) for count in counts)):
        with suppress(OptionError):
            prices[given] = _ns(kernel, target, given)
    return min(prices, key=lambda given: prices[given])


def _ns(kernel: Kernel, target: Target, chosen: Choices) -> float:
    return price(kernel, scheduled(kernel, target, chosen), target, ROUGH).ns


def _points(kernel: Kernel, step: Step) -> int:
    return sum(prod(map(upper, kernel.stages[n].extents)) for n in step.stages)


def _room(stages: list[Stage], step: Step, target: Target) -> int:
    """Vectors of each sum that half of the registers hold, where its lanes have sums of their own;
    else 0.
    """
    sums = sum(isinstance(stage.form, Reduce) for stage in stages)
    lane = step.vector
    if step.way is not Way.SWEEP or not sums or lane is None:
        return 0
    return 0 if any(lane in stage.over for stage in stages) else target.vectors // (2 * sums)
