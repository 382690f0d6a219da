"""Versions before NumPy's broadcasting: the second operand is spread from an axis on if it is said.

``broadcast=1, axis=1:  [2, 3, 4] + [3]  ->  [2, 3, 4] + [1, 3, 1]``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
from pullback.onnx.rules.elementwise import divide, power
from pullback.onnx.rules.norms import batch_norm_7
from pullback.onnx.rules.products import gemm
from pullback.onnx.rules.table import demand, enter, rule


def _spread(x: Any, y: Any, broadcast: int, axis: int | None) -> Any:
    """The second operand over the axes of the first."""
    if not broadcast:
        demand(tuple(x.shape) == tuple(y.shape), "shapes that differ, without broadcast")
        return y
    at = x.ndim - y.ndim if axis is None else axis + (x.ndim if axis < 0 else 0)
    demand(0 <= at <= x.ndim - y.ndim, f"axis={axis}")
    return pb.reshape(y, (*[1] * at, *y.shape, *[1] * (x.ndim - y.ndim - at)))


def _first(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, y: Any, *, broadcast: int, axis: int | None) -> Any:
        return function(x, _spread(x, y, broadcast, axis))

    return run


def _with_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of version 1, which tells what may be overwritten."""

    def run(
        x: Any, y: Any, *, broadcast: int, axis: int | None, consumed_inputs: Any = None
    ) -> Any:
        del consumed_inputs
        return function(x, _spread(x, y, broadcast, axis))

    return run


for _name, _function in (
    ("Add", pb.add), ("Sub", pb.subtract), ("Mul", pb.multiply), ("Div", divide),
):  # fmt: skip
    enter(_name, (6,), _first(_function))
    enter(_name, (1,), _with_inputs(_function))
for _name, _function in (
    ("Pow", power), ("And", pb.logical_and), ("Or", pb.logical_or), ("Xor", pb.logical_xor),
    ("Equal", pb.equal), ("Less", pb.less), ("Greater", pb.greater),
):  # fmt: skip
    enter(_name, (1,), _first(_function))


@rule("PRelu", 6)
def prelu_6(x: Any, slope: Any) -> Any:
    """A slope for each channel, or one."""
    own = slope if slope.ndim != 1 else pb.reshape(slope, (-1, *[1] * (x.ndim - 2)))
    return pb.where(x < 0, x * own, x)


@rule("Gemm", 6)
def gemm_6(
    a: Any, b: Any, c: Any, *, alpha: float, beta: float, broadcast: int, transA: int, transB: int
) -> Any:
    y = gemm(a, b, None, alpha=alpha, beta=1.0, transA=transA, transB=transB)
    demand(bool(broadcast) or tuple(c.shape) == tuple(y.shape), "shapes that differ")
    return y + (c if beta == 1.0 else pb.astype(c * beta, a.dtype))


@rule("BatchNormalization", 6)
def batch_norm_6(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float, is_test: int,
    momentum: float, spatial: int, outputs: Sequence[bool],
) -> Any:  # fmt: skip
    demand(bool(is_test), "statistics of a batch")
    rest = {"epsilon": epsilon, "momentum": momentum, "spatial": spatial, "outputs": outputs}
    return batch_norm_7(x, scale, bias, mean, var, **rest)
