"""Numbers of Python and NumPy as a type that was asked for: what does not fit is refused.

    pb.tensor([300], dtype="int8")        an error, where a cast would give 44

NumPy refuses Python's integers alone, and casts arrays without a word. Here both are numbers that
somebody wrote down, so both are refused; ``astype`` is the cast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.tensor.record.held import Array
from pullback.tensor.values.elementwise import holds, unfit


def fitted(array: Array, kind: DType) -> Array:
    """`array` as `kind`: fractions of floats are cut off, floats beyond a float type are infinite.

    Raises: DTypeError where an integer type has no place for an element.
    """
    if kind.is_integer and array.size and array.dtype != bool:
        _check(array, kind)
    with np.errstate(over="ignore"):
        return array.astype(kind.numpy)


def _check(array: Array, kind: DType) -> None:
    """Raises: DTypeError with the first element that does not fit."""
    lo, hi = kind.range()
    if array.dtype.kind in "iu":
        known = np.iinfo(array.dtype)
        if lo <= known.min and known.max <= hi:
            return
        outside = (array < lo) if lo > known.min else np.zeros(array.shape, bool)
        if hi < known.max:
            outside |= array > hi
    else:
        whole = np.trunc(array.astype(np.float64))
        outside = ~((whole >= float(lo)) & (whole < float(hi + 1)))  # powers of two: exact
    if outside.any():
        raise unfit(array[outside].flat[0].item(), kind)


def listed(data: Any, types: set[type], kind: DType | None) -> Array:
    """Nested lists of Python numbers of these types as an array, floats and integers exact.

    Raises: DTypeError for an integer that does not fit; ValueError for lists of different lengths.
    """
    array: Array = np.asarray(data)
    inexact = array.dtype == np.float64 and float not in types  # of integers: above and below 2^63
    if not array.size or not (array.dtype == object or inexact):
        return array
    wanted = kind or (D.float32 if float in types else D.int64)
    for number in numbers(data):
        if not wanted.is_bool and not holds(wanted, number):
            raise unfit(number, wanted)
    return np.asarray(data, np.float64 if wanted.is_float else wanted.numpy)


def numbers(data: Any) -> Iterator[Any]:
    """What nested lists hold, in order."""
    stack = [data]
    while stack:
        one = stack.pop()
        if isinstance(one, list | tuple):
            stack.extend(reversed(one))
        else:
            yield one
