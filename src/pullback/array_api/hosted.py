"""What runs in NumPy, outside of programs: visible by name, and without a derivative.

``nonzero(x)``, ``unique_values(x)``: the values of `x` go to NumPy, a new tensor comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.errors import GradientError, Origin, UnsupportedError
from pullback.ir.graph import Definition, Rule, Value
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.library import ops as O
from pullback.tensor.record.trace import array_of, bind, current, realize
from pullback.tensor.values import elementwise as W


def hosted(name: str, function: Callable[..., Any], *given: Any) -> tuple[Any, ...]:
    """What NumPy's `function` makes of the values of `given`, as tensors.

    Raises: UnsupportedError inside a compiled function; GradientError for a derivative through it.
    """
    if current() is not None:
        raise UnsupportedError(
            f"{name} inside a compiled function: it runs in NumPy, on values",
            origin=Origin.of_caller(),
            help="call it outside, and pass its result",
        )
    pairs = [_parts(x) for x in given]
    inputs = [part for pair in pairs for part in pair]
    realize(inputs)
    answers = function(*(_array(pair) for pair in pairs))
    arrays = [np.asarray(a) for a in (answers if isinstance(answers, tuple) else (answers,))]
    rows = [[W.copy(bind(part, name), name) for part in _halves(a)] for a in arrays]
    results = [part for row in rows for part in row]
    refused = _refused(name, results, [x.value for x in inputs])
    for result in results:
        result.rule = refused if result.dtype.is_float else None
    made = [[Tensor(part) for part in row] for row in rows]
    return tuple(Complex(*row) if len(row) == 2 else row[0] for row in made)


def _parts(x: Any) -> list[Tensor]:
    """What there is to compute: a tensor, or both parts of complex numbers."""
    return [x.real, x.imag] if isinstance(x, Complex) else [Tensor(value_of(x))]


def _array(parts: Sequence[Tensor]) -> Any:
    if len(parts) == 1:
        return array_of(parts[0])
    return Complex(*parts).numpy()


def _halves(array: Any) -> list[Any]:
    """An array, or its real and its imaginary part."""
    return [array.real.copy(), array.imag.copy()] if np.iscomplexobj(array) else [array]


def _refused(name: str, results: Sequence[Definition], inputs: Sequence[Value]) -> Rule | None:
    """The rule of what has none."""
    origin = Origin.of_caller()

    def refuse(_: Sequence[Value]) -> Sequence[Value]:
        raise GradientError(
            f"{name} runs in NumPy and has no derivative",
            origin=origin,
            help="pb.stop_gradient(..) of its argument, if none is meant",
        )

    floats = tuple(v for v in inputs if v.dtype.is_float)
    outputs = tuple(r for r in results if r.dtype.is_float)
    return Rule(name, outputs, floats, refuse, refuse) if floats and outputs else None


class UniqueAll(NamedTuple):
    """Distinct elements, where each stands first, which one each element is, how often it is."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct elements, and how often each is there."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct elements, and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """Distinct elements in order, with places, inverse and counts; each NaN is distinct.

    Example:
        >>> xp.unique_all(xp.asarray([2, 1, 2])).values
        Tensor([1, 2], dtype=int64)
    """

    def distinct(a: Any) -> Any:
        values, places, inverse, counts = np.unique(a, True, True, True, equal_nan=False)
        return values, places, inverse.reshape(a.shape), counts

    return UniqueAll(*hosted("unique_all", distinct, x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Distinct elements in order, and how often each is there.

    Example:
        >>> xp.unique_counts(xp.asarray([2, 1, 2])).counts
        Tensor([1, 2], dtype=int64)
    """
    every = unique_all(x)
    return UniqueCounts(every.values, every.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Distinct elements in order, and which of them each element is.

    Example:
        >>> xp.unique_inverse(xp.asarray([2, 1, 2])).inverse_indices
        Tensor([1, 0, 1], dtype=int64)
    """
    every = unique_all(x)
    return UniqueInverse(every.values, every.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Distinct elements in order.

    Example:
        >>> xp.unique_values(xp.asarray([2, 1, 2]))
        Tensor([1, 2], dtype=int64)
    """
    return unique_all(x).values


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The places of elements that are not 0, one tensor an axis. Raises: UnsupportedError, 0-d.

    Example:
        >>> xp.nonzero(xp.asarray([0, 3, 4]))
        (Tensor([1, 2], dtype=int64),)
    """
    if not x.shape:
        raise UnsupportedError("nonzero of a tensor without axes", origin=Origin.of_caller())
    return hosted("nonzero", np.nonzero, x)


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated; as often as a tensor says through NumPy, with a gradient.

    Example:
        >>> xp.repeat(xp.asarray([1, 2]), 2)
        Tensor([1, 1, 2, 2], dtype=int64)
    """
    if isinstance(repeats, int):
        return O.repeat(x, repeats, axis=axis)
    flat = O.reshape(x, (-1,)) if axis is None else x
    place = 0 if axis is None else axis
    count = np.asarray(flat.shape, np.int64)[place]
    (places,) = hosted("repeat", lambda n: np.repeat(np.arange(count), n), repeats)
    return O.take(flat, places, axis=place)
