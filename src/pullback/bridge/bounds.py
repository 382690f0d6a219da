"""Bounds of sizes that the user told: a size beyond them is an error, not another program.

    mark_dynamic(x, 0, min=2, max=512); f(x)      ->      f(y) of 600 rows raises

PyTorch itself refuses a marked tensor that is not within its own bounds. Of one that is not marked
it would trace again, and nobody would hear that what was told does not hold.
"""

from __future__ import annotations

import sys
from typing import Any

from torch._guards import CompileContext, TracingContext
from torch.fx.experimental.symbolic_shapes import StrictMinMaxConstraint

from pullback.bridge.programs import caller
from pullback.errors import ShapeError

Bounds = dict[tuple[str, int], tuple[int, int]]
"""By the name of an argument and its axis."""


class Told:
    """What was told of each function that PyTorch compiles, by its number there."""

    def __init__(self) -> None:
        self._frames: dict[Any, Bounds] = {}

    def reset(self) -> None:
        """Forget, as PyTorch forgets its functions."""
        self._frames.clear()

    def check(self) -> None:
        """Raises: ShapeError where the graph to come has a size beyond what was told before."""
        context, compiled = TracingContext.try_get(), CompileContext.try_get()
        if context is None or compiled is None or context.fake_mode is None:
            return
        number = getattr(compiled.compile_id, "frame_id", None)
        shapes = context.fake_mode.shape_env
        if number is None or shapes is None:
            return
        told = self._frames.setdefault(number, {})
        for tracked in shapes.tracked_fakes or ():
            limits = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
            name = str(tracked.source.name)
            for axis, limit in enumerate(limits):
                _check(told, (name, axis), tracked.fake.shape[axis], limit)


def _check(told: Bounds, place: tuple[str, int], size: Any, limit: Any) -> None:
    """Note the bounds of an axis, or ask those that were told before.

    Of 0 and 1 PyTorch makes graphs of their own: the least that it can be told is 2.
    """
    if isinstance(limit, StrictMinMaxConstraint):
        lower = int(limit.vr.lower)
        told[place] = (lower if lower > 2 else 0, int(min(limit.vr.upper, sys.maxsize)))
        return
    number = size if isinstance(size, int) else size.node.hint
    least, most = told.get(place, (number, number))
    if not least <= number <= most:
        name, axis = place
        what = f"axis {axis} of {name} has the size {number}, which was told to be {least}..{most}"
        help = f"mark_dynamic(x, {axis}, max={number}), wide enough for every call"
        raise ShapeError(what, origin=caller(), help=help, code="E122")


TOLD = Told()
