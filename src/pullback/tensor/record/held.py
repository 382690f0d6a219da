"""Variables whose contents exist: where these lie, and who may write to them.

A `Held` is made for every result of every call, so it is cheap: bytes, an address and a `Kind`
that all of one shape and type share. Arrays over the bytes are made when somebody looks.
"""

from __future__ import annotations

import functools
import math
from ctypes import addressof
from sys import getrefcount
from typing import Any, cast

import numpy as np

from pullback.backends.host.system import LINE, address, block, room, spare
from pullback.errors import Origin
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.expr import Size
from pullback.ir.graph import Value, Variable, topological, variables
from pullback.ir.node import walk

Array = np.ndarray[Any, Any]

SMALL = 1 << 15  # bytes up to which clearing takes less than asking NumPy: 1.0 us and 1.5
LARGE = 1 << 20  # bytes of results from which memory is worth keeping: beyond what malloc keeps


class Kind:
    """A shape with a type. There is one of each: compared, and looked up, by identity."""

    __slots__ = ("dtype", "numpy", "room", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.numpy = dtype.numpy
        self.size = math.prod(shape) * dtype.itemsize
        self.room = room(self.size) if self.size <= SMALL else None


_kinds: dict[tuple[tuple[int, ...], DType], Kind] = {}


@functools.cache
def kind_of(shape: tuple[int, ...], dtype: DType) -> Kind:
    """The one kind of a shape and type; of threads that ask for it at once, one makes it."""
    return _kinds.setdefault((shape, dtype), Kind(shape, dtype))


class Looks:
    """The last time that the contents of a variable were asked for: what a function does then
    depends on more than the kinds of its arguments.

    An object that is new each time: of two threads that count, one may undo what the other did.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = object()


looks = Looks()


@functools.cache
def _kind_like(shape: tuple[int, ...], numpy: np.dtype[Any]) -> Kind:
    return kind_of(shape, D.dtype(numpy))


class Held(Variable):
    """A variable with its contents: bytes of its own, or an array that belongs to the user."""

    __slots__ = ("at", "kind", "owned", "raw")
    at: int
    kind: Kind
    owned: bool
    raw: Any  # bytes in an array of NumPy's, or small ones in one of ctypes'

    def __init__(
        self, name: str, kind: Kind, raw: Any, at: int, owned: bool, origin: Origin | None = None
    ) -> None:
        self.name = name
        self.shape = kind.shape
        self.dtype = kind.dtype
        self.origin = origin
        self.kind = kind
        self.raw = raw
        self.at = at
        self.owned = owned

    @property
    def array(self) -> Array:
        """The contents; only who holds the variable alone may write to them."""
        looks.last = object()
        return self.laid

    @property
    def laid(self) -> Array:
        """The contents for who looks at nothing but how they lie."""
        kind, raw = self.kind, self.raw
        if not self.owned:
            return cast(Array, raw)
        start = self.at - (addressof(raw) if kind.room else address(raw))
        view: Array = np.ndarray(kind.shape, kind.numpy, raw, start)
        return view

    @property
    def alone(self) -> bool:
        """Whether nobody holds an array over the bytes."""
        return self.owned and getrefcount(self.raw) <= _BYTES


class _Large(Held):
    """Contents whose memory serves again once nobody refers to it."""

    __slots__ = ()

    def __del__(self) -> None:
        if getrefcount(self.raw) <= _BYTES:
            spare.give((self.raw, self.at))


class _Slot:
    """What holds one object and nothing else."""

    __slots__ = ("raw",)
    raw: object


def _lone() -> tuple[int, int]:
    """What `getrefcount` says of what a slot alone refers to: asked of the slot, and of a local.

    The second is 3, and 2 from Python 3.14 on, where a call borrows what a local refers to. One
    too few only costs a copy; one too many writes to what somebody holds.
    """
    slot = _Slot()
    slot.raw = object()
    of_slot = getrefcount(slot.raw)
    value = slot.raw
    return of_slot, getrefcount(value)


_BYTES, ALONE = _lone()


def fresh(name: str, kind: Kind, origin: Origin | None = None) -> Held:
    """A variable with memory of its own, not filled yet."""
    if kind.room is not None:
        raw = kind.room()
        return Held(name, kind, raw, (addressof(raw) + LINE - 1) & -LINE, True, origin)
    if kind.size < LARGE:
        return Held(name, kind, *block(kind.size), True, origin)
    return _Large(name, kind, *spare.take(kind.size), True, origin)


def copied(array: Array, name: str, origin: Origin | None = None) -> Held:
    """A variable that holds a copy of `array`."""
    copy = fresh(name, _kind_like(array.shape, array.dtype), origin)
    copy.array[...] = array
    return copy


def shared(array: Array, name: str, origin: Origin | None = None) -> Held:
    """A variable over the memory of `array` where its layout allows; it is never written to."""
    kept = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    kind = _kind_like(kept.shape, kept.dtype)
    return Held(name, kind, kept, address(kept), False, origin)


def computable(value: Value) -> bool:
    """Whether it can be looked at: it stands on no argument, extent or place that is to come."""
    if not all(isinstance(v, Held) for v in variables([value])):
        return False
    open_ended = (n for d in topological([value]) for n in walk(d.roots) if isinstance(n, Size))
    return next(open_ended, None) is None
