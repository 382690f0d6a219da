"""Sorting by the host: a long axis in one call of NumPy, between two launches of a program.

    values = sort(x)    places = argsort(x), stable

NumPy sorts in lanes what has 64 bits or fewer. A stable order of keys of up to 32 bits is that of
``key << 32 | place``; of longer ones the quick order, where no two are equal, else the stable one.
Measured, 10^6 float32 on a Zen 3: the network 1674 ms, this 12 (values) and 42 (places).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pullback.errors import Origin
from pullback.ir.dtype import DType, int64
from pullback.ir.graph import Value
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.hosted import HostForm, HostFunction, Kind
from pullback.tensor.record.held import computable
from pullback.tensor.record.trace import array_of, bind, current, realize, written_out

Array = np.ndarray[Any, Any]
Sorting = Callable[[Array], Array]
WORD = 32  # bits of a place
# Nanoseconds of a call between two launches with what NumPy does once in it, one Zen 3 core.
VALUES, PLACES, FIRSTS = 45e3, 100e3, 140e3


def values_ns(count: int) -> float:
    """Nanoseconds until the host has `count` elements in order: 2 to 8 each."""
    return VALUES + 4.0 * count


def places_ns(count: int, bits: int) -> float:
    """Nanoseconds until it has their places: 7 to 31 each, 31 to 130 of keys of 64 `bits`."""
    return PLACES + (20.0 if bits <= WORD else 60.0) * count


def firsts_ns(count: int, share: float) -> float:
    """Nanoseconds until it has the places of the first, a `share` of each row."""
    return FIRSTS + (6.0 + 60.0 * share) * count


def reachable(x: Value) -> bool:
    """Whether there is a host to call.

    A program may call none, and one whose arrays lie on a device would copy them.
    """
    trace = current()
    if written_out():
        return False
    return computable(x) if trace is None else trace.host and trace.near


def hosted(
    x: Value,
    axis: int,
    descending: bool,
    nan_first: bool,
    *,
    places: bool,
    count: int | None = None,
) -> Value | None:
    """The elements of `x` in order along `axis`, or their `places`, or those of the first `count`;
    None where no host is reachable.
    """
    last = axis - len(x.shape)  # samples of a batch stand in front
    sort: Sorting = partial(order if places else values, last, descending, nan_first)
    if count is not None:
        sort = partial(firsts, last, descending, nan_first, count)
    name, kind = ("order", int64) if places else ("sorted", x.dtype)
    if not reachable(x):
        return None
    if current() is not None:
        return _called(x, sort, name, kind, last, count)
    own = Tensor(x)
    realize([own])
    return bind(sort(array_of(own)), name)


def _called(x: Value, sort: Sorting, name: str, kind: DType, axis: int, count: int | None) -> Value:
    """By a call between two launches."""
    trace = current()
    assert trace is not None

    def results(kinds: Sequence[Kind]) -> Sequence[Kind]:
        shape = list(kinds[0][0])
        if count is not None:
            shape[axis] = count
        return [(tuple(shape), kind)]

    def run(array: Array) -> tuple[Array, ...]:
        return (sort(array),)

    what = f"NumPy {np.__version__}, {sort.args}"  # type: ignore[attr-defined]
    host = HostFunction(name, what, run, results, run)
    form = HostForm(trace, host, [x], strict=True, origin=Origin.of_caller())
    return form.results[0]


def values(axis: int, descending: bool, nan_first: bool, x: Array) -> Array:
    """The elements in order, NaN last, or first."""
    if not descending or nan_first:
        ascending = np.sort(x, axis)
        return np.ascontiguousarray(np.flip(ascending, axis)) if descending else ascending
    turned = _turned(x)
    turned.sort(axis)
    return _turned(turned)


def order(axis: int, descending: bool, nan_first: bool, x: Array) -> Array:
    """The places of the elements in order: of equal ones the earlier first; NaN last, or first."""
    own = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    keys = _keys(own, descending, nan_first)
    short = keys.dtype.itemsize * 8 <= WORD and own.shape[-1] < 1 << WORD
    places = _packed(keys) if short else _stable(keys)
    return np.ascontiguousarray(np.moveaxis(places, -1, axis))


def firsts(axis: int, descending: bool, nan_first: bool, count: int, x: Array) -> Array:
    """The places of the first `count` in order, as `order` has them: what is not beyond the last of
    them is looked at.
    """
    own = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    rows = own.reshape(-1, own.shape[-1])
    keys, bar, falling = _bar(rows, descending, nan_first, count)
    near = np.flatnonzero(keys >= bar if falling else keys <= bar)
    if len(near) > len(rows) * count:
        near = _without_ties(keys, bar, near, count)
    places = near.reshape(len(rows), count) % rows.shape[-1]
    taken = np.take_along_axis(keys, places, -1)
    sooner = np.argsort(_turned(taken) if falling else taken, -1, kind="stable")
    ordered = np.take_along_axis(places, sooner, -1).reshape(*own.shape[:-1], count)
    return np.ascontiguousarray(np.moveaxis(ordered, -1, axis))


def _turned(x: Array) -> Array:
    """Numbers that rise as those of `x` fall."""
    return -x if x.dtype.kind == "f" else ~x


def _bar(rows: Array, descending: bool, nan_first: bool, count: int) -> tuple[Array, Array, bool]:
    """Keys of rows, of each the last that belongs to the first `count`, and whether keys fall.

    NumPy has NaN beyond every number, so that elements are keys themselves unless one is taken.
    """
    floats = rows.dtype.kind == "f"
    if not (floats and nan_first and not descending and np.isnan(rows).any()):
        at = rows.shape[-1] - count if descending else count - 1
        parted = np.partition(rows, at, -1)
        taken = parted[:, at:] if descending else parted[:, :count]
        if not floats or not np.isnan(taken).any():
            return rows, parted[:, at : at + 1], descending
    keys = _keys(rows, descending, nan_first)
    return keys, np.partition(keys, count - 1, -1)[:, count - 1 : count], False


def _without_ties(keys: Array, bar: Array, near: Array, count: int) -> Array:
    """Of the elements that equal the bar of their row, the first that still have a place."""
    row = near // keys.shape[-1]
    equal = keys.reshape(-1)[near] == bar[row, 0]
    left = count - np.bincount(row[~equal], minlength=len(keys))
    number = np.cumsum(equal)
    begins = np.searchsorted(row, np.arange(len(keys)))
    before = (number - equal)[begins]
    kept: Array = near[~equal | (number - before[row] <= left[row])]
    return kept


def _keys(x: Array, descending: bool, nan_first: bool) -> Array:
    """Unsigned numbers in the order of the elements; equal where those are, or both are NaN.

    The bits of a float rise with it from 0 up, and fall below.
    """
    size = x.dtype.itemsize
    unsigned, top = np.dtype(f"u{size}"), 1 << (8 * size - 1)
    if x.dtype.kind == "u":
        return ~x if descending else x
    if x.dtype.kind == "i":
        numbers: Array = x.view(unsigned) ^ unsigned.type(top)
        return ~numbers if descending else numbers
    bits = (x + x.dtype.type(0)).view(f"i{size}")  # -0 is 0
    turned = bits >> (8 * size - 1) | np.array(top, unsigned).view(bits.dtype)
    keys: Array = (bits ^ turned).view(unsigned)
    keys = ~keys if descending else keys
    keys[np.isnan(x)] = 0 if nan_first else 2 * top - 1
    return keys


def _packed(keys: Array) -> Array:
    words: Array = keys.astype(np.uint64)
    words <<= np.uint64(WORD)
    words |= np.arange(keys.shape[-1], dtype=np.uint64)
    words.sort(-1)
    words &= np.uint64((1 << WORD) - 1)
    places: Array = words.view(np.int64)
    return places


def _stable(keys: Array) -> Array:
    quick: Array = np.argsort(keys, -1)
    ordered = np.take_along_axis(keys, quick, -1)
    if np.any(ordered[..., 1:] == ordered[..., :-1]):
        quick = np.argsort(keys, -1, kind="stable")
    return quick
