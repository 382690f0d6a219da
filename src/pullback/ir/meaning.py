"""What each scalar primitive computes, over NumPy arrays: the one statement of its semantics.

Constant folding and the reference interpreters share it, so a rewrite can never disagree with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, is_short
from pullback.ir.expr import Expr
from pullback.ir.node import Node, walk

Array = np.ndarray[Any, Any]
Operation = Callable[..., Any]


def _odd(value: Array) -> Array:
    """A float64 as the float32 that rounds to fewer bits as it does: odd, if it is inexact."""
    near = value.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.int32)
    moves = (back != value) & (bits % 2 == 0) & ~np.isnan(value)
    step = np.where(abs(back) < abs(value), 1, -1)
    return np.asarray(np.where(moves, bits + step, bits), np.int32).view(np.float32)


def convert(value: Array, source: DType, to: DType) -> Array:
    """`value` as type `to`. Float to integer truncates and saturates, NaN gives 0."""
    if source == to:
        return value
    if to.is_bool:
        return np.asarray(value != 0)
    if not (source.is_float and to.is_integer):
        narrow = source.bits == 64 and source.is_float and is_short(to)
        return (_odd(value) if narrow else value).astype(to.numpy)
    lo, hi = to.range()
    wide = value.astype(np.float64)
    inside = np.trunc(np.where(np.isnan(wide), 0.0, wide))
    # hi + 1.0 is a power of two, so it is exact in float64 even where hi is not.
    above = inside >= hi + 1.0
    below = inside < float(lo)
    safe = np.where(above | below, 0.0, inside).astype(np.int64 if to.kind == "i" else np.uint64)
    return np.where(above, hi, np.where(below, lo, safe)).astype(to.numpy)


def _in_float64(function: Operation) -> Operation:
    """`function` of narrower floats computed in float64, where theirs are exact."""

    def widened(left: Array, right: Array) -> Any:
        if left.dtype.kind in "iu" or left.dtype == np.float64:
            return function(left, right)
        return function(left.astype(np.float64), right.astype(np.float64)).astype(left.dtype)

    return widened


@_in_float64
def _floor_divide(left: Array, right: Array) -> Any:
    """The floor of the exact quotient: one less where that is below its rounded floor."""
    if left.dtype.kind in "iu":
        zero = right == 0
        quotient = np.floor_divide(left, np.where(zero, 1, right))
        return np.where(zero, 0, quotient).astype(left.dtype)
    quotient = np.divide(left, right)
    rest = np.fmod(left, right)
    floor = np.floor(quotient)
    far = np.abs(rest) > np.abs(right) / 2
    rounded = (quotient == floor) & (rest != 0) & (np.abs(quotient) < 2.0**53)
    unlike = (rest < 0) != (right < 0)
    return np.where(rounded & (far != unlike), floor - 1, floor)


def _modulo(left: Array, right: Array) -> Any:
    """C's `fmod`, which is exact, with the sign of `right`."""
    if left.dtype.kind in "iu":
        zero = right == 0
        return np.where(zero, 0, np.remainder(left, np.where(zero, 1, right))).astype(left.dtype)
    wide = left.dtype if left.dtype.itemsize > 2 else np.dtype(np.float32)
    a = left.astype(wide)
    c = right.astype(wide)
    rest = np.fmod(a, c)
    unlike = (rest != 0) & ((rest < 0) != (c < 0))
    signed = np.where(unlike, rest + c, np.where(rest == 0, np.copysign(rest, c), rest))
    return signed.astype(left.dtype)


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


def apply(node: Expr, args: Sequence[Array], kind: DType | None = None) -> Array:
    """The value of `node` given its children's; arrays broadcast. No leaf, no `Take`.

    `kind`: the type that it is computed in, if not its own.

    Raises: InvalidIR for a node that is not an operation on scalars.
    """
    with np.errstate(all="ignore"):
        if isinstance(node, E.Cast):
            return np.asarray(convert(args[0], node.value.dtype, node.to))
        operation = _OPERATIONS.get(type(node))
        if operation is None:
            raise InvalidIR(f"{type(node).__name__} is not an operation on scalars")
        return np.asarray(operation(*args), dtype=(kind or node.dtype).numpy)


def constant(node: E.Const) -> Array:
    """A literal as a 0-d array."""
    with np.errstate(all="ignore"):
        return np.asarray(node.value, dtype=node.dtype.numpy)


def work_out(roots: Iterable[Node], known: dict[Node, Array]) -> None:
    """Adds the values of `roots`, and of all that they are made of, to those that are known."""
    for node in walk(roots, skip=known):
        if isinstance(node, E.Const):
            known[node] = constant(node)
        elif isinstance(node, Expr):
            known[node] = apply(node, [known[c] for c in node.children])


def holds(conditions: Sequence[Expr], known: dict[Node, Array], box: Sequence[int]) -> Array:
    """Where in a box all conditions hold, whose leaves are known."""
    work_out(conditions, known)
    return reduce(np.logical_and, map(known.__getitem__, conditions), np.ones(box, bool))
