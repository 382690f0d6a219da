"""What stands between the brackets of ``x[key]``, and what is read or assigned there.

Outside of programs a mask is the places where it is true, since its values are known; inside it
chooses between the old and the new elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.errors import DTypeError, IndexRangeError
from pullback.ir.dtype import DType
from pullback.ir.expr import Extent
from pullback.ir.graph import Definition, Value
from pullback.tensor.record.trace import (
    Array,
    Handle,
    array_of,
    bind,
    contents,
    current,
    know,
    realize,
    result_of,
)
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import updates
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import Operand, Scalar
from pullback.tensor.values.fits import fitted, listed, numbers
from pullback.tensor.values.operands import operand, value_of

Key = Any


def chosen(x: Handle, key: Key) -> Definition:
    """``x[key]``; by a mask with its values, where these are known.

    Raises: as `indexing.index`; UnsupportedError for a mask in a program.
    """
    parts = _listed(key)
    if len(parts) == 1 and _no_axes(parts[0]):
        whole = V.expand_dims(x.value, 0)
        return X.index(whole, [slice(0, int(_truth(parts[0])))])
    places = plain(parts, x.shape)
    elements = X.index(x.value, places)
    if any(map(is_mask, parts)):
        realize([x])
        know(elements, array_of(x)[_host(places)])
    return elements


def assigned(x: Handle, key: Key, new: Any) -> Value:
    """``x.at[key].set(new)``; at once where x and the new elements have their contents.

    Raises: as `changed`.
    """
    parts, given = _listed(key), _given(new, x.dtype)
    changed = _changed(x, parts, given, "set")
    old = _contents(x.value)
    fresh = given if isinstance(given, Scalar) else _contents(given)
    if old is None or fresh is None or (len(parts) == 1 and _no_axes(parts[0])):
        return changed
    places = _host(plain(parts, x.shape))
    if places is None:
        return changed
    array = old.copy()
    try:
        array[places] = fresh
    except IndexError:  # the program says which one, where
        return changed
    know(changed, array)
    return changed


def changed(x: Handle, key: Key, new: Any, reduce: str) -> Definition:
    """``x.at[key].reduce(new)``

    Raises: as `updates.update`; UnsupportedError for a mask in a program, with an element for each
    place that it leaves.
    """
    return _changed(x, _listed(key), _given(new, x.dtype), reduce)


def _changed(x: Handle, parts: Sequence[Any], given: Operand, reduce: str) -> Definition:
    if len(parts) == 1 and (is_mask(parts[0]) or _no_axes(parts[0])):
        masked = _under(x.value, value_of(_whole(parts[0])), given, reduce)
        if masked is not None:
            return masked
    if len(parts) == 1 and _no_axes(parts[0]):
        taken = slice(0, int(_truth(parts[0])))
        return V.squeeze(updates.update(V.expand_dims(x.value, 0), [taken], given, reduce), 0)
    return updates.update(x.value, plain(parts, x.shape), given, reduce)


def _under(x: Value, mask: Value, given: Operand, reduce: str) -> Definition | None:
    """What a mask over the first axes chooses; None where each place it leaves has its value."""
    rank = len(mask.shape)
    _check_mask(mask.shape, x.shape[:rank])
    rest = x.shape[rank:]
    if not isinstance(given, Scalar):
        wide = len(given.shape) - len(rest)
        if wide > 1 or (wide == 1 and given.shape[0] != 1):
            return None
        if wide == 1:
            given = V.reshape(given, given.shape[1:])
    values = updates.suited(x, given, rest)
    spread = V.reshape(mask, (*mask.shape, *(1,) * len(rest)))
    old = [slice(None)] * len(x.shape)
    return W.where(spread, updates.update(x, old, values, reduce), x)


def plain(parts: Sequence[Any], shape: Sequence[Extent]) -> list[X.Part]:
    """Indices that are values, integers, slices, None and Ellipsis: masks by where they are true.

    Raises: UnsupportedError in a program, IndexRangeError for a mask of another shape, DTypeError.
    """
    indices: list[X.Part] = []
    rest = len(shape) - sum(map(_consumed, parts))
    axis = 0
    for part in parts:
        if is_mask(part):
            own = _whole(part)
            _check_mask(own.shape, shape[axis : axis + len(own.shape)])
            indices += [value_of(own)] if current() is not None else _places(own)
        else:
            indices.append(_part(part))
        axis += rest if part is Ellipsis else _consumed(part)
    return indices


def _listed(key: Key) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _given(new: Any, kind: DType) -> Operand:
    """New elements for a tensor of `kind`. Raises: DTypeError for numbers that do not fit it."""
    if isinstance(new, list | tuple):
        types = {type(n) for n in numbers(new)}
        new = listed(new, types, kind) if types <= {bool, int} else np.asarray(new)
    if isinstance(new, np.ndarray | np.generic) and new.dtype.kind in "iu" and kind.is_integer:
        new = fitted(np.asarray(new), kind)
    return operand(new)


def is_mask(part: Any) -> bool:
    """Whether a part of an index is booleans with axes."""
    if isinstance(part, list):
        return np.asarray(part).dtype == bool
    return isinstance(part, Handle | np.ndarray) and _is_bool(part) and part.shape != ()


def _is_bool(part: Any) -> bool:
    return bool(part.dtype.is_bool) if isinstance(part, Handle) else part.dtype == bool


def _no_axes(part: Any) -> bool:
    """Whether a part of an index is one truth value."""
    if isinstance(part, bool | np.bool_):
        return True
    return isinstance(part, Handle | np.ndarray) and part.shape == () and _is_bool(part)


def _truth(part: Any) -> bool:
    """Raises: UnsupportedError in a program."""
    if not isinstance(part, Handle):
        return bool(part)
    if current() is not None:
        X.integer(part.dtype)
    realize([part])
    return bool(array_of(part))


def _whole(part: Any) -> Any:
    return np.asarray(part) if isinstance(part, list | bool | np.bool_) else part


def _consumed(part: Any) -> int:
    """How many axes of the tensor a part is for."""
    if part is None or part is Ellipsis:
        return 0
    return len(_whole(part).shape) if is_mask(part) else 1


def _check_mask(shape: Sequence[Extent], wanted: Sequence[Extent]) -> None:
    """Raises: IndexRangeError for a mask that is not shaped like what it chooses from."""
    if tuple(shape) != tuple(wanted):
        raise IndexRangeError(
            f"a mask of shape {W.show(tuple(shape))} over axes of {W.show(tuple(wanted))}",
            code="E191",
        )


def _places(mask: Any) -> list[X.Part]:
    """Where a mask is true, an index for each of its axes."""
    if isinstance(mask, Handle):
        realize([mask])
        mask = array_of(mask)
    return [bind(np.asarray(n), "places", copy=False) for n in np.nonzero(mask)]


def _part(part: Any) -> X.Part:
    """One part of an index, tensors by their values."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        return int(part)
    if isinstance(part, list | np.ndarray | Handle | bool | np.bool_):
        return value_of(_whole(part))
    raise DTypeError(f"{part!r} is no index", code="E153")


def _contents(value: Value) -> Array | None:
    """What a value holds, if that is known and NumPy can assign to it."""
    known = result_of(value)
    array = None if known is None else contents(known)
    return None if array is None or array.dtype.kind not in "biuf" else array


def _host(places: Sequence[X.Part]) -> Any:
    """The same index for NumPy; None where one has no contents yet."""
    indices: list[Any] = []
    for part in places:
        if part is None or part is Ellipsis or isinstance(part, int | slice):
            indices.append(part)
            continue
        array = _contents(part)
        if array is None:
            return None
        indices.append(array)
    return tuple(indices)
