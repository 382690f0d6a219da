"""How many vectors of sums are in flight, where each lane has a sum of its own: by price.

``y[j] = sum[k] x[k, j]  ->  (unroll.0, 8)``: eight vectors of j read whole lines of a row of x
"""

from __future__ import annotations

from math import prod

from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.config import Ints
from pullback.ir.expr import upper
from pullback.ir.graph import Reduce
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.schedule.choices import UNROLLS, Choices, choices_of
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Step, Way


def in_flight(kernel: Kernel, target: Target, chosen: Choices) -> Choices:
    """`chosen` and the vectors of the lowest price of the loop over lanes that does the most, where
    it is around sums. Work that one core does anyway is not worth the search.

    Sums along the lanes stay as they are: how many there are is the order that they add up in.
    """
    steps = choose(kernel, target, chosen).steps if kernel.tiling is None else ()
    if not steps:
        return chosen
    step = max(steps, key=lambda step: _points(kernel, step))
    counts = _counts([kernel.stages[n] for n in step.stages], step, target)
    least = _ns(kernel, target, chosen) if counts else 0.0
    if least < target.profile.rate("whole", "parallel_sweep"):
        return chosen
    own = dict(chosen)
    for count in counts:
        given = choices_of({**own, f"unroll.{step.lead}": count})
        ns = _ns(kernel, target, given)
        if ns < least:
            chosen, least = given, ns
    return chosen


def _ns(kernel: Kernel, target: Target, chosen: Choices) -> float:
    return price(kernel, scheduled(kernel, target, chosen), target, ROUGH).ns


def _points(kernel: Kernel, step: Step) -> int:
    return sum(prod(map(upper, kernel.stages[n].extents)) for n in step.stages)


def _counts(stages: list[Stage], step: Step, target: Target) -> Ints:
    """Vectors that a loop may have where its lanes have sums of their own: these take up to half of
    the registers.
    """
    sums = sum(isinstance(stage.form, Reduce) for stage in stages)
    lane = step.vector
    if step.way is not Way.SWEEP or not sums or lane is None:
        return ()
    if any(lane in stage.over for stage in stages):
        return ()
    vectors = -(-upper(stages[0].extents[lane]) // target.lanes(4))
    most = min(vectors, target.vectors // (2 * sums))
    return tuple(n for n in UNROLLS if 1 < n <= most)
