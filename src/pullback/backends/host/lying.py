"""How arrays of symbolic sizes lie in libraries: by the largest sizes, or without gaps."""

from __future__ import annotations

from pullback.errors import UnsupportedError
from pullback.ir.expr import Dim, Shape


class ApartError(UnsupportedError):
    """Rows of an array have to lie as far apart as at the largest size."""


def apart(shape: Shape) -> bool:
    """Whether rows lie further apart at the largest sizes than they need to."""
    return any(isinstance(e, Dim) for e in shape[1:])
