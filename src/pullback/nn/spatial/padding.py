"""Padding under torch's names: a constant, a mirror, the edge, or the other end.

``y[i] = x[i - before]`` inside; outside one more affine read for each side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pullback.errors import ShapeError, UnsupportedError
from pullback.ir.expr import Extent
from pullback.nn.base.build import written
from pullback.nn.base.module import Module
from pullback.nn.base.space import Ints, each, literal, padded
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import where
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show

MODES = ("constant", "reflect", "replicate", "circular")


@shaped("input[...]", where="int(pad) < 9223372036854775808")
def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """`pad` holds (before, after) of the last axis, then of the one before it, and so on.

    Raises: UnsupportedError for another mode, ShapeError for a pad that does not fit.

    Example:
        >>> F.pad(pb.tensor([1.0, 2.0]), (1, 2))
        Tensor([0., 1., 2., 0., 0.], dtype=float32)
    """
    if mode not in MODES:
        raise UnsupportedError(f"mode={mode!r}", help=f"one of {MODES}", code="E312")
    rank = len(input.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise ShapeError(f"pad {tuple(pad)} of {show(input.value.shape)}", code="E126")
    ends = {rank - 1 - n // 2: (pad[n], pad[n + 1]) for n in range(0, len(pad), 2)}
    ends = {axis: both for axis, both in ends.items() if any(both)}
    if mode == "constant":
        return _constant(input, ends, 0.0 if value is None else value)
    for axis, (before, after) in ends.items():
        if mode == "circular":  # what is cut off is no part of the circle
            cut = (min(before, 0), min(after, 0))
            input = _constant(input, {axis: cut}, 0.0) if any(cut) else input
            before, after = max(before, 0), max(after, 0)
        if before or after:
            input = _extended(input, axis, before, after, mode)
    return input


def _constant(input: Tensor, ends: dict[int, tuple[int, int]], value: float) -> Tensor:
    """`value` all around; a negative width cuts."""
    shape: list[Any] = list(input.shape)
    for axis, (before, after) in ends.items():
        shape[axis] = _grown(input.shape[axis], before, after)

    def body(*i: Any) -> Any:
        place, tests = list(i), []
        for axis, (before, after) in ends.items():
            place[axis] = i[axis] - before
            if before > 0:
                tests.append(place[axis] >= 0)
            if after > 0:
                tests.append(i[axis] < shape[axis] - after)
        return padded(tests, input[tuple(place)], value)

    return written(shape, body, name="pad")


def _grown(extent: Extent, before: int, after: int) -> int:
    """Raises: ShapeError where nothing is left, UnsupportedError for a symbolic extent."""
    extent_after = literal("pad", (extent,))[0] + before + after
    if extent_after < 0:
        raise ShapeError(f"pad {(before, after)} of {extent} elements", code="E126")
    return extent_after


def _extended(input: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis continued at both sides. Raises: ShapeError where it is too short for it."""
    extent = literal("pad", (input.shape[axis],))[0]
    most = {"reflect": extent - 1, "circular": extent}.get(mode, max(before, after))
    if not extent or max(before, after) > most:
        raise ShapeError(f"{mode} pad {(before, after)} of {extent} elements", code="E126")
    shape = list(input.shape)
    shape[axis] = _grown(extent, before, after)

    def body(*i: Any) -> Any:
        def at(place: Any) -> Any:
            return input[(*i[:axis], place, *i[axis + 1 :])]

        place = i[axis] - before
        low = {"reflect": -place, "replicate": 0, "circular": place + extent}[mode]
        last = extent - 1
        high = {"reflect": 2 * last - place, "replicate": last, "circular": place - extent}[mode]
        element = at(place)
        if after > 0:
            element = where(place >= extent, at(high), element)
        return where(place < 0, at(low), element) if before > 0 else element

    return written(shape, body, name=f"{mode}_pad")


# --- modules -------------------------------------------------------------------------------------


class _Pad(Module):
    """A pad of so many axes of space; one number stands for every side."""

    space: ClassVar[int]
    mode: ClassVar[str]

    def __init_subclass__(cls, space: int, mode: str = "constant", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.space, cls.mode = space, mode

    value: float = 0.0

    def __init__(self, padding: Ints) -> None:
        super().__init__()
        self.padding = each(padding, 2 * self.space, "padding")

    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _Constant(_Pad, space=0):
    """A pad by `value`."""

    def __init__(self, padding: Ints, value: float) -> None:
        super().__init__(padding)
        self.value = value


class ZeroPad1d(_Pad, space=1):
    """Zeros around the last axis: ``y[.., i] = x[.., i - left]`` inside, 0 outside.

    Example:
        >>> nn.ZeroPad1d(1)(pb.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[0.0, 1.0, 2.0, 3.0, 0.0]]
    """


class ZeroPad2d(_Pad, space=2):
    """Zeros around the last two axes: ``y[.., i] = x[.., i - left]`` inside, 0 outside.

    Example:
        >>> nn.ZeroPad2d(1)(pb.ones((1, 2, 3, 3))).shape
        (1, 2, 5, 5)
    """


class ZeroPad3d(_Pad, space=3):
    """Zeros around the last three axes: ``y[.., i] = x[.., i - left]`` inside, 0 outside.

    Example:
        >>> nn.ZeroPad3d(1)(pb.ones((1, 2, 3, 3, 3))).shape
        (1, 2, 5, 5, 5)
    """


class ConstantPad1d(_Constant, space=1):
    """`value` around the last axis.

    Example:
        >>> nn.ConstantPad1d(1, 7.0)(pb.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[7.0, 1.0, 2.0, 3.0, 7.0]]
    """


class ConstantPad2d(_Constant, space=2):
    """`value` around the last two axes.

    Example:
        >>> nn.ConstantPad2d(1, 7.0)(pb.ones((1, 2, 3, 3))).shape
        (1, 2, 5, 5)
    """


class ConstantPad3d(_Constant, space=3):
    """`value` around the last three axes.

    Example:
        >>> nn.ConstantPad3d(1, 7.0)(pb.ones((1, 2, 3, 3, 3))).shape
        (1, 2, 5, 5, 5)
    """


class ReflectionPad1d(_Pad, space=1, mode="reflect"):
    """The last axis continued by its mirror image, the edge not repeated.

    Example:
        >>> nn.ReflectionPad1d(1)(pb.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[2.0, 1.0, 2.0, 3.0, 2.0]]
    """


class ReflectionPad2d(_Pad, space=2, mode="reflect"):
    """The last two axes continued by their mirror image, the edge not repeated.

    Example:
        >>> nn.ReflectionPad2d(1)(pb.ones((1, 2, 3, 3))).shape
        (1, 2, 5, 5)
    """


class ReflectionPad3d(_Pad, space=3, mode="reflect"):
    """The last three axes continued by their mirror image, the edge not repeated.

    Example:
        >>> nn.ReflectionPad3d(1)(pb.ones((1, 2, 3, 3, 3))).shape
        (1, 2, 5, 5, 5)
    """


class ReplicationPad1d(_Pad, space=1, mode="replicate"):
    """The last axis continued by the element at the edge.

    Example:
        >>> nn.ReplicationPad1d(1)(pb.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[1.0, 1.0, 2.0, 3.0, 3.0]]
    """


class ReplicationPad2d(_Pad, space=2, mode="replicate"):
    """The last two axes continued by the element at the edge.

    Example:
        >>> nn.ReplicationPad2d(1)(pb.ones((1, 2, 3, 3))).shape
        (1, 2, 5, 5)
    """


class ReplicationPad3d(_Pad, space=3, mode="replicate"):
    """The last three axes continued by the element at the edge.

    Example:
        >>> nn.ReplicationPad3d(1)(pb.ones((1, 2, 3, 3, 3))).shape
        (1, 2, 5, 5, 5)
    """


class CircularPad1d(_Pad, space=1, mode="circular"):
    """The last axis continued by its other end.

    Example:
        >>> nn.CircularPad1d(1)(pb.tensor([[1.0, 2.0, 3.0]])).tolist()
        [[3.0, 1.0, 2.0, 3.0, 1.0]]
    """


class CircularPad2d(_Pad, space=2, mode="circular"):
    """The last two axes continued by their other end.

    Example:
        >>> nn.CircularPad2d(1)(pb.ones((1, 2, 3, 3))).shape
        (1, 2, 5, 5)
    """


class CircularPad3d(_Pad, space=3, mode="circular"):
    """The last three axes continued by their other end.

    Example:
        >>> nn.CircularPad3d(1)(pb.ones((1, 2, 3, 3, 3))).shape
        (1, 2, 5, 5, 5)
    """
