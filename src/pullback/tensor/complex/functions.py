"""What the public functions mean of complex numbers, over pairs; `complex.FUNCTIONS` has them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from pullback.errors import DTypeError, OptionError, ShapeError
from pullback.ir.dtype import DType, float32, float64
from pullback.tensor.complex import maths as P
from pullback.tensor.complex.pairs import (
    FUNCTIONS,
    OPERANDS,
    Complex,
    ComplexType,
    complex64,
    complex128,
    complex_type,
    pair_of,
)
from pullback.tensor.define.combine import associative_scan
from pullback.tensor.face.tensor import Tensor, check_device
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops
from pullback.tensor.library.ops import where
from pullback.tensor.values import elementwise as W

__all__ = ["Complex", "complex64", "complex128", "result_complex"]

# --- operands -------------------------------------------------------------------------------------


def _complex(x: Any) -> Complex:
    """An operand as a pair of tensors."""
    if isinstance(x, builtins.complex):
        return Complex(C.asarray(float(x.real)), C.asarray(float(x.imag)))
    return Complex.of(x)


def _even(real: Any, imag: Any) -> Complex:
    """Two parts of one shape and one type. Raises: DTypeError for parts that are no floats."""
    if not isinstance(real, Tensor):
        real = C.full_like(imag, real)
    elif not isinstance(imag, Tensor):
        imag = C.full_like(real, imag)
    kind = ops.result_type(real, imag)
    if kind not in (float32, float64):
        raise DTypeError(f"no complex numbers of {kind}", code="E149")
    if real.dtype != imag.dtype:
        real, imag = real.astype(kind, copy=False), imag.astype(kind, copy=False)
    if real.shape != imag.shape:
        real, imag = ops.broadcast_arrays(real, imag)
    return Complex(real, imag)


def _real(x: Any) -> bool:
    """Whether an operand has no imaginary part at all."""
    array = isinstance(x, np.ndarray | np.generic)
    return not (isinstance(x, Complex | builtins.complex) or (array and np.iscomplexobj(x)))


def _unary(name: str, z: Any) -> Complex:
    return Complex(*P.UNARY[name](*pair_of(_complex(z))))


# --- arithmetic -----------------------------------------------------------------------------------


def _add(z: Any, w: Any) -> Complex:
    """``z + w``; a real operand leaves the imaginary part as it is."""
    (a, b), (c, d) = pair_of(z), pair_of(w)
    return _even(a + c, _beside(b, c) if _real(w) else _beside(d, a) if _real(z) else b + d)


def _subtract(z: Any, w: Any) -> Complex:
    (a, b), (c, d) = pair_of(z), pair_of(w)
    return _even(a - c, _beside(b, c) if _real(w) else _beside(-d, a) if _real(z) else b - d)


def _beside(part: Any, other: Any) -> Any:
    """A part in the shape and type that it has beside `other`."""
    if not isinstance(other, Tensor):
        return part
    if not isinstance(part, Tensor):
        return C.full_like(other, part)
    alike, _ = ops.broadcast_arrays(part, other)
    return alike.astype(ops.result_type(part, other), copy=False)


def _multiply(z: Any, w: Any) -> Complex:
    """``(a + ib)(c + id) = ac - bd + i(ad + bc)``"""
    (a, b), (c, d) = pair_of(z), pair_of(w)
    if _real(w):
        return _even(a * c, b * c)
    return _even(a * c, a * d) if _real(z) else _even(*P.multiplied(a, b, c, d))


def _divide(z: Any, w: Any) -> Complex:
    """``(a + ib) / (c + id)``"""
    (a, b), (c, d) = pair_of(z), pair_of(w)
    if _real(w):
        return _even(a / c, b / c)
    if not isinstance(c, Tensor):
        c, d = (C.full_like(a, part) for part in (c, d))
    return _even(*P.divided(a, b, c, d))


POWERS = 8  # exponents up to here are products


def _pow(z: Any, w: Any) -> Complex:
    """``z**n`` by products for small whole n, else ``e**(w log z)``; 0 to 0 is 1."""
    whole = isinstance(w, int) or (isinstance(w, float) and w.is_integer())
    times = int(builtins.abs(w)) if whole else 0
    if 0 < times <= POWERS:
        product: Complex = reduce(_multiply, [_complex(z)] * times)
        return product if w > 0 else _divide(1.0, product)
    base = z if isinstance(z, Complex) else _as(z, w)
    nothing = M.logical_and(base.real == 0.0, base.imag == 0.0)
    one = Complex(where(nothing, 1.0, base.real), base.imag)
    power = _multiply(one.log(), w).exp()
    c, d = pair_of(w)
    none = M.logical_and(C.asarray(c) == 0.0, C.asarray(d) == 0.0)
    flat = where(none, 1.0, 0.0).astype(power.real.dtype)
    return Complex(where(nothing, flat, power.real), where(nothing, 0.0, power.imag))


def _as(x: Any, like: Any) -> Complex:
    """`x` as complex numbers, a Python number of the type of `like`."""
    if isinstance(x, Tensor) or not isinstance(like, Complex):
        return _complex(x)
    real, imag = pair_of(x)
    return Complex(*(C.full((), part, dtype=like.real.dtype) for part in (real, imag)))


# --- comparisons, choices -------------------------------------------------------------------------


def _equal(z: Any, w: Any) -> Tensor:
    (a, b), (c, d) = pair_of(z), pair_of(w)
    equal: Tensor = M.logical_and(M.equal(a, c), M.equal(b, d))
    return equal


def _truth(z: Complex) -> Tensor:
    nonzero: Tensor = M.logical_or(z.real != 0.0, z.imag != 0.0)
    return nonzero


def _where(condition: Any, z: Any, w: Any) -> Complex:
    (a, b), (c, d) = pair_of(z), pair_of(w)
    return _even(where(condition, a, c), where(condition, b, d))


# --- types and creation ---------------------------------------------------------------------------


def result_complex(*operands: Any) -> ComplexType:
    """The complex type that operands promote to, Python numbers being weak."""
    strong = [o for o in operands if not isinstance(o, bool | int | float | builtins.complex)]
    parts = []
    for o in strong:
        kind = o if isinstance(o, DType | ComplexType) else o.dtype
        parts.append(paired.part if (paired := complex_type(kind)) is not None else o)
    kind = ops.result_type(*parts) if parts else float32
    return complex128 if kind == float64 else complex64


def _astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Complex:
    """`x` as complex numbers. Raises: DTypeError where complex numbers are to become real."""
    kind = complex_type(dtype)
    if kind is None:
        raise DTypeError(f"complex numbers as {dtype}", help="z.real, z.imag, abs(z)", code="E149")
    real, imag = pair_of(x)
    part = kind.part
    if not isinstance(imag, Tensor):
        imag = C.full(x.shape, imag, dtype=part)
    if isinstance(x, Complex) and not copy and x.dtype is kind:
        return x
    return Complex(real.astype(part, copy=copy), imag.astype(part, copy=copy))


def _asarray(
    data: Any, dtype: Any = None, *, device: Any = None, copy: bool | None = None
) -> Complex:
    """Numbers, lists, arrays and tensors as complex numbers; a copy, but of a `Complex`."""
    check_device(device)
    if copy is False and not isinstance(data, Complex):
        raise OptionError(f"{type(data).__name__} as complex numbers: a copy", code="E324")
    if not isinstance(data, Complex | Tensor):
        listed = data if isinstance(data, np.ndarray | np.generic) else np.asarray(_listed(data))
        own = np.complex64 if listed is not data else listed.dtype
        wanted = complex_type(dtype) if dtype is not None else None
        data = Complex.of(np.asarray(listed, own if wanted is None else wanted.numpy))
    wanted = dtype if dtype is not None else data.dtype if isinstance(data, Complex) else complex64
    return _astype(data, wanted, copy=bool(copy))


def _listed(item: Any) -> Any:
    if isinstance(item, list | tuple):
        return [_listed(i) for i in item]
    return item.numpy() if isinstance(item, Tensor | Complex) else item


def _made(make: Callable[..., Tensor], at: int | None = None) -> Callable[..., Complex]:
    """A function that makes numbers, with a complex type; `at`: which argument is one of them."""

    def call(*args: Any, dtype: Any = None, **settings: Any) -> Complex:
        kind = _kind_of(dtype, args)
        halves = []
        for half in (0, 1):
            given = [a.real if isinstance(a, Complex) else a for a in args]
            if at is not None:
                given[at] = pair_of(args[at])[half]
            part = make(*given, dtype=kind.part, **settings)
            halves.append(C.zeros_like(part) if half and at is None else part)
        return Complex(*halves)

    return call


def _kind_of(dtype: Any, args: Sequence[Any]) -> ComplexType:
    if dtype is not None:
        kind = complex_type(dtype)
        if kind is None:
            raise DTypeError(f"complex numbers as {dtype}", code="E149")
        return kind
    return next((a.dtype for a in args if isinstance(a, Complex)), complex64)


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    """`zeros_like` and `ones_like`: of a `Complex` with a real type they are real."""

    def call(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
        real = x.real if isinstance(x, Complex) else x
        kind = x.dtype if dtype is None else complex_type(dtype)
        if kind is None:
            return make(real, dtype=dtype, device=device)
        converted = make(real, dtype=kind.part, device=device)
        return Complex(converted, C.zeros_like(converted))

    return call


def _full_like(x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    wanted = dtype if dtype is not None else x.dtype
    return C.full(x.shape, fill_value, dtype=wanted, device=device)


def _linspace(
    start: Any,
    stop: Any,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Complex:
    kind = complex_type(dtype) or complex64
    halves = zip(pair_of(start), pair_of(stop), strict=True)
    parts = (
        C.linspace(a, b, num, dtype=kind.part, device=device, endpoint=endpoint) for a, b in halves
    )
    return Complex(*parts)


# --- what is linear -------------------------------------------------------------------------------


def _linear(name: str, *args: Any, dtype: Any = None, **given: Any) -> Any:
    """What is linear, of each part; real operands have an imaginary part of 0."""
    if dtype is not None:
        args = (_astype(args[0], dtype), *args[1:])
    function = getattr(ops, name)
    real, imag = ([_part(a, half) for a in args] for half in ("real", "imag"))
    return _joined(function(*real, **given), function(*imag, **given))


def _joined(real: Any, imag: Any) -> Any:
    """A pair, or as many as there are results."""
    if isinstance(real, list | tuple):
        return type(real)(_joined(a, b) for a, b in zip(real, imag, strict=True))
    return _even(real, imag)


def _broadcast(*arrays: Any) -> list[Any]:
    """Each in the common shape, of its own type."""
    kept = [a if isinstance(a, Complex | Tensor) else C.asarray(a) for a in arrays]
    shape = W.broadcast_shapes([a.shape for a in kept])
    return [ops.broadcast_to(a, shape) for a in kept]


def _part(given: Any, half: str) -> Any:
    """A part of what is complex, inside of lists too; of a real float tensor ``x`` and ``0``."""
    if isinstance(given, Complex):
        return getattr(given, half)
    if isinstance(given, list | tuple):
        return type(given)(_part(g, half) for g in given)
    if isinstance(given, np.ndarray) and np.iscomplexobj(given):
        return getattr(Complex.of(given), half)
    if isinstance(given, builtins.complex):
        return getattr(given, half)
    real = isinstance(given, Tensor | np.ndarray) and str(given.dtype).startswith("float")
    return C.zeros_like(C.asarray(given)) if real and half == "imag" else given


def _product(name: str, *args: Any, **settings: Any) -> Complex:
    """What is linear in two operands: ``ac - bd + i(ad + bc)``."""
    function = getattr(ops, name)
    first, second = (n for n, a in enumerate(args) if isinstance(a, OPERANDS))

    def times(x: Tensor, y: Tensor) -> Any:
        given = [*args]
        given[first], given[second] = x, y
        return function(*given, **settings)

    z, w = args[first], args[second]
    if isinstance(w, Tensor):
        return _even(times(z.real, w), times(z.imag, w))
    if isinstance(z, Tensor):
        return _even(times(z, w.real), times(z, w.imag))
    (a, b), (c, d) = pair_of(z), pair_of(w)
    return _even(times(a, c) - times(b, d), times(a, d) + times(b, c))


def _running(earlier: Any, later: Any) -> Any:
    return P.multiplied(*earlier, *later)


def _cumulative_prod(
    x: Any, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Complex:
    x = x if dtype is None else _astype(x, dtype)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"cumulative_prod of {x.ndim} axes", help="say along which: axis=")
    place = 0 if axis is None else axis % x.ndim
    empty = 0 in x.shape
    running = x if empty else Complex(*associative_scan(_running, (x.real, x.imag), axis=place))
    if not include_initial:
        return running
    edge = (*x.shape[:place], 1, *x.shape[place + 1 :])
    first = Complex(*(C.full(edge, part, dtype=x.real.dtype) for part in (1.0, 0.0)))
    joined: Complex = _linear("concat", [first, running], axis=place)
    return joined


def _prod(x: Any, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    """The last of the running products."""
    x = x if dtype is None else _astype(x, dtype)
    rank = x.ndim
    listed = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    over = sorted({a % rank for a in listed}) if rank else []
    rest = [n for n in range(rank) if n not in over]
    flat = ops.permute_dims(x, (*rest, *over)).reshape(
        (*(x.shape[n] for n in rest), -1 if 0 not in x.shape else _volume(x, over))
    )
    product = _cumulative_prod(flat, axis=-1, include_initial=True)[..., -1]
    return ops.expand_dims(product, tuple(over)) if keepdims and over else product


def _volume(x: Complex, over: Sequence[int]) -> int:
    return int(np.prod([int(x.shape[n]) for n in over], dtype=np.int64))


def _vecdot(z: Any, w: Any, *, axis: int = -1) -> Complex:
    product: Complex = ops.sum(_multiply(_complex(z).conj(), w), axis=axis)
    return product


def _diff(x: Any, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """``out[i] = x[i + 1] - x[i]``, `n` times, of `x` between `prepend` and `append`."""
    parts = [p for p in (prepend, x, append) if p is not None]
    differences = ops.concat(parts, axis=axis) if len(parts) > 1 else x
    before = (slice(None),) * (axis % x.ndim)
    for _ in range(n):
        differences = (
            differences[(*before, slice(1, None))] - differences[(*before, slice(None, -1))]
        )
    return differences


def _pad(x: Any, pad_width: Any, value: Any = 0) -> Complex:
    """`value` around; either may be complex."""
    own = _complex(x)
    real, imag = pair_of(value)
    return Complex(ops.pad(own.real, pad_width, real), ops.pad(own.imag, pad_width, imag))


def _count(z: Any, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    number: Tensor = ops.sum(ops.astype(_truth(z), "int64"), axis=axis, keepdims=keepdims)
    return number


def _sigmoid(z: Complex) -> Complex:
    return _divide(1.0, _add((-z).exp(), 1.0))


_OWN: dict[str, Callable[..., Any]] = {
    "add": _add, "subtract": _subtract, "multiply": _multiply, "divide": _divide, "pow": _pow,
    "abs": lambda z: P.hypot(*pair_of(z)), "sigmoid": _sigmoid,
    "real": lambda z: M.positive(z.real), "imag": lambda z: M.positive(z.imag),
    "equal": _equal, "not_equal": lambda z, w: M.logical_not(_equal(z, w)),
    "isnan": lambda z: M.logical_or(M.isnan(z.real), M.isnan(z.imag)),
    "isinf": lambda z: M.logical_or(M.isinf(z.real), M.isinf(z.imag)),
    "isfinite": lambda z: M.logical_and(M.isfinite(z.real), M.isfinite(z.imag)),
    "any": lambda z, *args, **given: ops.any(_truth(z), *args, **given),
    "all": lambda z, *args, **given: ops.all(_truth(z), *args, **given),
    "pad": _pad, "diff": _diff, "count_nonzero": _count, "broadcast_arrays": _broadcast,
    "where": _where, "vecdot": _vecdot,
    "prod": _prod, "cumulative_prod": _cumulative_prod,
    "astype": _astype, "asarray": _asarray, "tensor": _asarray, "result_type": result_complex,
    "zeros": _made(C.zeros), "ones": _made(C.ones), "empty": _made(C.zeros),
    "eye": _made(C.eye), "full": _made(C.full, 1), "full_like": _full_like,
    "zeros_like": _like(C.zeros_like), "ones_like": _like(C.ones_like),
    "empty_like": _like(C.zeros_like), "linspace": _linspace,
    "meshgrid": lambda *arrays, **given: _joined(
        *(C.meshgrid(*(_part(a, half) for a in arrays), **given) for half in ("real", "imag"))
    ),
}  # fmt: skip
LINEAR = {
    "sum", "mean", "cumulative_sum", "stop_gradient", "reshape", "permute_dims",
    "matrix_transpose", "moveaxis", "expand_dims", "squeeze", "broadcast_to",
    "flip", "roll", "concat", "stack", "unstack", "split", "tile", "repeat", "tril", "triu",
    "take", "take_along_axis",
}  # fmt: skip
PRODUCTS = {"matmul", "tensordot", "outer", "einsum"}
FUNCTIONS |= {name: partial(_unary, name) for name in P.UNARY}
FUNCTIONS |= {name: partial(_linear, name) for name in LINEAR}
FUNCTIONS |= {name: partial(_product, name) for name in PRODUCTS}
FUNCTIONS |= _OWN
