"""Products of matrices and their kin: sums of products. Functions take and give values.

``c[.., i, j] = sum over k of a[.., i, k] * b[.., k, j]``
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.errors import UnsupportedError
from pullback.ir.expr import Axis, Extent, Mul
from pullback.ir.graph import Definition, Value, read
from pullback.tensor import elementwise as W
from pullback.tensor import views as V
from pullback.tensor.elementwise import broadcast_shapes, cast, show


def matmul(a: Value, b: Value) -> Value:
    """The matrix product, batched and broadcast; one axis is a vector.

    Raises: ShapeError where the inner extents differ or an operand is a scalar.
    """
    kind = W.numeric("matmul", [a, b])
    if not a.shape or not b.shape:
        raise V.fail(
            f"matmul of {show(a.shape)} and {show(b.shape)}: a scalar is no matrix", code="E115"
        )
    inner = a.shape[-1]
    other = b.shape[-1] if len(b.shape) == 1 else b.shape[-2]
    if inner != other:
        raise V.fail(
            f"matmul of {show(a.shape)} and {show(b.shape)}: inner extents {inner} and {other}",
            "the last axis of the left and the last but one of the right must agree",
            code="E115",
        )
    lead = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    rows = a.shape[-2:-1]
    columns = () if len(b.shape) == 1 else b.shape[-1:]
    shape = (*lead, *rows, *columns)
    axes = W.axes_of(shape)
    k = Axis(len(shape), inner)
    batch = axes[: len(lead)]
    row = axes[len(lead) : len(lead) + len(rows)]
    column = axes[len(lead) + len(rows) :]
    left = W.broadcast_read(a, (*lead, *rows, inner), [*batch, *row, k])
    right = W.broadcast_read(b, (*lead, inner, *columns), [*batch, k, *column])
    body = Mul(cast(left, kind), cast(right, kind))
    return W.reduce("matmul", shape, [inner], body)


def tensordot(a: Value, b: Value, axes: int | tuple[Sequence[int], Sequence[int]]) -> Value:
    """The sum of products over matched axes; the rest of `a`, then the rest of `b`."""
    if isinstance(axes, int):
        left = list(range(len(a.shape) - axes, len(a.shape)))
        right = list(range(axes))
    else:
        left = [V.normal_axis(n, len(a.shape)) for n in axes[0]]
        right = [V.normal_axis(n, len(b.shape)) for n in axes[1]]
    letters = [f"a{n}" for n in range(len(a.shape))]
    others = [f"b{n}" for n in range(len(b.shape))]
    for n, m in zip(left, right, strict=True):
        others[m] = letters[n]
    out = [s for n, s in enumerate(letters) if n not in left]
    out += [s for n, s in enumerate(others) if n not in right]
    return contract([a, b], [letters, others], out)


def einsum(subscripts: str, operands: Sequence[Value]) -> Value:
    """``einsum("bij,bjk->bik", a, b)``: a sum of products named by letters.

    Raises: ShapeError for subscripts that do not fit, UnsupportedError for an ellipsis.
    """
    if "." in subscripts:
        raise UnsupportedError("einsum with an ellipsis")
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    listed = inputs.split(",")
    if not arrow:
        letters = sorted(set("".join(listed)))
        output = "".join(s for s in letters if inputs.count(s) == 1)
    if len(listed) != len(operands):
        raise V.fail(f"einsum of {len(listed)} terms with {len(operands)} operands", code="E116")
    return contract(operands, [list(t) for t in listed], list(output))


def contract(
    operands: Sequence[Value], names: Sequence[Sequence[str]], out: Sequence[str]
) -> Definition:
    """The sum of products over every name that `out` does not have."""
    extents: dict[str, Extent] = {}
    for value, term in zip(operands, names, strict=True):
        if len(term) != len(value.shape):
            raise V.fail(
                f"{len(term)} subscripts for a tensor of shape {show(value.shape)}", code="E116"
            )
        for name, extent in zip(term, value.shape, strict=True):
            if extents.setdefault(name, extent) != extent:
                raise V.fail(f"subscript {name} is {extents[name]} and {extent}", code="E116")
    missing = [n for n in out if n not in extents]
    if missing or len(set(out)) != len(out):
        raise V.fail(f"output subscripts {''.join(out)} do not fit the inputs", code="E116")
    over = [n for n in extents if n not in out]
    axes = {n: Axis(place, extents[n]) for place, n in enumerate([*out, *over])}
    kind = W.numeric("einsum", operands)
    factors = [
        cast(read(value, *(axes[n] for n in term)), kind)
        for value, term in zip(operands, names, strict=True)
    ]
    body = factors[0]
    for factor in factors[1:]:
        body = Mul(body, factor)
    shape = [extents[n] for n in out]
    if not over:
        return W.make("einsum", shape, body)
    return W.reduce("einsum", shape, [extents[n] for n in over], body)
