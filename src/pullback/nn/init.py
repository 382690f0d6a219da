"""Initial values, under torch's names: each draws from `pullback.random` and assigns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pullback.errors import ShapeError
from pullback.ir.dtype import DType, float32
from pullback.ir.dtype import dtype as dtype_of
from pullback.ir.expr import upper
from pullback.nn.base.parameter import Parameter
from pullback.tensor.face.dialect import shown
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.library import random
from pullback.tensor.values import elementwise

__all__ = [
    "constant_", "fans", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "uniform_",
    "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip
__dir__ = shown(__all__)


def constant_(tensor: State, val: float) -> State:
    """``x = val``

    Example:
        >>> nn.init.constant_(nn.Parameter(pb.ones(2)), 3.0).tolist()
        [3.0, 3.0]
    """
    tensor.assign(elementwise.full(tensor.shape, val, tensor.dtype))
    return tensor


def zeros_(tensor: State) -> State:
    """``x = 0``

    Example:
        >>> nn.init.zeros_(nn.Parameter(pb.ones(2))).tolist()
        [0.0, 0.0]
    """
    return constant_(tensor, 0.0)


def ones_(tensor: State) -> State:
    """``x = 1``

    Example:
        >>> nn.init.ones_(nn.Parameter(pb.ones(2))).tolist()
        [1.0, 1.0]
    """
    return constant_(tensor, 1.0)


def uniform_(tensor: State, a: float = 0.0, b: float = 1.0) -> State:
    """``x ~ U(a, b)``

    Example:
        >>> nn.init.uniform_(nn.Parameter(pb.ones((3, 2)))).shape
        (3, 2)
    """
    tensor.assign(random.uniform(tensor.shape, a, b, dtype=tensor.dtype))
    return tensor


def normal_(tensor: State, mean: float = 0.0, std: float = 1.0) -> State:
    """``x ~ N(mean, std^2)``

    Example:
        >>> nn.init.normal_(nn.Parameter(pb.ones((3, 2)))).shape
        (3, 2)
    """
    tensor.assign(random.normal(tensor.shape, mean, std, dtype=tensor.dtype))
    return tensor


def xavier_uniform_(tensor: State, gain: float = 1.0) -> State:
    """``x ~ U(-a, a), a = gain sqrt(6 / (fan_in + fan_out))``

    Example:
        >>> nn.init.xavier_uniform_(nn.Parameter(pb.ones((3, 2)))).shape
        (3, 2)
    """
    into, out = fans(tensor)
    bound = gain * math.sqrt(6.0 / (into + out))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: State, gain: float = 1.0) -> State:
    """``x ~ N(0, s^2), s = gain sqrt(2 / (fan_in + fan_out))``

    Example:
        >>> nn.init.xavier_normal_(nn.Parameter(pb.ones((3, 2)))).shape
        (3, 2)
    """
    into, out = fans(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (into + out)))


def kaiming_uniform_(tensor: State, a: float = 0.0) -> State:
    """``x ~ U(-b, b), b = sqrt(6 / ((1 + a^2) fan_in))``

    Example:
        >>> nn.init.kaiming_uniform_(nn.Parameter(pb.ones((3, 2)))).shape
        (3, 2)
    """
    bound = math.sqrt(6.0 / ((1.0 + a * a) * fans(tensor)[0]))
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: State, a: float = 0.0) -> State:
    """``x ~ N(0, s^2), s = sqrt(2 / ((1 + a^2) fan_in))``

    Example:
        >>> nn.init.kaiming_normal_(nn.Parameter(pb.ones((3, 2)))).shape
        (3, 2)
    """
    return normal_(tensor, 0.0, math.sqrt(2.0 / ((1.0 + a * a) * fans(tensor)[0])))


def fans(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of a weight (out, in, ..). Raises: ShapeError below two axes.

    Example:
        >>> nn.init.fans(pb.ones((3, 2)))
        (2, 3)
    """
    if len(tensor.shape) < 2:
        raise ShapeError("a fan needs two axes", code="E111")
    field = math.prod(upper(e) for e in tensor.shape[2:])
    return upper(tensor.shape[1]) * field, upper(tensor.shape[0]) * field


def new_uniform(shape: Sequence[int], bound: float, dtype: object) -> Parameter:
    """A parameter drawn from U(-bound, bound)."""
    return Parameter(random.uniform(tuple(shape), -bound, bound, dtype=_float(dtype)))


def new_normal(shape: Sequence[int], std: float, dtype: object) -> Parameter:
    """A parameter drawn from N(0, std^2)."""
    return Parameter(random.normal(tuple(shape), 0.0, std, dtype=_float(dtype)))


def new_full(shape: Sequence[int], value: float, dtype: object) -> Parameter:
    """A parameter with one value everywhere."""
    kind = _float(dtype)
    return Parameter(Tensor(elementwise.full(tuple(shape), value, kind)))


def _float(dtype: object) -> DType:
    """The element type of new weights; None is float32."""
    return float32 if dtype is None else dtype_of(dtype)
