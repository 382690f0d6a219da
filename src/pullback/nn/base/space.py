"""What layers over space share: axes counted from the end, windows, sizes.

A window along one axis: output ``y`` and tap ``k`` meet input ``y stride + k dilation - padding``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce, update_wrapper
from inspect import signature
from operator import and_
from typing import Any, Concatenate, ParamSpec, TypeVar

from pullback.errors import ShapeError, UnsupportedError
from pullback.ir.expr import Extent
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import where
from pullback.tensor.values.elementwise import show

T = TypeVar("T")
P = ParamSpec("P")
Ints = int | Sequence[int]


def of_space(function: Callable[Concatenate[int, P], T], space: int) -> Callable[P, T]:
    """`function` told how many axes are space. ``conv2d = of_space(conv, 2)``"""

    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(space, *args, **kwargs)

    shape = signature(partial(function, space))
    update_wrapper(made, function)
    vars(made).pop("__wrapped__")
    made.__name__ = made.__qualname__ = f"{function.__name__}{space}d"  # for messages and `help`
    made.__signature__ = shape  # type: ignore[attr-defined]  # for `help` and `Layer`
    return made


def each(value: T | Sequence[T], space: int, what: str) -> tuple[T, ...]:
    """One value for each axis of space. Raises: ShapeError for another number of them."""
    listed = tuple(value) if isinstance(value, Sequence) else (value,) * space
    if len(listed) == 1:
        listed *= space
    if len(listed) != space:
        raise ShapeError(f"{what} {value} for {space} axes", code="E134")
    return listed


def split(name: str, input: Tensor, space: int, lead: int = 1) -> tuple[Any, tuple[int, ...]]:
    """The extents before space, and those of space; without a batch there is one axis less.

    Raises: ShapeError for another number of axes, UnsupportedError for a symbolic extent.
    """
    before = len(input.shape) - space
    if before not in (lead, lead + 1):
        raise ShapeError(
            f"{name} of {show(input.value.shape)}",
            help=f"it takes {space} axes of space behind {lead} or {lead + 1} others",
            code="E111",
        )
    return input.shape[:before], literal(name, input.shape[before:])


def sizes(name: str, tensor: Tensor) -> tuple[int, ...]:
    """All extents as numbers. Raises: UnsupportedError for a symbolic one."""
    return literal(name, tensor.shape)


def literal(name: str, shape: Sequence[Extent]) -> tuple[int, ...]:
    """Extents as numbers. Raises: UnsupportedError for a symbolic one."""
    for extent in shape:
        if not isinstance(extent, int):
            raise UnsupportedError(
                f"{name} over the symbolic axis {extent}",
                help="the batch may be symbolic, space may not",
                code="E315",
            )
    return tuple(e for e in shape if isinstance(e, int))


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides along an axis of `extent` elements, `after` of padding behind it.

    Of a symbolic extent how many places there are is not known here.
    """

    extent: Extent
    size: int
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """How many elements a window spans."""
        return self.dilation * (self.size - 1) + 1

    def _places(self, ceil: bool) -> int:
        """How many places there are; below 1 where the window does not fit."""
        (extent,) = literal("a window", [self.extent])
        room = extent + self.before + self.after - self.reach
        steps = -(-room // self.stride) if ceil else room // self.stride
        if ceil and steps * self.stride >= extent + self.before:
            return steps
        return steps + 1

    def count(self, ceil: bool = False) -> int:
        """How many places a window takes; with `ceil` a last one may hang over the end."""
        places = self._places(ceil) if self.stride > 0 else 0
        if places < 1 or self.size < 1:
            raise ShapeError(
                f"a window of {self.reach} over {self.extent} elements, padded by "
                f"{self.before} and {self.after}, stride {self.stride}",
                code="E126",
            )
        return places

    def place(self, y: Any, k: Any) -> Any:
        """The element that tap `k` of window `y` meets; outside where the padding is."""
        return y * self.stride + k * self.dilation - self.before

    def inside(self, y: Any, k: Any) -> list[Any]:
        """The conditions under which that is an element; none where it always is."""
        conditions = []
        if self.before > 0:
            conditions.append(self.place(y, k) >= 0)
        if not isinstance(self.extent, int):
            return [*conditions, self.place(y, k) < self.extent]
        # Padding alone may fill the last ones.
        places = max(self._places(False), self._places(True))
        last = (places - 1) * self.stride + self.reach - 1 - self.before
        if last >= self.extent:
            conditions.append(self.place(y, k) < self.extent)
        return conditions


@dataclass(frozen=True, slots=True)
class Met:
    """An element and a tap that meet where all tests hold."""

    place: Any
    tap: Any
    tests: list[Any]


@dataclass(frozen=True, slots=True)
class Taps:
    """What `Window` turned round: which elements y and taps k meet at a place t of the input.

    ``y stride + k dilation - padding = t``. Of the taps every m-th is met, ``m = stride /
    gcd(stride, dilation)``: step j is the tap ``first(t) + m j``.
    """

    extent: Extent
    size: int
    stride: int = 1
    padding: int = 0
    more: int = 0
    dilation: int = 1

    @property
    def count(self) -> int:
        """The extent of what the windows slid over."""
        (own,) = literal("taps", [self.extent])
        reach = self.dilation * (self.size - 1) + 1
        extent = (own - 1) * self.stride - 2 * self.padding + reach + self.more
        if extent < 1 or self.size < 1:
            raise ShapeError(f"{self.size} taps: a result of {extent} elements", code="E126")
        return extent

    @property
    def apart(self) -> int:
        """The distance of the taps that meet one place."""
        return self.stride // math.gcd(self.stride, self.dilation)

    @property
    def steps(self) -> int:
        """How many taps meet one place, at most."""
        return -(-self.size // self.apart)

    def meet(self, t: Any, j: Any) -> Met:
        """The element and tap of step `j` at place `t`."""
        shared, apart = math.gcd(self.stride, self.dilation), self.apart
        room = t + self.padding
        if self.dilation == 1:
            first, start = room % apart, room // apart
        else:
            inverse = pow(self.dilation // shared, -1, apart)
            first = room // shared * inverse % apart if apart > 1 else 0
            start = (room - first * self.dilation) // self.stride
        place = start - j * (self.dilation // shared)
        tap = first + j * apart
        tests = [place >= 0, place < self.extent]
        if shared > 1:
            tests.append(room % shared == 0)
        if self.size % apart:
            tests.append(tap < self.size)
        return Met(place, tap, tests)


def padded(conditions: Sequence[Any], value: Any, other: float = 0.0) -> Any:
    """`value` where all conditions hold, else `other`; `value` is not read there."""
    return where(reduce(and_, conditions), value, other) if conditions else value
