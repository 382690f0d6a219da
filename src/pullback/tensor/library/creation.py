"""Making tensors: from data, or from a formula.

``tensor`` copies; ``asarray`` and ``from_dlpack`` share memory where they can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.errors import DTypeError, OptionError, Origin, ShapeError, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim
from pullback.ir.graph import read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.extents import Symbol
from pullback.tensor.face.tensor import (
    Tensor,
    check_device,
    optional_dtype,
    shape_of,
    value_of,
)
from pullback.tensor.record.away import device_of, elsewhere, received
from pullback.tensor.record.constants import taken
from pullback.tensor.record.trace import Array, Handle, bind, current
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import views as V
from pullback.tensor.values.answers import BUILTIN, Answering, answered, answering
from pullback.tensor.values.elementwise import Scalar
from pullback.tensor.values.fits import fitted, listed, numbers


def dim(name: str, lo: int, hi: int) -> Dim:
    """A symbolic extent: one compiled program serves every value in `lo..hi`.

    Example:
        >>> n = pb.dim("n", 1, 64)
        >>> f = pb.jit(pb.sum, shapes=[(n,)])
        >>> f(pb.ones(3)).item(), f(pb.ones(5)).item()
        (3.0, 5.0)
    """
    lo, hi = V.whole(lo, "lo"), V.whole(hi, "hi")
    if not 0 <= lo <= hi or not isinstance(name, str):
        raise ShapeError(f"pb.dim({name!r}, {lo}, {hi})", code="E123")
    return Symbol(name, lo, hi)


def _plain(item: Any) -> Any:
    """Nested lists with tensors made arrays."""
    if isinstance(item, list | tuple):
        return [_plain(i) for i in item]
    return np.asarray(item) if isinstance(item, Tensor | Answering) else item


def _speaker(data: Any, dtype: Any) -> Answering | None:
    """Who makes a tensor of what is complex: a number, an array, or the type that is wanted."""
    if isinstance(data, np.ndarray | np.generic) and data.dtype.kind == "c":
        return BUILTIN[complex]
    return answering((dtype,) if isinstance(data, list | tuple) else (data, dtype))


def _exported(data: Any) -> Array:
    """What an array of another library gives NumPy. Raises: DTypeError where it gives nothing."""
    try:
        return np.asarray(data)
    except (TypeError, RuntimeError) as problem:
        raise DTypeError(
            f"a {type(data).__name__} that NumPy cannot read: {problem}", code="E143"
        ) from problem


def _array_of(data: Any, kind: DType | None) -> Array:
    """`data` as a NumPy array of one of our types. Python floats -> float32, ints -> int64.

    Raises: DTypeError for a type we do not have, and for a number that has no place in `kind`.
    """
    types: set[type] = {object} if hasattr(data, "__array__") else {type(n) for n in numbers(data)}
    python = types <= {bool, int, float, complex}
    if hasattr(data, "__array__"):
        array = _exported(data)
    else:
        try:
            array = listed(data, types, kind) if python else np.asarray(_plain(data))
        except ValueError as problem:
            raise ShapeError("nested lists of different lengths", code="E136") from problem
    if array.dtype.kind == "c":
        return array.astype(np.complex64) if python else array
    if kind is None and python and (array.dtype == np.float64 or not array.size):
        kind = D.float32
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kind is None or array.dtype.kind not in "biuf":
        _check_known(array.dtype)
    return array if kind is None else fitted(array, kind)


def _check_known(kind: np.dtype[Any]) -> None:
    """Raises: DTypeError for a type of NumPy's that we do not have."""
    try:
        D.dtype(kind)
    except DTypeError as problem:
        raise DTypeError(
            f"no element type {kind}",
            help=f"convert first, or give dtype= one of {', '.join(D.BY_NAME)}",
            code="E140",
        ) from problem


def tensor(
    data: Any, dtype: Any = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor that holds a copy of `data` (numbers, nested lists, an array, a tensor).

    Example:
        >>> pb.tensor([1.0, 2.0])
        Tensor([1., 2.], dtype=float32)
    """
    check_device(device)
    speaker = _speaker(data, dtype)
    if speaker is not None:
        made: Tensor = speaker.answer("tensor", (data, dtype), {"copy": True})
        return made
    kind = optional_dtype(dtype)
    if isinstance(data, Handle):
        value = data.value
        copied = W.copy(value, "tensor") if kind is None else W.astype(value, kind)
        return Tensor(copied, requires_grad)
    if isinstance(data, np.ndarray) and current() is not None:
        return tensor(Tensor(taken(data)), kind, requires_grad=requires_grad)
    array = _array_of(data, kind)
    if array.dtype.kind == "c":
        return tensor(array, dtype)
    return Tensor(bind(array, "tensor", copy=True, origin=Origin.of_caller()), requires_grad)


def asarray(
    data: Any, dtype: Any = None, *, device: Any = None, copy: bool | None = None
) -> Tensor:
    """A tensor that shares the memory of an array where it can; do not write to that array.

    Raises: ValueError where `copy` is False and a copy is needed.

    Example:
        >>> pb.asarray(np.arange(3), dtype="float32")
        Tensor([0., 1., 2.], dtype=float32)
    """
    check_device(device)
    speaker = _speaker(data, dtype)
    if speaker is not None:
        made: Tensor = speaker.answer("asarray", (data, dtype), {"copy": copy})
        return made
    kind = optional_dtype(dtype)
    if isinstance(data, Tensor):
        if copy or (kind is not None and kind != data.dtype):
            return tensor(data, dtype)
        return data
    if elsewhere(data):
        made = _on_device(data, copy)
        return made if kind in (None, made.dtype) else tensor(made, dtype)
    shares = isinstance(data, np.ndarray) or hasattr(data, "__dlpack__")
    if not shares or copy:
        if copy is False:
            what = f"{type(data).__name__} cannot be shared: it needs a copy"
            raise OptionError(what, code="E324")
        return tensor(data, dtype)
    if current() is not None:
        return tensor(data if isinstance(data, np.ndarray) else _import(data), dtype)
    array = data if isinstance(data, np.ndarray) else _import(data)
    if array.dtype.kind == "c":
        return asarray(array, dtype, copy=copy)
    fits = (kind is None or array.dtype == kind.numpy) and array.flags.c_contiguous
    if copy is False and not fits:
        raise OptionError("another type or strides: sharing needs a copy", code="E324")
    shared_array = _array_of(array, kind) if not fits else _array_of(array, None)
    return Tensor(bind(shared_array, "array", copy=False, origin=Origin.of_caller()))


def _import(data: Any) -> Array:
    try:
        return np.from_dlpack(data)
    except (BufferError, RuntimeError) as problem:
        raise UnsupportedError(
            f"DLPack import of {type(data).__name__}: {problem}", code="E318"
        ) from problem


def _on_device(data: Any, copy: bool | None) -> Tensor:
    """Raises: UnsupportedError for what cannot be shared, and inside a program."""
    if current() is not None:
        what, help_ = f"a {type(data).__name__} of a device inside a program", "pass it"
        raise UnsupportedError(what, help=help_, code="E314")
    return Tensor.holding(received(data, copy, Origin.of_caller()))


def from_dlpack(data: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of another library's array, on the processor or on a GPU.

    What has no DLPack, but `__cuda_array_interface__`, is shared by that.

    Raises: UnsupportedError for what cannot be shared, OptionError for a device that needs a copy
        where `copy` is False.

    Example:
        >>> pb.from_dlpack(np.ones(2))
        Tensor([1., 1.], dtype=float64)
    """
    if isinstance(data, Tensor | Answering):
        made = tensor(data) if copy else asarray(data)
        device = data.device if device is None and isinstance(data, Tensor) else device
    elif elsewhere(data):
        made = _on_device(data, copy)
    else:
        made = asarray(_import(data), copy=copy)
    if device is None or device_of(device) == made.device:
        return made
    if copy is False:
        what = f"from {made.device} to {device}: sharing needs a copy"
        raise OptionError(what, code="E324")
    return made.to(device)


@answered
@spelled
def full(shape: Any, fill_value: Scalar, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``out[i] = fill_value``

    Example:
        >>> pb.full((2,), 7)
        Tensor([7, 7], dtype=int64)
    """
    check_device(device)
    if isinstance(fill_value, Handle):
        value = value_of(fill_value)
        kind = optional_dtype(dtype) or value.dtype
        return Tensor(W.astype(W.broadcast_to(value, shape_of(shape)), kind))
    kind = optional_dtype(dtype) or W.weak_dtype(fill_value)
    return Tensor(W.full(shape_of(shape), fill_value, kind))


@answered
def zeros(*shape: Any, dtype: Any = "float32", device: Any = None) -> Tensor:
    """``out[i] = 0``

    Example:
        >>> pb.zeros((2, 3)).shape
        (2, 3)
    """
    return full(shape_of(shape), 0, dtype=dtype or "float32", device=device)


@answered
def ones(*shape: Any, dtype: Any = "float32", device: Any = None) -> Tensor:
    """``out[i] = 1``

    Example:
        >>> pb.ones((2, 3)).shape
        (2, 3)
    """
    return full(shape_of(shape), 1, dtype=dtype or "float32", device=device)


@answered
def empty(*shape: Any, dtype: Any = "float32", device: Any = None) -> Tensor:
    """A tensor whose elements mean nothing: zeros.

    Example:
        >>> pb.empty((2, 3)).shape
        (2, 3)
    """
    return zeros(*shape, dtype=dtype, device=device)


@answered
def full_like(x: Tensor, fill_value: Scalar, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`full` with the shape and type of `x`.

    Example:
        >>> pb.full_like(pb.ones(2), 7)
        Tensor([7., 7.], dtype=float32)
    """
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device)


@answered
def zeros_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`zeros` with the shape and type of `x`.

    Example:
        >>> pb.zeros_like(pb.ones(2))
        Tensor([0., 0.], dtype=float32)
    """
    return full_like(x, 0, dtype=dtype, device=device)


@answered
def ones_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`ones` with the shape and type of `x`.

    Example:
        >>> pb.ones_like(pb.zeros(2))
        Tensor([1., 1.], dtype=float32)
    """
    return full_like(x, 1, dtype=dtype, device=device)


@answered
def empty_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`empty` with the shape and type of `x`.

    Example:
        >>> pb.empty_like(pb.ones((2, 3))).shape
        (2, 3)
    """
    return full_like(x, 0, dtype=dtype, device=device)


def arange(
    start: Any, stop: Any = None, step: Scalar = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """``start, start + step, ..`` below `stop`; one argument is the stop.

    Example:
        >>> pb.arange(1, 7, 2)
        Tensor([1, 3, 5], dtype=int64)

    Raises:
        DTypeError: E141, the first or the last number does not fit the type.
    """
    check_device(device)
    if stop is None:
        start, stop = 0, start
    kind = optional_dtype(dtype)
    if isinstance(stop, Dim):
        if start != 0 or step != 1:
            raise UnsupportedError(
                "arange to a symbolic extent, but from 0 in steps of 1", code="E315"
            )
        return Tensor(X.arange(0, 1, stop, kind or D.int64))
    numbers = [n.item() if isinstance(n, Tensor | np.generic) else n for n in (start, stop, step)]
    start, stop, step = numbers
    if step == 0 or not all(isinstance(n, int) or math.isfinite(n) for n in numbers):
        raise ShapeError(f"arange from {start} to {stop} in steps of {step}", code="E123")
    common = kind or W.common_dtype([start, stop, step])
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        number = max(0, -((start - stop) // step))
        for n in (0, number - 1) if number else ():
            W.literal(start + n * step, common)
    else:
        number = math.ceil((stop - start) / step)
    return Tensor(X.arange(start, step, max(0, number), common))


@answered
def linspace(
    start: float,
    stop: float,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers.

    Example:
        >>> pb.linspace(0.0, 1.0, 5)
        Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    check_device(device)
    kind = optional_dtype(dtype) or D.float32
    num = V.whole(num, "linspace: num", 0)
    for end in (start, stop) if num else ():
        W.literal(float(end), kind)
    return Tensor(X.linspace(float(start), float(stop), num, kind, endpoint))


@answered
def eye(
    n_rows: int, n_cols: int | None = None, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Ones on diagonal `k`, zeros elsewhere.

    Example:
        >>> pb.eye(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    check_device(device)
    rows, columns = shape_of((n_rows, n_rows if n_cols is None else n_cols))
    return Tensor(X.eye(rows, columns, V.diagonal(k), optional_dtype(dtype) or D.float32))


@spelled
def one_hot(x: Tensor, num_classes: int, *, axis: int = -1, dtype: Any = None) -> Tensor:
    """``out[i, c] = 1 if x[i] == c else 0``

    Example:
        >>> pb.one_hot(pb.tensor([0, 2]), 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    (classes,) = shape_of(num_classes)
    return Tensor(X.one_hot(value_of(x), classes, optional_dtype(dtype) or D.float32, axis))


@answered
@shaped("*arrays[_] or []")
def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinates on a grid, one tensor per axis; a single number is an axis of one.

    Example:
        >>> [x.shape for x in pb.meshgrid(pb.ones(2), pb.ones(3), indexing="ij")]
        [(2, 3), (2, 3)]
    """
    values = [value_of(a) for a in arrays]
    if indexing not in ("xy", "ij"):
        raise OptionError(f'meshgrid: indexing {indexing!r} is neither "xy" nor "ij"', code="E124")
    values = [v if v.shape else V.expand_dims(v, 0) for v in values]
    swap = indexing == "xy" and len(values) > 1
    order = list(range(len(values)))
    if swap:
        order[:2] = [1, 0]
    shape = tuple(values[n].shape[0] for n in order)
    axes = W.axes_of(shape)
    return [
        Tensor(W.make("meshgrid", shape, read(v, axes[order.index(n)])))
        for n, v in enumerate(values)
    ]


def sizes_of(sections: int | Sequence[int], extent: int) -> list[tuple[int, int]]:
    """Start and stop of each piece of a split.

    Raises: ShapeError where `sections` equal pieces do not fit.
    """
    if isinstance(sections, int):
        if sections < 1 or extent % sections:
            raise ShapeError(
                f"{extent} elements do not split into {sections} equal pieces",
                help="give the places to cut at as a list",
                code="E125",
            )
        size = extent // sections
        return [(n * size, (n + 1) * size) for n in range(sections)]
    cuts = [slice(None, V.whole(c, "split: a place")).indices(extent)[1] for c in sections]
    return list(zip([0, *cuts], [*cuts, extent], strict=True))
