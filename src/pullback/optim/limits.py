"""Ranges of hyperparameters, stated as they are written: ``0 <= betas < 1, eps >= 0``."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from itertools import product
from numbers import Real
from typing import Any

from pullback.errors import ShapeError
from pullback.tensor.tensor import Tensor

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_STEP = re.compile(r"\s*(<=|>=|<|>)\s*")


def check_limits(limits: str, values: Mapping[str, Any]) -> None:
    """Each limit of `limits` holds for what `values` has under its name, elements of tuples too.

    A limit is a chain of comparisons, ``0 <= betas < 1``; NaN is in no range. None and tensors,
    whose value is not known, are left out. ``betas[0]`` speaks of one element.

    Raises: ShapeError that shows the limit and the value.
    """
    for limit in limits.split(","):
        parts = _STEP.split(limit.strip())
        for place in range(0, len(parts) - 2, 2):
            left, sign, right = parts[place : place + 3]
            pairs = product(_numbers(left, values), _numbers(right, values))
            if not all(_holds(a, sign, b) for a, b in pairs):
                _refuse(limit.strip(), parts[::2], values)


def _holds(a: Any, sign: str, b: Any) -> bool:
    return isinstance(a, Real) and isinstance(b, Real) and bool(_COMPARE[sign](a, b))


def _numbers(word: str, values: Mapping[str, Any]) -> list[Any]:
    """The number that a word is, or all of those under its name."""
    name, _, place = word.partition("[")
    if name not in values:
        return [float(name)] if name[0].isdigit() or name == "inf" else []
    held = values[name]
    if place:
        held = held[int(place.rstrip("]"))]
    listed = held if isinstance(held, tuple | list) else [held]
    return [x for x in listed if x is not None and not isinstance(x, Tensor)]


def _refuse(limit: str, words: list[str], values: Mapping[str, Any]) -> None:
    names = [w.partition("[")[0] for w in words if w.partition("[")[0] in values]
    given = ", ".join(f"{n} = {values[n]!r}" for n in dict.fromkeys(names))
    raise ShapeError(f"{given} is out of range: {limit}", code="E123")
