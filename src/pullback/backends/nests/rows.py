"""Few rows across memory by register tiles, where that costs less than dot products.

``16 x 8192 of 64 terms, 2 MiB of keys: by dot products  ->  (dots.0, 8)``
"""

from __future__ import annotations

from contextlib import suppress

from pullback.backends.nests.price import price
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.contraction import DOT_ROWS
from pullback.schedule.schedule import Way


def few_rows(kernel: Kernel, target: Target, chosen: Choices) -> Choices:
    """`chosen`, and no dot products of more rows than pay in a cache, by the price of the kernel
    (attention of 2 heads of 8192 positions, one Zen 3 core: 1043 ms by dot products, 716 by tiles).
    """
    if kernel.tiling is not None:
        return chosen
    own = scheduled(kernel, target, chosen)
    for step in own.steps:
        if step.way is not Way.DOTS:
            continue
        given = choices_of({**dict(chosen), f"dots.{step.lead}": DOT_ROWS})
        with suppress(OptionError):
            other = scheduled(kernel, target, given)
            if other != own and price(kernel, other, target).ns < price(kernel, own, target).ns:
                chosen, own = given, other
    return chosen
