"""Products of matrices, convolutions, attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.bridge.aten.table import aten, once, pulled, rule


@rule(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.matmul.default)
def matmul(x: Any, y: Any) -> Any:
    return pb.matmul(x, y)


def _scaled(x: Any, by: Any) -> Any:
    """A factor of integers is the integer towards 0, as in eager."""
    own = by if x.dtype.is_float else int(by)
    return x if own == 1 else x * own


@rule(aten.addmm.default, aten.baddbmm.default)
@once
def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    own = pb.matmul(a, b)
    own = _scaled(own, alpha)
    return own if beta == 0 else own + _scaled(x, beta)


@rule(aten.addmv.default)
@once
def addmv(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return addmm(x, a, b, beta=beta, alpha=alpha)


@rule(aten.addbmm.default)
def addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    own = pb.sum(pb.matmul(a, b), axis=0)
    own = _scaled(own, alpha)
    return own if beta == 0 else own + _scaled(x, beta)


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _convolved(
    stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Callable[..., Any]:
    """The convolution of these settings, as a function of input, weight and bias."""

    def run(x: Any, w: Any, b: Any = None) -> Any:
        rank = w.ndim - 2
        lone = x.ndim == rank + 1
        x = pb.expand_dims(x, axis=0) if lone else x
        s, p, d, e = (_each(v, rank) for v in (stride, padding, dilation, extra))
        if transposed:
            y = _TRANSPOSED[rank](x, w, b, s, p, e, groups, d)
        else:
            y = _CONVOLUTIONS[rank](x, w, b, s, p, d, groups)
        return y[0] if lone else y

    return run


def _each(value: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(value) * rank if len(value) == 1 else tuple(value)


@rule(aten.convolution.default)
def convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: int,
) -> Any:  # fmt: skip
    return _convolved(stride, padding, dilation, transposed, extra, groups)(x, w, b)


@rule(aten.convolution_backward.default)
def convolution_backward(
    head: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, extra: Any, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Of input, weight and bias, those that `mask` wants."""
    del bias_sizes
    run = _convolved(stride, padding, dilation, transposed, extra, groups)
    dx = pulled(lambda t: run(t, w), [x], head)[0] if mask[0] else None
    dw = pulled(lambda t: run(x, t), [w], head)[0] if mask[1] else None
    channel = head.ndim - (w.ndim - 2) - 1
    rest = tuple([n for n in range(head.ndim) if n != channel])
    return dx, dw, pb.sum(head, axis=rest) if mask[2] else None
