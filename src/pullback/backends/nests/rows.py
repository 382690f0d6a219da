"""Few rows by dot products or by register tiles, by the price of the whole kernel.

``16 x 8192 of 64 terms, 2 MiB of keys: by dot products  ->  (dots.0, 8)``
``10 x 227 of 784 terms: in tiles of panels  ->  (dots.0, 16)``
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pullback.backends.nests.price import price
from pullback.errors import OptionError
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.schedule.choices import DOTS, Choices, choices_of
from pullback.schedule.contraction import DOT_ROWS, recognise
from pullback.schedule.schedule import Step, Way


def few_rows(kernel: Kernel, target: Target, chosen: Choices) -> Choices:
    """`chosen`, and each sum of products of few rows the other way where that costs less: tiles for
    dot products (attention of 2 heads of 8192 positions, one Zen 3 core: 1043 ms by dot products,
    716 by tiles), dot products for tiles whose panels few rows share (10 x 227 of 784 terms and
    what comes after it to the loss, one Zen 4 core: 87 us in tiles, 46 by dot products).
    """
    if kernel.tiling is not None:
        return chosen
    own = scheduled(kernel, target, chosen)
    for lead in [step.lead for step in own.steps if step.product is not None]:
        (step,) = (s for s in own.steps if lead in s.stages)
        for given in _others(kernel, step, chosen, target):
            with suppress(OptionError):
                other = scheduled(kernel, target, given)
                if other != own and price(kernel, other, target).ns < price(kernel, own, target).ns:
                    chosen, own = given, other
    return chosen


def _others(kernel: Kernel, step: Step, chosen: Choices, target: Target) -> Iterator[Choices]:
    """The other way for the product of a step: with its columns, or with those that it has anyway.
    Of all rows of its stage, so that what comes after it is no part of its tiles.

    ``(column.0, 0)  ->  (column.0, 0), (dots.0, 16)  and  (dots.0, 16)``
    """
    numbers, dots, column = dict(chosen), f"dots.{step.lead}", f"column.{step.lead}"
    stage = kernel.stages[step.lead]
    if step.way is Way.DOTS:
        seen = recognise(stage, target, numbers.get(column))
        most = numbers.get(dots, 0 if seen is None else seen.dots)
        if seen is None or upper(stage.shape[seen.row]) > min(most, DOT_ROWS):
            yield choices_of({**numbers, dots: DOT_ROWS})
        return
    for known in {column: numbers.get(column)}, {column: None}:
        given = {name: n for name, n in {**numbers, **known}.items() if n is not None}
        seen = recognise(stage, target, given.get(column))
        if seen is not None and seen.dots:
            caps = [n for n in DOTS if n >= upper(stage.shape[seen.row])]
            yield from (choices_of({**given, dots: n}) for n in caps[:1])
