"""Rules of ATen operators: each as a function of pullback's tensors, by overload.

``aten.mul.Tensor(x, y)  ->  pb.multiply(x, y)``
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

import pullback as pb
from pullback.ir.dtype import is_short
from pullback.tensor.complex.pairs import ComplexType
from pullback.tensor.face.tensor import Tensor

Rule = Callable[..., Any]

aten = torch.ops.aten
RULES: dict[Any, Rule] = {}
COMPLEX: dict[Any, Rule] = {}
"""Rules that take complex numbers, where those of real ones do not."""
# What a rule says before it is asked: why it does not take these arguments, or None.
REFUSES: dict[Any, Callable[..., str | None]] = {}


def rule(
    *overloads: Any, refuses: Callable[..., str | None] | None = None
) -> Callable[[Rule], Rule]:
    """A decorator: the rule of these overloads; `refuses` is asked with a node's arguments."""

    def add(function: Rule) -> Rule:
        for overload in overloads:
            RULES[overload] = function
            if refuses is not None:
                REFUSES[overload] = refuses
        return function

    return add


def rules() -> tuple[str, ...]:
    """Operators of PyTorch that programs have: their names, by overload.

    Example:
        >>> "aten.mul.Tensor" in pb.torch.rules()
        True
    """
    return tuple(sorted(map(str, RULES)))


def same(names: dict[str, Rule]) -> None:
    """Operators whose overloads all take what a function takes, by name."""
    for name, function in names.items():
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if overload in ("default", "Tensor", "Scalar", "self"):
                RULES[getattr(packet, overload)] = function


def axes(dim: Any, rank: int) -> tuple[int, ...] | None:
    """Axes from what ATen calls `dim`: none, or an empty list, are all; a number has none."""
    if dim is None or not rank or (isinstance(dim, list | tuple) and not dim):
        return None
    every = [dim] if isinstance(dim, int) else dim
    return tuple([d % rank for d in every])


def of_numbers(function: Rule) -> Rule:
    """The rule of a tensor, an axis, places along it and values, of a number too: a row of one.

    Where there are no places, of whatever shape, it is the tensor as it was.
    """

    @wraps(function)
    def run(x: Any, dim: int, *places: Any, **named: Any) -> Any:
        if 0 in places[0].shape:
            return x
        if x.ndim:
            return function(x, dim, *places, **named)
        rows = [pb.reshape(p, (-1,)) if isinstance(p, Tensor) else p for p in places]
        return pb.reshape(function(pb.reshape(x, (1,)), 0, *rows, **named), ())

    return run


# What this PyTorch makes of what is too large for e4m3fn: its largest number, or NaN, as we do.
SATURATES = float(torch.tensor(math.inf).to(torch.float8_e4m3fn)) == 448.0


def cast(x: Any, kind: pb.DType | ComplexType) -> Any:
    """`x` as another type, as PyTorch converts."""
    if SATURATES and kind == pb.float8_e4m3fn and x.dtype not in (kind, pb.bool_):
        x = pb.clip(x if x.dtype.is_float else pb.astype(x, pb.float32), -448.0, 448.0)
    return pb.astype(x, kind)


def once(function: Rule) -> Rule:
    """The rule of short floats that rounds its result alone, as kernels of PyTorch's do: what is
    written in several steps is computed in 32. ``bf16(x) @ bf16(w) + bf16(b)  ->  bf16(x @ w + b)``
    """

    def wide(x: Any) -> Any:
        half = isinstance(x, Tensor) and is_short(x.dtype)
        return pb.astype(x, pb.float32) if half else x

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        return function(*map(wide, args), **{name: wide(v) for name, v in named.items()})

    return run


def pulled(function: Rule, primals: list[Any], *heads: Any) -> tuple[Any, ...]:
    """The adjoints of `primals` under a function, by heads of its results."""
    _, back = pb.vjp(function, *primals)
    return tuple(back(heads[0] if len(heads) == 1 else heads))


def placed(head: Any, x: Any, places: Any, space: int) -> Any:
    """The adjoint of `x` under a pool: each head at its place in the last `space` axes."""
    lead = tuple(x.shape[: x.ndim - space])
    room = math.prod(x.shape[x.ndim - space :])
    rows = (*lead, math.prod(head.shape[x.ndim - space :]))
    zeros = pb.zeros((*lead, room), dtype=head.dtype)
    flat = pb.scatter_add(zeros, pb.reshape(places, rows), pb.reshape(head, rows), axis=-1)
    return pb.reshape(flat, tuple(x.shape))
