"""Activations, softmax and dropout as functions, under torch's names."""

from __future__ import annotations

from dataclasses import replace

from pullback.errors import Origin, ShapeError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.expr import If, Mul
from pullback.ir.graph import Definition, Keep
from pullback.nn.build import at, axis_of, make
from pullback.tensor import elementwise, random, reduction
from pullback.tensor.tensor import Tensor, tensor_apply
from pullback.tensor.trace import wrap


def relu(input: Tensor) -> Tensor:
    """``max(0, x)``"""
    return tensor_apply("relu", input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``x * P(z <= x)``, z standard normal; "tanh" is the usual approximation.

    Raises: UnsupportedError for another `approximate`.
    """
    if approximate == "none":
        return tensor_apply("gelu", input)
    if approximate == "tanh":
        return tensor_apply("gelu_tanh", input)
    raise UnsupportedError(
        f"gelu with approximate={approximate!r}",
        origin=Origin.of_caller(),
        help='use "none" or "tanh"',
    )


def silu(input: Tensor) -> Tensor:
    """``x * sigmoid(x)``"""
    return tensor_apply("silu", input)


def sigmoid(input: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``"""
    return tensor_apply("sigmoid", input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return tensor_apply("tanh", input)


def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(x))``"""
    return tensor_apply("log_sigmoid", input)


def softplus(input: Tensor) -> Tensor:
    """``log(1 + exp(x))``"""
    return tensor_apply("softplus", input)


def softmax(input: Tensor, dim: int = -1) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along `dim`."""
    axis = axis_of(dim, len(input.shape))
    return Tensor(reduction.softmax(input.value, axis))


def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    """``x - max - log(sum(exp(x - max)))`` along `dim`."""
    axis = axis_of(dim, len(input.shape))
    return Tensor(reduction.log_softmax(input.value, axis))


def kept_mask(shape: tuple[object, ...], p: float) -> Tensor:
    """A random mask, true with probability ``1 - p``. It never reaches memory: its bits follow
    from a counter and the element's place, so that the backward draws them again.
    """
    drawn = random.bernoulli(1.0 - p, shape).value
    if not isinstance(drawn, Definition):
        return Tensor(drawn)
    return Tensor(wrap(replace(drawn, keep=Keep.NEVER)))


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """``x / (1 - p)`` with probability ``1 - p``, else 0. Raises: ShapeError for p outside 0..1."""
    check_probability(p)
    if not training or p == 0.0:
        return input
    x = input.value
    if p == 1.0:
        return Tensor(elementwise.full(x.shape, 0, x.dtype))
    mask = kept_mask(x.shape, p).value
    scale = E.const(1.0 / (1.0 - p), x.dtype)
    zero = E.const(0.0, x.dtype)
    return make("dropout", x.shape, lambda *i: If(at(mask, *i), Mul(at(x, *i), scale), zero))


def check_probability(p: float) -> None:
    """Raises: ShapeError where `p` is no probability."""
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"dropout probability {p} is not in 0..1", origin=Origin.of_caller())
