"""Maps over values: promotion, broadcasting, one definition per call.

``out[i, j] = f(a[i, j], b[0, j])``. Functions here take and give values; `Tensor` wraps them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

from pullback.errors import DTypeError, Origin, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType
from pullback.ir.expr import Axis, Cast, Expr, Extent
from pullback.ir.graph import SUM, Combiner, Definition, Form, Keep, Map, Reduce, Value, read
from pullback.tensor.record.trace import wrap

Scalar = bool | int | float
LARGEST = int(sys.float_info.max)
SHOWN = 256  # bits of an integer that a message shows
Operand = Value | Scalar
Shape = tuple[Extent, ...]


def make(
    name: str,
    shape: Sequence[Extent],
    body: Expr,
    form: Form = Map(),
    *,
    stop: bool = False,
    keep: Keep = Keep.AUTO,
) -> Definition:
    """A new definition, registered with the trace, that knows the user's expression."""
    origin = Origin.of_caller()
    return wrap(Definition(name, tuple(shape), body, form, stop, keep, origin))


def reduce(
    name: str, shape: Sequence[Extent], over: Sequence[Extent], body: Expr, by: Combiner = SUM
) -> Definition:
    """``out[i] = combine over k of body(i, k)``"""
    return make(name, shape, body, Reduce(by, tuple(over)))


def axes_of(shape: Sequence[Extent]) -> list[Expr]:
    """One axis value per extent."""
    return [Axis(n, e) for n, e in enumerate(shape)]


def cast(value: Expr, kind: DType) -> Expr:
    """`value` as `kind`; itself where it already is."""
    return value if value.dtype == kind else Cast(value, kind)


def weak_dtype(scalar: Scalar) -> DType:
    """The type of a Python scalar that meets no tensor."""
    return D.dtype(type(scalar) if type(scalar) in (bool, int, float) else float)


def common_dtype(operands: Sequence[Operand | Expr]) -> DType:
    """The promoted type; Python scalars are weak.

    float32 tensor with 2.5 -> float32; int32 tensor with 2.5 -> float32
    """
    strong = [o.dtype for o in operands if not isinstance(o, Scalar)]
    weak = [weak_dtype(o) for o in operands if isinstance(o, Scalar)]
    if not strong:
        return _promoted(weak)
    common = _promoted(strong)
    rank = {"b": 0, "i": 1, "u": 1, "f": 2}
    for kind in weak:
        if rank[kind.kind] > rank[common.kind]:
            common = kind
    return common


def _promoted(kinds: Sequence[DType]) -> DType:
    common = kinds[0]
    for kind in kinds[1:]:
        common = D.promote(common, kind)
    return common


def as_float(kind: DType) -> DType:
    """The type that a function of floats computes in: integers and booleans become float32."""
    return kind if kind.is_float else D.float32


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's rule: aligned at the end, an extent of one stretches.

    Raises: ShapeError with both shapes where they do not fit.
    """
    rank = max((len(s) for s in shapes), default=0)
    common: list[Extent] = [1] * rank
    for shape in shapes:
        for n, extent in enumerate(shape, start=rank - len(shape)):
            if extent == 1 or extent == common[n]:
                continue
            if common[n] != 1:
                _misfit(shapes)
            common[n] = extent
    return tuple(common)


def _misfit(shapes: Sequence[Shape]) -> None:
    listed = " and ".join(str(show(s)) for s in shapes)
    raise ShapeError(
        f"shapes {listed} do not broadcast",
        help="extents must be equal or 1, counted from the last axis",
        code="E110",
    )


def show(shape: Shape) -> str:
    """A shape as a tuple is written."""
    inner = ", ".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def broadcast_read(value: Value, shape: Shape, axes: Sequence[Expr]) -> Expr:
    """`value` read where it is broadcast to `shape`, whose axis values are `axes`."""
    skip = len(shape) - len(value.shape)
    indices = [
        E.index(0) if extent == 1 and shape[skip + n] != 1 else axes[skip + n]
        for n, extent in enumerate(value.shape)
    ]
    return read(value, *indices)


def operand_shape(operand: Operand) -> Shape:
    """The shape; of a Python scalar ``()``."""
    return () if isinstance(operand, Scalar) else operand.shape


def lifted(operand: Operand, kind: DType, shape: Shape, axes: Sequence[Expr]) -> Expr:
    """An operand as a scalar expression of type `kind` over the axes of `shape`."""
    if isinstance(operand, Scalar):
        return literal(operand, kind)
    return cast(broadcast_read(operand, shape, axes), kind)


def literal(scalar: Scalar, kind: DType) -> E.Const:
    """A Python number as `kind`. Raises: DTypeError where it does not fit."""
    if not kind.is_bool and not holds(kind, scalar):
        raise unfit(scalar, kind)
    return E.const(scalar, kind)


def holds(kind: DType, number: Scalar) -> bool:
    """Whether `kind` has a number for this one: an integer type for each in its range, a fraction
    cut off; a float type for each float, and each integer that is less than the largest float64.
    """
    lo, hi = kind.range() if kind.is_integer else (-LARGEST, LARGEST)
    if isinstance(number, int):
        return lo <= number <= hi
    return kind.is_float or (math.isfinite(number) and lo <= int(number) <= hi)


def unfit(number: Scalar, kind: DType) -> DTypeError:
    """The error of a number that its type has no place for."""
    bits = number.bit_length() if isinstance(number, int) else 0
    shown = str(number) if bits <= SHOWN else f"an integer of {bits} bits"
    return DTypeError(f"{shown} does not fit {kind}", code="E141")


def elementwise(
    name: str,
    function: Callable[..., Expr],
    operands: Sequence[Operand],
    kind: DType | None = None,
) -> Definition:
    """``out[i] = function(a[i], b[i], ..)`` with the operands promoted (or cast to `kind`)."""
    kind = common_dtype(operands) if kind is None else kind
    shape = broadcast_shapes([operand_shape(o) for o in operands])
    axes = axes_of(shape)
    args = [lifted(o, kind, shape, axes) for o in operands]
    return make(name, shape, function(*args))


def numeric(name: str, operands: Sequence[Operand | Expr]) -> DType:
    """The common type. Raises: DTypeError where it is bool."""
    kind = common_dtype(operands)
    if kind.is_bool:
        raise DTypeError(
            f"{name} is not defined for bool",
            help="cast with .astype, or use logical_and, logical_or, logical_xor",
        )
    return kind


def where(condition: Operand, then: Operand, otherwise: Operand) -> Definition:
    """``then[i] if condition[i] else otherwise[i]``; the other is not read."""
    operands = [condition, then, otherwise]
    shape = broadcast_shapes([operand_shape(o) for o in operands])
    kind = common_dtype([then, otherwise])
    axes = axes_of(shape)
    test = F.truth(lifted(condition, common_dtype([condition]), shape, axes))
    left, right = (lifted(o, kind, shape, axes) for o in (then, otherwise))
    return make("where", shape, E.If(test, left, right))


def clip(x: Operand, low: Operand | None, high: Operand | None) -> Definition:
    """``min(max(x, low), high)``; None is no bound."""
    bounds = [o for o in (low, high) if o is not None]
    kind = numeric("clip", [x, *bounds])

    def body(value: Expr, *limits: Expr) -> Expr:
        rest = list(limits)
        raised = value if low is None else E.maximum(value, rest.pop(0))
        return raised if high is None else E.minimum(raised, rest.pop(0))

    return elementwise("clip", body, [x, *bounds], kind)


def astype(x: Value, kind: DType) -> Definition:
    """`x` as another element type. Float to integer truncates and saturates."""
    return make("astype", x.shape, cast(read(x, *axes_of(x.shape)), kind))


def copy(x: Value, name: str, *, stop: bool = False, keep: Keep = Keep.AUTO) -> Definition:
    """``out[i] = x[i]``, with other marks."""
    return make(name, x.shape, read(x, *axes_of(x.shape)), stop=stop, keep=keep)


def broadcast_to(x: Value, shape: Shape) -> Definition:
    """`x` stretched to `shape`. Raises: ShapeError where it does not fit."""
    if broadcast_shapes([x.shape, shape]) != shape:
        _misfit([x.shape, shape])
    return make("broadcast_to", shape, broadcast_read(x, shape, axes_of(shape)))


def full(shape: Shape, value: Scalar, kind: DType) -> Definition:
    """``out[i] = value``"""
    return make("full", shape, literal(value, kind))
