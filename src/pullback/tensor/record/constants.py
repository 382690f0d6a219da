"""NumPy arrays that a program takes from outside: small ones, for as long as they do not change."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.errors import CapturedArrayError, Origin
from pullback.ir.graph import Variable
from pullback.tensor.record.held import copied
from pullback.tensor.record.trace import Array, Handle, current, suspended

# Bytes of an array that a program may take from outside: every call compares it with what it was
# when it was traced, 0.4 us for so many, a twentieth of a call.
CONSTANT = 1 << 12


def seen(thing: Any) -> Any:
    """What a trace depends on: the mode of a module, the contents of a small array."""
    if isinstance(thing, np.ndarray):
        return thing.shape, thing.dtype.str, thing.tobytes()
    return bool(thing.training)


def taken(array: Array, name: str = "array") -> Variable:
    """An array as a variable over a copy of it; in programs a small one, which each call compares.

    Raises: CapturedArrayError.
    """
    origin = Origin.of_caller()
    trace = current()
    if trace is None:
        return copied(array, name, origin)
    if array.nbytes > CONSTANT:
        refuse_array(origin)
    handle, contents = trace.constants.get(id(array)), seen(array)
    if handle is None or trace.observed[id(array)][1] != contents:
        with suspended():
            handle = trace.constants[id(array)] = Handle(copied(array, name, origin))
        trace.observed[id(array)] = (array, contents)
    return trace.capture(handle)


def refuse_array(origin: Origin | None = None) -> None:
    """Called where an operation is given a NumPy array.

    Raises: CapturedArrayError inside a jitted function.
    """
    if current() is None:
        return
    raise CapturedArrayError(
        f"a NumPy array of more than {CONSTANT} bytes is used inside a jitted function",
        origin=origin,
        help="make it a tensor before the call (pb.tensor(array)), pass it as an argument, "
        "or feed it with pb.Feeder",
    )
