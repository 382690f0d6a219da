"""What a program and the host hand each other: checked batches in, read-only snapshots out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pullback.errors import FeedError, InvalidIR, PullbackError
from pullback.ir.expr import Dim, upper
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, HostCall, Receive

Array = np.ndarray[Any, Any]

OUTSIDE = "a feeder ended outside of a loop"


def box(variable: Variable) -> tuple[int, ...]:
    """The shape of a variable's memory: the upper bounds of its extents."""
    return tuple(upper(e) for e in variable.shape)


def shown(variable: Variable, array: Array, sizes: Mapping[str, int]) -> Array:
    """The part of an array of upper bounds that symbolic extents leave."""
    ends = [sizes[e.name] if isinstance(e, Dim) else e for e in variable.shape]
    places: list[Any] = [slice(end) for end in ends]
    return array[(*places, ...)]


def call_host(
    call: HostCall, boxes: Sequence[Array], sizes: Mapping[str, int], made: Sequence[Array] = ()
) -> list[Array]:
    """What a function of the host makes of its sources, which it must not write to. One that writes
    itself is given `made`, the memory of its targets.

    Raises: InvalidIR where that is not what was declared; what the function raises, with a note
    that names the line of the operation.
    """
    given = [shown(v, a, sizes) for v, a in zip(call.sources, boxes, strict=True)]
    for array in given:
        array.flags.writeable = False
    try:
        with np.errstate(all="ignore"):
            results = list(call.function(*given, *made) or made)
    except PullbackError:
        raise  # says its line itself
    except BaseException as error:
        error.add_note(_noted(f"the function of the host for {call.name}", call))
        raise
    for target, array in zip(call.targets, results, strict=True):
        wanted = tuple([sizes[e.name] if isinstance(e, Dim) else e for e in target.shape])
        if array.shape != wanted or array.dtype != target.dtype.numpy:
            raise InvalidIR(f"{call.name} gave {array.dtype}{list(array.shape)} for {target}")
    return results


def call_feeder(feed: Feed) -> tuple[Array, ...] | None:
    """The next batch, checked; None where the callback raises StopIteration.

    Raises: FeedError for a wrong number, shape or type; whatever else the callback raises.
    """
    try:
        result = feed.callback()
    except StopIteration:
        return None
    except BaseException as error:
        error.add_note(_noted("the callback of the feeder", feed))
        raise
    parts = (result,) if feed.single else tuple(result)
    if len(parts) != len(feed.targets):
        raise FeedError(
            f"the feeder returned {len(parts)} arrays, {len(feed.targets)} were declared",
            origin=feed.origin,
        )
    return tuple(_checked(p, t, feed) for p, t in zip(parts, feed.targets, strict=True))


def _checked(part: Any, target: Variable, feed: Feed) -> Array:
    wanted = target.dtype.numpy
    if isinstance(part, bool | int | float | list):
        part = np.asarray(part, wanted)
    array = np.asarray(part)
    if array.shape != box(target):
        raise FeedError(
            f"the feeder returned shape {array.shape}, declared was {box(target)}",
            origin=feed.origin,
            code="E411",
        )
    if array.dtype != wanted:
        raise FeedError(
            f"the feeder returned {array.dtype}, declared was {target.dtype}",
            origin=feed.origin,
            help=f"return array.astype({wanted.name!r}) or declare dtype={array.dtype.name!r}",
            code="E412",
        )
    return array


def call_receiver(receive: Receive, arrays: tuple[Array, ...]) -> None:
    """Hand over snapshots that nobody else writes to."""
    for array in arrays:
        array.setflags(write=False)
    try:
        receive.callback(*arrays)
    except BaseException as error:
        error.add_note(_noted("the callback of the receiver", receive))
        raise


def _noted(what: str, item: Feed | Receive | HostCall) -> str:
    """Who raised, and the user's line that asked for it."""
    place = "" if item.origin is None else f" at\n{item.origin.excerpt()}"
    return f"raised by {what}{place}"
