"""How many vectors of sums are in flight, where each lane has a sum of its own: by price.

``y[j] = sum[k] x[k, j]  ->  (unroll.0, 8)``: eight vectors of j read whole lines of a row of x
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.config import Ints
from pullback.ir.expr import upper
from pullback.ir.graph import Reduce
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.schedule.choices import UNROLLS, Choices, choices_of
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Schedule, Way


def in_flight(kernel: Kernel, target: Target, chosen: Choices) -> Choices:
    """`chosen` and, of each loop over lanes around sums, the vectors of the lowest price.

    Sums along the lanes stay as they are: how many there are is the order that they add up in.
    """
    if kernel.tiling is not None:
        return chosen
    loops = list(_loops(kernel, choose(kernel, target, chosen), target))
    least = _ns(kernel, target, chosen) if loops else 0.0
    for lead, counts in loops:
        own = dict(chosen)
        for count in counts:
            given = choices_of({**own, f"unroll.{lead}": count})
            ns = _ns(kernel, target, given)
            if ns < least:
                chosen, least = given, ns
    return chosen


def _ns(kernel: Kernel, target: Target, chosen: Choices) -> float:
    return price(kernel, scheduled(kernel, target, chosen), target, ROUGH).ns


def _loops(kernel: Kernel, own: Schedule, target: Target) -> Iterator[tuple[int, Ints]]:
    """First stages of sweeps whose lanes have sums of their own, vectors that they may have: sums
    take up to half of the registers.
    """
    for step in own.steps:
        stages = [kernel.stages[n] for n in step.stages]
        sums = sum(isinstance(stage.form, Reduce) for stage in stages)
        lane = step.vector
        if step.way is not Way.SWEEP or not sums or lane is None:
            continue
        if any(lane in stage.over for stage in stages):
            continue
        vectors = -(-upper(stages[0].extents[lane]) // target.lanes(4))
        most = min(vectors, target.vectors // (2 * sums))
        yield step.lead, tuple(n for n in UNROLLS if 1 < n <= most)
