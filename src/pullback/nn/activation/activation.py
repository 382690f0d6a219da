"""Activations and softmax under torch's names, as functions and as modules."""

from __future__ import annotations

from typing import Any

from pullback.errors import UnsupportedError
from pullback.nn.base.build import axis_of, pointwise, written
from pullback.nn.base.layer import Layer
from pullback.nn.base.module import Module
from pullback.nn.init import new_full
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor, check_device, tensor_apply
from pullback.tensor.library import maths as M
from pullback.tensor.library import random
from pullback.tensor.library.ops import argmax, stop_gradient, where
from pullback.tensor.shaped import shaped
from pullback.tensor.values import indexing, reduction
from pullback.tensor.values import views as V
from pullback.tensor.values.precise import in_float32

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
LEAST_DRAWN = 2.0**-25  # of an exponential number: half of the least that is not 0

# `inplace` stands for torch's signature: the planner decides what overwrites what.


@shaped("input[b...] -> [b...]")
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``max(0, x)``

    Example:
        >>> F.relu(pb.tensor([-1.0, 2.0]))
        Tensor([0., 2.], dtype=float32)
    """
    return tensor_apply("relu", input)


@shaped("input[b...] -> [b...]")
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``x * P(z <= x)``, z standard normal; "tanh" is the usual approximation.

    Raises: UnsupportedError for another `approximate`.

    Example:
        >>> F.gelu(pb.tensor([-1.0, 2.0]))
        Tensor([-0.15865529,  1.9544997 ], dtype=float32)
    """
    if approximate == "none":
        return tensor_apply("gelu", input)
    if approximate == "tanh":
        return tensor_apply("gelu_tanh", input)
    raise UnsupportedError(
        f"gelu with approximate={approximate!r}", help='use "none" or "tanh"', code="E312"
    )


@shaped("input[b...] -> [b...]")
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """``x * sigmoid(x)``

    Example:
        >>> F.silu(pb.tensor([-1.0, 2.0]))
        Tensor([-0.2689414,  1.761594 ], dtype=float32)
    """
    return tensor_apply("silu", input)


@shaped("input[b...] -> [b...]")
def sigmoid(input: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``

    Example:
        >>> F.sigmoid(pb.tensor([-1.0, 2.0]))
        Tensor([0.2689414, 0.880797 ], dtype=float32)
    """
    return tensor_apply("sigmoid", input)


@shaped("input[b...] -> [b...]")
def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent.

    Example:
        >>> F.tanh(pb.tensor([-1.0, 2.0]))
        Tensor([-0.7615941,  0.9640276], dtype=float32)
    """
    return tensor_apply("tanh", input)


@shaped("input[b...] -> [b...]")
def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(x))``

    Example:
        >>> F.logsigmoid(pb.tensor([-1.0, 2.0]))
        Tensor([-1.3132617, -0.126928 ], dtype=float32)
    """
    return tensor_apply("log_sigmoid", input)


@shaped("input[b...] -> [b...]", where="beta != 0")
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta x)) / beta``; `x` itself where ``beta x > threshold``.

    Example:
        >>> F.softplus(pb.tensor([-1.0, 2.0]))
        Tensor([0.3132617, 2.126928 ], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where(x * beta > threshold, x, M.softplus(x * beta) / beta)

    return pointwise("softplus", body, input)


@shaped("input[b...] -> [b...]")
def softsign(input: Tensor) -> Tensor:
    """``x / (1 + |x|)``

    Example:
        >>> F.softsign(pb.tensor([-1.0, 2.0]))
        Tensor([-0.5      ,  0.6666667], dtype=float32)
    """
    return pointwise("softsign", lambda x: x / (1.0 + abs(x)), input)


@shaped("input[b...] -> [b...]")
def tanhshrink(input: Tensor) -> Tensor:
    """``x - tanh(x)``

    Example:
        >>> F.tanhshrink(pb.tensor([-1.0, 2.0]))
        Tensor([-0.23840588,  1.0359724 ], dtype=float32)
    """
    return pointwise("tanhshrink", lambda x: x - M.tanh(x), input)


@shaped("input[b...] -> [b...]")
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """``x * tanh(log(1 + exp(x)))``

    Example:
        >>> F.mish(pb.tensor([-1.0, 2.0]))
        Tensor([-0.30340147,  1.9439589 ], dtype=float32)
    """
    return pointwise("mish", lambda x: x * M.tanh(M.softplus(x)), input)


@shaped("input[b...] -> [b...]")
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``x if x > 0 else alpha (exp(x) - 1)``

    Example:
        >>> F.elu(pb.tensor([-1.0, 2.0]))
        Tensor([-0.6321206,  2.       ], dtype=float32)
    """
    return pointwise("elu", lambda x: where(x > 0.0, x, M.expm1(x) * alpha), input)


@shaped("input[b...] -> [b...]", where="alpha != 0")
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``x if x > 0 else alpha (exp(x / alpha) - 1)``

    Example:
        >>> F.celu(pb.tensor([-1.0, 2.0]))
        Tensor([-0.6321206,  2.       ], dtype=float32)
    """
    return pointwise("celu", lambda x: where(x > 0.0, x, M.expm1(x / alpha) * alpha), input)


@shaped("input[b...] -> [b...]")
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """``scale (x if x > 0 else alpha (exp(x) - 1))``, which keeps mean 0 and variance 1.

    Example:
        >>> F.selu(pb.tensor([-1.0, 2.0]))
        Tensor([-1.1113307,  2.101402 ], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where(x > 0.0, x, M.expm1(x) * SELU_ALPHA) * SELU_SCALE

    return pointwise("selu", body, input)


@shaped("input[b...] -> [b...]")
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``x if x > 0 else slope x``

    Example:
        >>> F.leaky_relu(pb.tensor([-1.0, 2.0]))
        Tensor([-0.01,  2.  ], dtype=float32)
    """
    return pointwise("leaky_relu", lambda x: where(x > 0.0, x, x * negative_slope), input)


@shaped("input[b...] -> [b...]", where="min_val <= max_val")
def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """``min(max(x, low), high)``; its derivative is 0 at both ends.

    Example:
        >>> F.hardtanh(pb.tensor([-1.0, 2.0]))
        Tensor([-1.,  1.], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where(x <= min_val, min_val, where(x >= max_val, max_val, x))

    return pointwise("hardtanh", body, input)


@shaped("input[b...] -> [b...]")
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(x, 0), 6)``

    Example:
        >>> F.relu6(pb.tensor([-1.0, 2.0]))
        Tensor([0., 2.], dtype=float32)
    """
    return hardtanh(input, 0.0, 6.0)


@shaped("input[b...] -> [b...]")
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(x / 6 + 1 / 2, 0), 1)``

    Example:
        >>> F.hardsigmoid(pb.tensor([-1.0, 2.0]))
        Tensor([0.3333333, 0.8333334], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where(x <= -3.0, 0.0, where(x >= 3.0, 1.0, x / 6.0 + 0.5))

    return pointwise("hardsigmoid", body, input)


@shaped("input[b...] -> [b...]")
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """``x min(max(x / 6 + 1 / 2, 0), 1)``

    Example:
        >>> F.hardswish(pb.tensor([-1.0, 2.0]))
        Tensor([-0.3333333,  1.6666667], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where(x <= -3.0, 0.0, where(x < 3.0, x * (x / 6.0 + 0.5), x))

    return pointwise("hardswish", body, input)


@shaped("input[b...] -> [b...]")
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``0 if -l <= x <= l else x``

    Example:
        >>> F.hardshrink(pb.tensor([-1.0, 2.0]))
        Tensor([-1.,  2.], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where((x >= -lambd) & (x <= lambd), 0.0, x)

    return pointwise("hardshrink", body, input)


@shaped("input[b...] -> [b...]", where="lambd >= 0")
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``x - l`` above l, ``x + l`` below -l, else 0.

    Example:
        >>> F.softshrink(pb.tensor([-1.0, 2.0]))
        Tensor([-0.5,  1.5], dtype=float32)
    """

    def body(x: Any) -> Any:
        return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0))

    return pointwise("softshrink", body, input)


@shaped("input[b...] -> [b...]")
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """``x if x > threshold else value``

    Example:
        >>> F.threshold(pb.tensor([-1.0, 2.0]), 0.5, 0.0)
        Tensor([0., 2.], dtype=float32)
    """
    return pointwise("threshold", lambda x: where(x <= threshold, value, x), input)


@shaped("input[n, c, ...] or [...], weight[c?] or []")
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """``x if x > 0 else w[c] x``; one weight, or one for each channel (axis 1).

    Example:
        >>> F.prelu(pb.tensor([-1.0, 2.0]), pb.tensor([0.25]))
        Tensor([-0.25,  2.  ], dtype=float32)
    """
    many = weight.size != 1 and len(input.shape) > 1
    tail = (1,) * (len(input.shape) - 2)
    slope = weight.reshape(-1, *tail) if many else weight.reshape(-1)[0]
    return pointwise("prelu", lambda x, w: where(x > 0.0, x, x * w), input, slope)


@shaped("input[b...] -> [b...]", where="lower <= upper")
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """`leaky_relu` with a slope drawn from U(lower, upper) for each element; else their mean.

    Example:
        >>> F.rrelu(pb.tensor([-1.0, 2.0]))
        Tensor([-0.22916667,  2.        ], dtype=float32)
    """
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    slope = random.uniform(input.shape, lower, upper, dtype=input.dtype)
    return pointwise("rrelu", lambda x, w: where(x > 0.0, x, x * w), input, slope)


@spelled
@shaped("input[...]")
@in_float32
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """``a * sigmoid(b)`` of the two halves along `dim`. Raises: ShapeError for an odd extent.

    Example:
        >>> F.glu(pb.tensor([1.0, 2.0, 0.0, 0.0]))
        Tensor([0.5, 1. ], dtype=float32)
    """
    axis = axis_of(dim, len(input.shape))
    extent = input.shape[axis] if input.shape else 1
    if not isinstance(extent, int) or extent % 2:
        raise V.fail(f"glu halves an axis of {extent} elements", code="E125")
    half = extent // 2
    shape = (*input.shape[:axis], half, *input.shape[axis + 1 :])

    def body(*i: Any) -> Any:
        gate = input[(*i[:axis], i[axis] + half, *i[axis + 1 :])]
        return input[i] * M.sigmoid(gate)

    return written(shape, body, name="glu")


@spelled
@shaped("input[b...] -> [b...]")
def softmax(input: Tensor, dim: int = -1) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along `dim`.

    Example:
        >>> F.softmax(pb.tensor([0.0, 1.0]), dim=-1)
        Tensor([0.2689414, 0.7310586], dtype=float32)
    """
    axis = axis_of(dim, len(input.shape))
    return Tensor(reduction.softmax(input.value, axis))


@spelled
@shaped("input[b...] -> [b...]")
def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    """``x - max - log(sum(exp(x - max)))`` along `dim`.

    Example:
        >>> F.log_softmax(pb.tensor([0.0, 1.0]), dim=-1)
        Tensor([-1.3132616 , -0.31326166], dtype=float32)
    """
    axis = axis_of(dim, len(input.shape))
    return Tensor(reduction.log_softmax(input.value, axis))


@spelled
@shaped("input[b...] -> [b...]")
def softmin(input: Tensor, dim: int = -1) -> Tensor:
    """``softmax(-x)`` along `dim`.

    Example:
        >>> F.softmin(pb.tensor([0.0, 1.0]), dim=-1)
        Tensor([0.7310586, 0.2689414], dtype=float32)
    """
    return softmax(tensor_apply("negative", input), dim)


@spelled
@shaped("logits[b...] -> [b...]", where="tau > 0")
def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """``softmax((logits + g) / tau)`` along `dim`, ``g = -log(-log u)`` drawn: nearly a class each.

    With `hard` exactly one: 1 in the largest place, 0 else, with the gradient of the soft ones.

    Example:
        >>> pb.random.manual_seed(0)
        >>> pb.sum(F.gumbel_softmax(pb.zeros(3, 4), hard=True), axis=-1)
        Tensor([1., 1., 1.], dtype=float32)
    """
    axis = axis_of(dim, len(logits.shape))
    drawn = -M.log1p(-random.uniform(logits.shape, dtype=logits.dtype))
    noise = -M.log(M.maximum(drawn, LEAST_DRAWN))
    soft = softmax((logits + noise) / tau, axis)
    if not hard:
        return soft
    largest = argmax(soft, axis=axis).value
    chosen = Tensor(indexing.one_hot(largest, soft.shape[axis], soft.dtype, axis))
    passed: Tensor = chosen - stop_gradient(soft) + soft
    return passed


@shaped("input[n, c, h, w] or [c, h, w]")
def softmax2d(input: Tensor) -> Tensor:
    """`softmax` over the channels of an image, with or without a batch."""
    return softmax(input, -3)


# --- modules -------------------------------------------------------------------------------------


class ReLU(Layer, function=relu):
    """Example:
    >>> nn.ReLU()(pb.tensor([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32)
    """


class GELU(Layer, function=gelu):
    """Example:
    >>> nn.GELU()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.15865529,  1.9544997 ], dtype=float32)
    """


class SiLU(Layer, function=silu):
    """Example:
    >>> nn.SiLU()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.2689414,  1.761594 ], dtype=float32)
    """


class Sigmoid(Layer, function=sigmoid):
    """Example:
    >>> nn.Sigmoid()(pb.tensor([-1.0, 2.0]))
    Tensor([0.2689414, 0.880797 ], dtype=float32)
    """


class Tanh(Layer, function=tanh):
    """Example:
    >>> nn.Tanh()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.7615941,  0.9640276], dtype=float32)
    """


class LogSigmoid(Layer, function=logsigmoid):
    """Example:
    >>> nn.LogSigmoid()(pb.tensor([-1.0, 2.0]))
    Tensor([-1.3132617, -0.126928 ], dtype=float32)
    """


class Softplus(Layer, function=softplus):
    """Example:
    >>> nn.Softplus()(pb.tensor([-1.0, 2.0]))
    Tensor([0.3132617, 2.126928 ], dtype=float32)
    """


class Softsign(Layer, function=softsign):
    """Example:
    >>> nn.Softsign()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.5      ,  0.6666667], dtype=float32)
    """


class Tanhshrink(Layer, function=tanhshrink):
    """Example:
    >>> nn.Tanhshrink()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.23840588,  1.0359724 ], dtype=float32)
    """


class Mish(Layer, function=mish):
    """Example:
    >>> nn.Mish()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.30340147,  1.9439589 ], dtype=float32)
    """


class ELU(Layer, function=elu):
    """Example:
    >>> nn.ELU()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.6321206,  2.       ], dtype=float32)
    """


class CELU(Layer, function=celu):
    """Example:
    >>> nn.CELU()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.6321206,  2.       ], dtype=float32)
    """


class SELU(Layer, function=selu):
    """Example:
    >>> nn.SELU()(pb.tensor([-1.0, 2.0]))
    Tensor([-1.1113307,  2.101402 ], dtype=float32)
    """


class LeakyReLU(Layer, function=leaky_relu):
    """Example:
    >>> nn.LeakyReLU()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.01,  2.  ], dtype=float32)
    """


class Hardtanh(Layer, function=hardtanh):
    """Example:
    >>> nn.Hardtanh()(pb.tensor([-1.0, 2.0]))
    Tensor([-1.,  1.], dtype=float32)
    """


class ReLU6(Layer, function=relu6):
    """Example:
    >>> nn.ReLU6()(pb.tensor([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32)
    """


class Hardsigmoid(Layer, function=hardsigmoid):
    """Example:
    >>> nn.Hardsigmoid()(pb.tensor([-1.0, 2.0]))
    Tensor([0.3333333, 0.8333334], dtype=float32)
    """


class Hardswish(Layer, function=hardswish):
    """Example:
    >>> nn.Hardswish()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.3333333,  1.6666667], dtype=float32)
    """


class Hardshrink(Layer, function=hardshrink):
    """Example:
    >>> nn.Hardshrink()(pb.tensor([-1.0, 2.0]))
    Tensor([-1.,  2.], dtype=float32)
    """


class Softshrink(Layer, function=softshrink):
    """Example:
    >>> nn.Softshrink()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.5,  1.5], dtype=float32)
    """


class Threshold(Layer, function=threshold):
    """Example:
    >>> nn.Threshold(0.5, 0.0)(pb.tensor([-1.0, 2.0]))
    Tensor([0., 2.], dtype=float32)
    """


class RReLU(Layer, function=rrelu):
    """Example:
    >>> nn.RReLU().eval()(pb.tensor([-1.0, 2.0]))
    Tensor([-0.22916667,  2.        ], dtype=float32)
    """


class GLU(Layer, function=glu):
    """Example:
    >>> nn.GLU()(pb.tensor([1.0, 2.0, 0.0, 0.0]))
    Tensor([0.5, 1. ], dtype=float32)
    """


class Softmax(Layer, function=softmax):
    """Example:
    >>> nn.Softmax(dim=-1)(pb.tensor([0.0, 1.0]))
    Tensor([0.2689414, 0.7310586], dtype=float32)
    """


class LogSoftmax(Layer, function=log_softmax):
    """Example:
    >>> nn.LogSoftmax(dim=-1)(pb.tensor([0.0, 1.0]))
    Tensor([-1.3132616 , -0.31326166], dtype=float32)
    """


class Softmin(Layer, function=softmin):
    """Example:
    >>> nn.Softmin(dim=-1)(pb.tensor([0.0, 1.0]))
    Tensor([0.7310586, 0.2689414], dtype=float32)
    """


class Softmax2d(Layer, function=softmax2d):
    """Example:
    >>> nn.Softmax2d()(pb.zeros((1, 2, 1, 1))).tolist()
    [[[[0.5]], [[0.5]]]]
    """


class PReLU(Module):
    """``x if x > 0 else w[c] x``, w learned.

    Example:
        >>> nn.PReLU()(pb.tensor([-1.0, 2.0])).tolist()
        [-0.25, 2.0]
    """

    @shaped("", where="int(num_parameters) >= 1")
    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.num_parameters = num_parameters
        self.weight = new_full((num_parameters,), init, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
