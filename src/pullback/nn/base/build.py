"""How layers build definitions: one call makes a definition, registers it and wraps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pullback.errors import AxisError, DTypeError, Origin
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, int64, is_short, promote
from pullback.ir.expr import Expr, Extent
from pullback.ir.graph import SUM, Combiner, Keep, Value, define, read
from pullback.tensor.define.compute import compute
from pullback.tensor.face.handles import ScalarHandle, as_expr, astype
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import wrap
from pullback.tensor.values import elementwise
from pullback.tensor.values.indexing import checked_place


def make(
    name: str,
    shape: Iterable[Extent],
    body: Callable[..., Expr],
    *,
    over: Iterable[Extent] = (),
    combiner: Combiner = SUM,
    stop: bool = False,
    keep: Keep = Keep.AUTO,
) -> Tensor:
    """A tensor from a body over axes. ``out[i..] = combine over k.. of body(i.., k..)``"""
    origin = Origin.of_caller()
    return Tensor(
        wrap(
            define(
                name,
                shape,
                body,
                over=over,
                combiner=combiner,
                stop=stop,
                keep=keep,
                origin=origin,
            )
        )
    )


def pointwise(name: str, function: Callable[..., Any], *tensors: Tensor) -> Tensor:
    """``out[i] = function(a[i], b[i], ..)`` of scalars, broadcast; 16-bit floats in float32."""
    kind = common(*tensors)

    def body(*args: Expr) -> Expr:
        return cast(as_expr(function(*map(ScalarHandle, args))), kind)

    values = [t.value for t in tensors]
    within = float32 if is_short(kind) else kind
    return Tensor(elementwise.elementwise(name, body, values, within))


def written(shape: Iterable[Any], body: Callable[..., Any], name: str = "compute") -> Tensor:
    """The tensor ``out[i..] = body(i..)`` of scalars, as `pb.compute` makes it."""
    tensor = compute(tuple(shape), body, name=name)
    assert isinstance(tensor, Tensor)
    return tensor


def wide(x: Any) -> Any:
    """A scalar of a 16-bit float in float32."""
    return astype(x, float32) if is_short(x.dtype) else x


def at(value: Value, *index: Expr | int, to: DType | None = None) -> Expr:
    """``value[index]``, as type `to`; integer data used as an index becomes int64."""
    places = [
        i if isinstance(i, int) else cast(checked_place(i, 0, extent), int64)
        for i, extent in zip(index, value.shape, strict=True)
    ]
    return cast(read(value, *places), to)


def cast(value: Expr, to: DType | None) -> Expr:
    """`value` as type `to`, unless it is so already."""
    return value if to is None or value.dtype == to else E.Cast(value, to)


def common(*tensors: Tensor | None) -> DType:
    """The promoted float type of `tensors`. Raises: DTypeError where it is no float."""
    kinds = [t.dtype for t in tensors if t is not None]
    promoted = kinds[0]
    for kind in kinds[1:]:
        promoted = promote(promoted, kind)
    if not promoted.is_float:
        raise DTypeError(
            f"this layer works on floats, not {promoted}",
            help='cast the input first: x.astype("float32")',
            code="E144",
        )
    return promoted


def axis_of(dim: int, rank: int) -> int:
    """A dimension counted from 0. Raises: AxisError where it does not exist."""
    if not -rank <= dim < max(rank, 1):
        raise AxisError(f"no dim {dim} in a tensor of {rank} dims")
    return dim % rank if rank else 0


def count(extents: Iterable[Extent], kind: DType) -> Expr:
    """The number of elements of a box, as a float."""
    literal = 1
    total: Expr | None = None
    for extent in extents:
        if isinstance(extent, int):
            literal *= extent
            continue
        size = E.extent_expr(extent)
        total = size if total is None else E.Mul(total, size)
    if total is None:
        return E.const(literal, kind)
    if literal != 1:
        total = E.Mul(total, E.index(literal))
    return E.Cast(total, kind)


def total(values: Tensor, kind: DType | None = None) -> Tensor:
    """``s = sum[i..] values[i..]``"""
    source = values.value
    if source.shape == ():
        return values
    return make("total", (), lambda *i: at(source, *i, to=kind), over=source.shape)
