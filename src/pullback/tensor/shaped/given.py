"""What functions of functions are given: a function, steps, a condition, a pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.errors import DTypeError, Origin, ShapeError
from pullback.ir import dtype as D
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.record.trace import Handle, current
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V


def functions(**given: Any) -> None:
    """Raises: DTypeError for what cannot be called."""
    for name, function in given.items():
        if not callable(function):
            raise DTypeError(
                f"{name} is a {type(function).__name__}, where a function is wanted", code="E223"
            )


def steps_of(steps: Any) -> range:
    """The steps of a loop. Raises: ShapeError for what is neither a number nor a range."""
    return steps if isinstance(steps, range) else range(V.whole(steps, "a number of steps"))


def most_of(max_steps: Any) -> int | None:
    """A bound on steps. Raises: ShapeError."""
    return None if max_steps is None else V.whole(max_steps, "max_steps", 0)


def pair_of(returned: Any) -> tuple[Any, Any]:
    """What the body of a scan has returned. Raises: ShapeError where it is no pair."""
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return returned[0], returned[1]
    count = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
    raise ShapeError(
        f"the body of pb.scan returned a {type(returned).__name__}{count}, not (carry, y)",
        origin=Origin.of_caller(),
        code="E224",
    )


def condition(given: Any) -> Tensor:
    """A condition: one bool, of Python or of a tensor. Raises: DTypeError for anything else."""
    if isinstance(given, bool | np.bool_):
        return Tensor(W.full((), bool(given), D.bool_))
    if isinstance(given, np.ndarray) and current() is None:
        given = Tensor(value_of(given))
    if not isinstance(given, Handle):
        raise DTypeError(f"a condition is one bool, not a {type(given).__name__}", code="E146")
    if given.dtype != D.bool_ or given.shape != ():
        raise DTypeError(
            f"a condition is one bool, not {given.dtype} of shape {given.shape}", code="E146"
        )
    return Tensor(given.value)
