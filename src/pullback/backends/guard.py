"""What a backend does wrong is told as its own, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from pullback.backends.base import Values
from pullback.errors import BackendError, InvalidIR, PullbackError
from pullback.ir.graph import Variable

Item = TypeVar("Item")


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Raises: BackendError for what is neither the user's mistake nor the compiler's."""
    try:
        yield
    except (PullbackError, InvalidIR, MemoryError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise BackendError(f"backend {name!r} fails: {said}") from error


def interpreted(
    name: str,
    run: Callable[[Item, Mapping[Variable, Any]], Values],
    writes: Callable[[Item], Iterable[Variable]],
) -> Callable[[Item, Values], Values]:
    """`run` of an interpreter, whose results are those that an item `writes`.

    Raises: BackendError for what is missing, or has another shape or type.
    """

    def checked(item: Item, values: Values) -> Values:
        with guarded(name):
            made = {v: np.asarray(a) for v, a in run(item, values).items()}
        for variable in writes(item):
            wrong = _wrong(variable, made.get(variable))
            if wrong:
                raise BackendError(f"backend {name!r} gives {wrong} for {variable.name}")
        return made

    return checked


def _wrong(variable: Variable, array: np.ndarray[Any, Any] | None) -> str:
    """What is wrong with the contents of a variable; empty: nothing."""
    if array is None:
        return "nothing"
    extents = zip(variable.shape, array.shape, strict=False)
    fits = array.ndim == len(variable.shape) and all(
        n == extent for extent, n in extents if isinstance(extent, int)
    )
    if fits and array.dtype == variable.dtype.numpy:
        return ""
    return f"{array.dtype}{list(array.shape)}, not {variable.dtype}{list(variable.shape)},"
