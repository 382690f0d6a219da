"""What an operation is given: tensors, arrays and numbers as values."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.errors import DTypeError
from pullback.ir import dtype as D
from pullback.ir.graph import Value
from pullback.tensor.record.constants import taken
from pullback.tensor.record.trace import Handle
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.answers import Answering
from pullback.tensor.values.elementwise import Operand, Scalar


def operand(x: Any) -> Operand:
    """What an operation works on: a value or a Python scalar.

    Raises: DTypeError for anything else, CapturedArrayError for a large array in `jit`.
    """
    if isinstance(x, Handle):
        return x.value
    if isinstance(x, np.generic):
        kind = D.dtype(x.dtype)
        return W.full((), x.item(), kind)
    if isinstance(x, np.ndarray):
        D.dtype(x.dtype)
        return taken(x)
    if isinstance(x, Scalar):
        return x
    given = type(x).__name__
    if isinstance(x, Answering):
        raise DTypeError(f"not defined for {given}", code="E143")
    raise DTypeError(f"{given} is no tensor", help="make one: pb.tensor", code="E143")


def value_of(x: Any) -> Value:
    """An operand as a value; a Python scalar becomes a constant of its default type."""
    met = operand(x)
    return W.full((), met, W.weak_dtype(met)) if isinstance(met, Scalar) else met
