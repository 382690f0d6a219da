"""What each scalar primitive computes, over NumPy arrays: the one statement of its semantics.

Constant folding and the reference interpreters share it, so a rewrite can never disagree with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr

Array = np.ndarray[Any, Any]
Operation = Callable[..., Any]


def convert(value: Array, source: DType, to: DType) -> Array:
    """`value` as type `to`. Float to integer truncates and saturates, NaN gives 0."""
    if source == to:
        return value
    if to.is_bool:
        return np.asarray(value != 0)
    if not (source.is_float and to.is_integer):
        return value.astype(to.numpy)
    lo, hi = to.range()
    wide = value.astype(np.float64)
    inside = np.trunc(np.where(np.isnan(wide), 0.0, wide))
    # hi + 1.0 is a power of two, so it is exact in float64 even where hi is not.
    above, below = inside >= hi + 1.0, inside < float(lo)
    safe = np.where(above | below, 0.0, inside).astype(np.int64 if to.kind == "i" else np.uint64)
    return np.where(above, hi, np.where(below, lo, safe)).astype(to.numpy)


def _floor_divide(left: Array, right: Array) -> Any:
    if left.dtype.kind not in "iu":
        return np.floor(np.divide(left, right)).astype(left.dtype)
    zero = right == 0
    return np.where(zero, 0, np.floor_divide(left, np.where(zero, 1, right))).astype(left.dtype)


def _modulo(left: Array, right: Array) -> Any:
    if left.dtype.kind not in "iu":
        return left - _floor_divide(left, right) * right
    zero = right == 0
    return np.where(zero, 0, np.remainder(left, np.where(zero, 1, right))).astype(left.dtype)


def _select(condition: Array, then: Array, otherwise: Array) -> Any:
    return np.where(condition, then, otherwise)


_OPERATIONS: dict[type[Expr], Operation] = {
    E.Add: np.add,
    E.Mul: np.multiply,
    E.Div: np.divide,
    E.FloorDiv: _floor_divide,
    E.Mod: _modulo,
    E.Less: np.less,
    E.Equal: np.equal,
    E.And: np.bitwise_and,
    E.Or: np.bitwise_or,
    E.Xor: np.bitwise_xor,
    E.Exp: np.exp,
    E.Log: np.log,
    E.Sqrt: np.sqrt,
    E.Sin: np.sin,
    E.If: _select,
}


def apply(node: Expr, args: Sequence[Array]) -> Array:
    """The value of `node` given its children's; arrays broadcast. No leaf, no `Take`.

    Raises: InvalidIR for a node that is not an operation on scalars.
    """
    with np.errstate(all="ignore"):
        if isinstance(node, E.Cast):
            return np.asarray(convert(args[0], node.value.dtype, node.to))
        operation = _OPERATIONS.get(type(node))
        if operation is None:
            raise InvalidIR(f"{type(node).__name__} is not an operation on scalars")
        return np.asarray(operation(*args), dtype=node.dtype.numpy)


def constant(node: E.Const) -> Array:
    """A literal as a 0-d array."""
    with np.errstate(all="ignore"):
        return np.asarray(node.value, dtype=node.dtype.numpy)
