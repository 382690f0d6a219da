"""Variables whose contents lie on a device; the host has them from the first time it looks."""

from __future__ import annotations

import weakref
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pullback.backends.registry import GPU, named
from pullback.errors import AbsentError, OptionError, Origin, UnsupportedError
from pullback.ir import dtype as D
from pullback.runtime.executable import Executor, Foreign
from pullback.tensor.record.held import Held, Kind, fresh, kind_of

CPU, CUDA = "cpu", "cuda"
Array = np.ndarray[Any, Any]


def device_of(given: object) -> str:
    """The name of a device in full: ``"cpu"`` or ``"cuda:0"``. Raises: UnsupportedError."""
    name = str(given)
    if name == CPU:
        return CPU
    kind, colon, number = name.partition(":")
    if kind == CUDA and (not colon or (number.isascii() and number.isdigit())):
        return f"{CUDA}:{int(number or 0)}"
    help_ = '"cpu", "cuda" and "cuda:1" are devices; x.astype(..) makes another type'
    raise UnsupportedError(f"device {name!r}", help=help_, code="E314")


def number_of(device: str) -> int:
    """``"cuda:1" -> 1``"""
    return int(device.partition(":")[2])


class Resident(Protocol):
    """An array that lies on a device; a program is bound to it in the place of one of NumPy's."""

    lent: bool

    @property
    def device(self) -> str:
        """Where it lies."""

    def write(self, array: Array) -> Resident:
        """Copy the elements of an array there. It is done when this returns."""

    def take(self, other: Any) -> Resident:
        """Copy the elements of an array of another device there. It is done when this returns."""

    def read(self, array: Array) -> None:
        """Copy its elements to an array of the host."""

    def copy(self) -> Resident:
        """Another one with the same elements."""


@runtime_checkable
class Placing(Protocol):
    """A backend that has devices with a memory of their own."""

    def room(self, ordinal: int, shape: tuple[int, ...], kind: Any) -> Resident:
        """An array of one of its devices. Raises: DeviceError."""

    def received(self, data: Any, copy: bool | None) -> Resident:
        """Another library's array of a device, or a copy. Raises: UnsupportedError, OptionError."""

    def handed(self, own: Any, kept: object, stream: Any, version: Any, copy: bool) -> Any:
        """A DLPack capsule of an array, or of a copy. Raises: OptionError."""

    def interface_of(self, own: Any) -> dict[str, Any]:
        """What `__cuda_array_interface__` says of an array. Raises: UnsupportedError."""


@runtime_checkable
class Keeping(Protocol):
    """What runs a program on a device, and takes arrays that lie there."""

    def room(self, shape: tuple[int, ...], kind: Any) -> Resident:
        """An array of that device."""


class Away(Held):
    """A variable with its contents on a device, and a copy of them where the host looked.

    Those of memory that is lent by another library are never written to.
    """

    __slots__ = ("here", "resident")
    here: Held | None
    resident: Resident

    def __init__(self, name: str, kind: Kind, resident: Resident, origin: Origin | None = None):
        self.name, self.shape, self.dtype, self.origin = name, kind.shape, kind.dtype, origin
        self.kind, self.owned, self.resident, self.here = kind, True, resident, None

    def _copy(self) -> Held:
        if self.here is None:
            own = fresh(self.name, self.kind, self.origin)
            self.resident.read(own.laid)
            self.here = own
        return self.here

    @property
    def raw(self) -> Any:
        return self._copy().raw

    @property
    def at(self) -> int:  # type: ignore[override]
        return self._copy().at

    @property
    def alone(self) -> bool:
        """Never: who writes on the host wants memory of its own."""
        return False

    def changes(self) -> None:
        """What the host has of it is no longer so; who looked keeps what was seen."""
        self.here = None


def keeping(runner: Executor) -> Keeping | None:
    """Who keeps arrays on a device, of what runs a program."""
    own = runner.own if isinstance(runner, Foreign) else None
    return own if isinstance(own, Keeping) else None


def _devices() -> Placing:
    own = named(GPU)
    if not isinstance(own, Placing):
        raise AbsentError(f"backend {GPU!r} has no memory of a device", code="E341")
    return own


def sent(variable: Held, device: str) -> Away:
    """A variable with a copy of the contents on a device. Raises: DeviceError."""
    shape, kind = variable.kind.shape, variable.kind.numpy
    room = _devices().room(number_of(device), shape, kind)
    if isinstance(variable, Away):
        made = room.take(variable.resident)
    else:
        made = room.write(variable.laid)
    return Away(variable.name, variable.kind, made, variable.origin)


def settled_on(memory: Keeping, variable: Held) -> Away:
    """A state of a program, in memory of its own on the program's device."""
    if isinstance(variable, Away):
        resident = variable.resident.copy()
    else:
        kind = kind_of(variable.kind.shape, variable.dtype)
        resident = memory.room(kind.shape, kind.numpy).write(variable.laid)
    return Away(variable.name, variable.kind, resident, variable.origin)


def bound(variable: Held) -> Any:
    """What a program that keeps arrays on a device is given of a variable."""
    return variable.resident if isinstance(variable, Away) else variable.array


# --- other libraries

KINDS = (2, 13)  # of devices, as DLPack counts them: memory of a GPU's
PROCESSOR = (1, 0)


def place_of(device: str) -> tuple[int, int]:
    """``"cpu" -> (1, 0)``, ``"cuda:1" -> (2, 1)``"""
    return PROCESSOR if device == CPU else (KINDS[0], number_of(device))


def elsewhere(data: object) -> bool:
    """Whether another library's array lies on a device: by DLPack, or by the older interface."""
    place = getattr(data, "__dlpack_device__", None)
    return hasattr(data, INTERFACE) if place is None else place()[0] in KINDS


INTERFACE = "__cuda_array_interface__"


def received(data: Any, copy: bool | None, origin: Origin | None) -> Away:
    """A variable over another library's array. Raises: UnsupportedError, OptionError."""
    resident: Any = _devices().received(data, copy)
    kind = kind_of(resident.shape, D.dtype(resident.dtype))
    return Away("array", kind, resident, origin)


def handed(variable: Away, stream: Any, version: Any, copy: bool) -> Any:
    """A DLPack capsule of a variable, or of a copy. Raises: OptionError."""
    return _devices().handed(variable.resident, variable, stream, version, copy)


def interface_of(variable: Away, owner: object, written: bool) -> dict[str, Any]:
    """What `__cuda_array_interface__` says of a variable, which lives as long as its owner.

    Raises: OptionError for what programs write to, UnsupportedError.
    """
    if written:  # a capsule's deleter tells when it may be; this has none
        what = "the memory of a state, which programs write to"
        raise OptionError(what, help="x + 0, or DLPack", code="E324")
    told = _devices().interface_of(variable.resident)
    weakref.finalize(owner, id, variable).atexit = False
    return told
