"""Dropout and its kinds: elements, whole channels, and those that keep mean and variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pullback.errors import DTypeError
from pullback.ir import expr as E
from pullback.ir.expr import Add, Extent, If, Mul
from pullback.ir.graph import Definition, Keep
from pullback.nn.activation.activation import SELU_ALPHA, SELU_SCALE
from pullback.nn.base.build import at, make
from pullback.nn.base.layer import Layer
from pullback.nn.base.space import of_space
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import random
from pullback.tensor.record.trace import wrap
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise

SATURATED = -SELU_ALPHA * SELU_SCALE  # what SELU tends to at -inf


def kept_mask(shape: Sequence[Extent], p: float) -> Tensor:
    """A random mask, true with probability ``1 - p``. It never reaches memory: its bits follow
    from a counter and the element's place, so that the backward draws them again.
    """
    drawn = random.bernoulli(1.0 - p, tuple(shape)).value
    if not isinstance(drawn, Definition):
        return Tensor(drawn)
    return Tensor(wrap(replace(drawn, keep=Keep.NEVER)))


@shaped("input[b...] -> [b...]", where="0 <= p <= 1")
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """``x / (1 - p)`` with probability ``1 - p``, else 0.

    Example:
        >>> F.dropout(pb.ones(3), 0.5, training=False)
        Tensor([1., 1., 1.], dtype=float32)
    """
    return _dropped(input, p, training, len(input.shape))


@shaped("input[b...] -> [b...]", where="0 <= p <= 1")
def channel_dropout(
    space: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels: all axes but `space` of them, ``(N, C, L)`` for two as well.

    Example:
        >>> F.dropout1d(pb.ones((1, 2, 8)), 0.5, training=False).shape
        (1, 2, 8)
        >>> F.dropout2d(pb.ones((1, 2, 8, 8)), 0.5, training=False).shape
        (1, 2, 8, 8)
        >>> F.dropout3d(pb.ones((1, 2, 4, 4, 4)), 0.5, training=False).shape
        (1, 2, 4, 4, 4)
    """
    lead = 2 if space == 2 else max(len(input.shape) - space, 1)
    return _dropped(input, p, training, lead)


dropout1d, dropout2d, dropout3d = (of_space(channel_dropout, n) for n in (1, 2, 3))


@shaped("input[b...] -> [b...]", where="0 <= p <= 1")
def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """``a x + b`` with probability ``1 - p``, else ``a s + b``: what SELU gave keeps its mean 0
    and variance 1; s is SELU's limit.

    Example:
        >>> F.alpha_dropout(pb.ones(3), 0.5, training=False)
        Tensor([1., 1., 1.], dtype=float32)
    """
    return _dropped(input, p, training, len(input.shape), SATURATED)


@shaped("input[b...] -> [b...]", where="0 <= p <= 1")
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`alpha_dropout` of whole channels.

    Example:
        >>> F.feature_alpha_dropout(pb.ones((1, 2, 3)), 0.5, training=False).shape
        (1, 2, 3)
    """
    return _dropped(input, p, training, 2, SATURATED)


def _dropped(input: Tensor, p: float, training: bool, lead: int, low: float = 0.0) -> Tensor:
    """One draw for each index of the first `lead` axes: ``a x + b`` if kept, else ``a low + b``.

    For ``low = 0``: ``a = 1 / (1 - p), b = 0``; else ``a = 1 / sqrt((1 - p) (1 + p low^2))``,
    ``b = -a p low``.
    """
    if not training or p == 0.0:
        return input
    x = input.value
    if not x.dtype.is_float:
        raise DTypeError(f"dropout is not defined for {x.dtype}", code="E102")
    if p == 1.0:
        return Tensor(elementwise.full(x.shape, 0, x.dtype))
    mask = kept_mask(x.shape[:lead], p).value
    spread = math.sqrt((1.0 - p) * (1.0 + p * low * low)) if low else 1.0 - p
    shift = -p * low / spread
    scale, away = E.const(1.0 / spread, x.dtype), E.const(low / spread + shift, x.dtype)

    def body(*i: E.Expr) -> E.Expr:
        kept: E.Expr = Mul(at(x, *i), scale)
        kept = Add(kept, E.const(shift, x.dtype)) if low else kept
        return If(at(mask, *i[:lead]), kept, away)

    return make("dropout", x.shape, body)


class Dropout(Layer, function=dropout):
    """Example:
    >>> nn.Dropout(0.5).eval()(pb.ones(3))
    Tensor([1., 1., 1.], dtype=float32)
    """


class Dropout1d(Layer, function=dropout1d):
    """Example:
    >>> nn.Dropout1d(0.5)(pb.ones((1, 2, 8))).shape
    (1, 2, 8)
    """


class Dropout2d(Layer, function=dropout2d):
    """Example:
    >>> nn.Dropout2d(0.5)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 8, 8)
    """


class Dropout3d(Layer, function=dropout3d):
    """Example:
    >>> nn.Dropout3d(0.5)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 4, 4, 4)
    """


class AlphaDropout(Layer, function=alpha_dropout):
    """Example:
    >>> nn.AlphaDropout(0.5).eval()(pb.ones(3))
    Tensor([1., 1., 1.], dtype=float32)
    """


class FeatureAlphaDropout(Layer, function=feature_alpha_dropout):
    """Example:
    >>> nn.FeatureAlphaDropout(0.5)(pb.ones((1, 2, 3))).shape
    (1, 2, 3)
    """
