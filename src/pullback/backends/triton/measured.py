"""Schedules of launches that were measured: which launch one is of, whether it still fits it."""

from __future__ import annotations

import logging
from dataclasses import astuple, replace
from math import log2
from typing import Any

from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.choose import moves
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule, parsed
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.signature import digest, kernel_digest

log = logging.getLogger("pullback")


def signature(group: Group, deterministic: bool = False) -> str:
    """A hash of all that decides a launch but its schedule: equal in every process, and for
    launches that differ only in which values they name. What may not be `deterministic`, an
    accumulating write, is another launch where it has to be.
    """
    way = f"{group.way.value} deterministic" if deterministic and group.way is Way.SCATTER else ""
    stages = tuple(replace(stage, outer=()) for stage in group.stages)
    rows = [group.rows.get(stage) for stage in group.stages]
    kernel = Kernel("", group.extents, stages)
    return digest(way or group.way.value, repr(rows), kernel_digest(kernel))


def kept(
    group: Group, best: BlockSchedule, gpu: Gpu, known: tuple[str, str] | None
) -> BlockSchedule:
    """The schedule that was measured, if one was; where it does not fit its launch that is told,
    and the `best` by its price is taken.
    """
    if known is None:
        return best
    text, source = known
    try:
        return read(group, best, gpu, text)
    except OptionError as error:
        log.warning("%s: a record is ignored: %s", source, error.what)
        return best


def read(group: Group, best: BlockSchedule, gpu: Gpu, text: str) -> BlockSchedule:
    """A schedule of a launch by its text. Raises: OptionError for one that it may not have."""
    schedule = parsed(text)
    reason = Work.of(group, gpu).refusal(schedule)
    if reason is None and not offered(group, best, schedule):
        reason = f"no moves lead there from {best}"
    if reason is not None:
        raise OptionError(f"{schedule} of a launch: {reason}", code="E381")
    return schedule


def offered(group: Group, start: BlockSchedule, schedule: BlockSchedule) -> bool:
    """Whether moves lead from one schedule of a launch to another: each number of it is one that
    the launch may have, and what no move changes, such as the precision, is the same.
    """
    while start != schedule:
        near = min(moves(group, start), key=lambda s: _apart(s, schedule), default=start)
        if _apart(near, schedule) >= _apart(start, schedule):
            return False
        start = near
    return True


def _apart(one: BlockSchedule, other: BlockSchedule) -> float:
    """How far schedules are from each other: powers of two, and what differs otherwise."""
    return sum(map(_steps, astuple(one), astuple(other)))


def _steps(one: Any, other: Any) -> float:
    numbers = type(one) is type(other) is int
    return abs(log2(max(one, 1)) - log2(max(other, 1))) if numbers else float(one != other)
