"""Arrays of a device between libraries: DLPack and `__cuda_array_interface__`, both ways.

What comes in is read where it lies, after an event of the stream that makes it. What goes out is
waited for by the stream of who takes it; nobody is to write to what is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from pullback.backends.cuda import capsule as C
from pullback.backends.cuda.capsule import Lying, refused
from pullback.backends.cuda.driver import DEFAULT, Driver
from pullback.backends.cuda.memory import Lent, Resident, stream_of
from pullback.errors import OptionError
from pullback.ir import dtype as D

Opening = Callable[[int], Driver]
NOBODY_WAITS = -1  # of a stream: who takes it has seen to that
INTERFACES = (2, 3)  # versions of `__cuda_array_interface__`


# --- in


def received(data: Any, opened: Opening, copy: bool | None) -> Resident:
    """An array of another library's, on the device where it lies: its memory, or a copy of it.

    Raises: UnsupportedError for what cannot be read there, OptionError where it had to be copied
        and was not to be, DeviceError.
    """
    interface = None if hasattr(data, "__dlpack__") else data.__cuda_array_interface__
    ordinal = data.__dlpack_device__()[1] if interface is None else _device(interface, opened)
    on = opened(ordinal)
    with on.here():
        if interface is None:
            stream = stream_of(on)
            lying, ready = C.taken(_asked(data, stream), ordinal), on.event()
            on.mark(ready, stream)
        else:
            lying, ready = _told(interface, ordinal, data), _ready(on, interface)
    made = Resident(on, lying.shape, lying.dtype, lent=Lent(lying.address, ready, lying.delete))
    unaligned = lying.address % lying.dtype.itemsize
    if not made.nbytes:
        return Resident(on, lying.shape, lying.dtype)
    if unaligned and copy is False:
        what = (
            f"elements of {lying.dtype} at {lying.address:#x}, which is no multiple of their size"
        )
        raise OptionError(f"{what}: sharing needs a copy", code="E324")
    return made.copy() if copy or unaligned else made


def _asked(data: Any, stream: int) -> Any:
    """The capsule, whose elements are there for who comes after what the stream has by now.

    Raises: UnsupportedError for what its library refuses.
    """
    try:
        try:
            return data.__dlpack__(stream=stream, max_version=C.VERSION)
        except TypeError:  # it is of before versions
            return data.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise refused(f"{type(data).__name__}: {problem}") from problem


def _device(interface: Mapping[str, Any], opened: Opening) -> int:
    """The device of an address; what is empty need have none."""
    on, address = opened(0), interface["data"][0]
    with on.here():
        return on.ordinal_of(address) if address else 0


def _ready(on: Driver, interface: Mapping[str, Any]) -> int:
    """An event of the stream that an interface names; 0: it says that nobody need wait."""
    stream = interface.get("stream")
    if stream is None:
        return 0
    event = on.event()
    on.mark(event, stream)
    return event


def _told(interface: Mapping[str, Any], ordinal: int, owner: object) -> Lying:
    """What an interface says. Raises: UnsupportedError."""
    version, kind = interface.get("version"), interface["typestr"]
    if version not in INTERFACES:
        raise refused(f"version {version} of __cuda_array_interface__")
    if interface.get("mask") is not None:
        raise refused("an array with a mask")
    if interface.get("stream") == 0:
        raise refused("stream 0, which may be one of two")
    own = next((d.numpy for d in D.ALL if d.numpy.str == kind and not D.is_extended(d)), None)
    if own is None:
        raise refused(f"elements of type {kind!r}")
    address, shape = interface["data"][0] or 0, tuple(interface["shape"])
    steps = interface.get("strides")
    strides = None if steps is None else tuple(step / own.itemsize for step in steps)
    lying = Lying(address, ordinal, shape, strides, own, delete=[owner].clear)
    return lying.in_rows()


# --- out


def handed(own: Resident, kept: object, stream: Any, version: Any, copy: bool) -> Any:
    """A capsule of an array, or of a copy; `kept` lives for as long as somebody has the first.

    Raises: OptionError for a stream that is none, and for sharing with who cannot be told that
        nobody may write.
    """
    versioned = version is not None and tuple(version) >= C.VERSION
    if not (copy or versioned):
        what = "sharing with who knows no version of DLPack: nobody may write to a tensor"
        raise OptionError(what, code="E324")
    if not (stream is None or (type(stream) is int and (stream > 0 or stream == NOBODY_WAITS))):
        raise OptionError(f"stream {stream!r} of a device", help=STREAMS, code="E324")
    on, flags = own.driver, C.COPIED if copy else C.READ_ONLY
    with on.here():
        if copy:
            kept = own = _copied(own, stream)
        else:
            _behind(on, own.ready, stream)
    own.shown()
    lying = Lying(own.address, on.ordinal, own.shape, None, own.dtype, flags)
    return C.capsule(lying, versioned, kept)


STREAMS = "1 is the default one, 2 that of each thread, others are handles; -1: nobody waits"


def _copied(own: Resident, stream: int | None) -> Resident:
    """A copy, which the stream waits for."""
    on, mine = own.driver, stream_of(own.driver)
    made = Resident(on, own.shape, own.dtype)
    own.awaited(mine)
    on.within(made.address, own.address, own.nbytes, mine)
    event = on.event()
    on.mark(event, mine)
    _behind(on, event, stream)
    on.end_event(event)
    return made


def _behind(on: Driver, event: int, stream: int | None) -> None:
    """What a stream is given next comes after an event; the host waits where no stream is to."""
    if event and stream == NOBODY_WAITS:
        on.reached(event)
    elif event:
        on.after(DEFAULT if stream is None else stream, event)


def interface_of(own: Resident) -> dict[str, Any]:
    """`__cuda_array_interface__` of an array, which is there when this returns.

    Raises: UnsupportedError for bfloat16 and floats of 8 bits, which it has no name for.
    """
    if D.is_extended(D.dtype(own.dtype)):
        raise refused(f"{own.dtype} through __cuda_array_interface__")
    with own.driver.here():
        if own.ready:
            own.driver.reached(own.ready)
    own.shown()
    address = own.address if prod(own.shape) else 0
    facts = {"shape": own.shape, "typestr": own.dtype.str, "data": (address, True)}
    return {**facts, "version": INTERFACES[-1], "strides": None, "stream": None}
