"""Norms as modules, under torch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from pullback.errors import ShapeError
from pullback.nn.base.layer import Layer
from pullback.nn.base.module import Module
from pullback.nn.base.parameter import Buffer
from pullback.nn.init import new_full
from pullback.nn.norm import normalization as N
from pullback.tensor.face.tensor import Tensor, check_device
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show


class _Norm(Module):
    """What all norms hold: a scale and a shift of one shape, each if wanted."""

    def _affine(self, shape: tuple[int, ...], weight: bool, bias: bool, dtype: Any) -> None:
        self.register_parameter("weight", new_full(shape, 1.0, dtype) if weight else None)
        self.register_parameter("bias", new_full(shape, 0.0, dtype) if bias else None)


class _LastAxes(_Norm):
    """A norm over the last axes."""

    eps: float | None

    def __init__(
        self, shape: int | Sequence[int], weight: bool, bias: bool, device: object, dtype: Any
    ) -> None:
        super().__init__()
        check_device(device)
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.elementwise_affine = weight
        self._affine(self.normalized_shape, weight, weight and bias, dtype)

    def extra_repr(self) -> str:
        rest = f"eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, {rest}"


class LayerNorm(_LastAxes):
    """``(x - mean) / sqrt(var + eps) * w + b`` over the last axes.

    Example:
        >>> nn.LayerNorm(2)(pb.tensor([[1.0, 3.0]])).tolist()
        [[-0.9999949932098389, 0.9999949932098389]]
    """

    @shaped("", where="int(normalized_shape) >= 0, eps < inf")
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, elementwise_affine, bias, device, dtype)
        self.eps: float = eps

    def forward(self, input: Tensor) -> Tensor:
        return N.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_LastAxes):
    """``x / sqrt(mean(x^2) + eps) * w`` over the last axes.

    Example:
        >>> nn.RMSNorm(2)(pb.tensor([[1.0, 3.0]])).tolist()
        [[0.4472135901451111, 1.3416407108306885]]
    """

    @shaped("", where="int(normalized_shape) >= 0, eps < inf")
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, elementwise_affine, False, device, dtype)
        self.eps = eps

    def forward(self, input: Tensor) -> Tensor:
        return N.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class GroupNorm(_Norm):
    """``(x - mean) / sqrt(var + eps) * w + b`` over each group of channels.

    Example:
        >>> nn.GroupNorm(2, 4)(pb.ones((1, 4, 3))).shape
        (1, 4, 3)
    """

    @shaped("", where="int(num_groups) >= 1, num_channels % num_groups == 0, eps < inf")
    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: object = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_device(device)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._affine((num_channels,), affine, affine and bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return N.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _ByChannel(_Norm):
    """A norm by channel, with running statistics as buffers where they are tracked."""

    ranks: ClassVar[tuple[int, ...]]

    @shaped("", where="int(num_features) >= 0, eps < inf")
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: object = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_device(device)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._affine((num_features,), affine, affine and bias, dtype)
        self.running_mean: Buffer | None = None
        self.running_var: Buffer | None = None
        self.num_batches_tracked: Buffer | None = None
        if track_running_stats:
            self.running_mean = Buffer(new_full((num_features,), 0.0, dtype))
            self.running_var = Buffer(new_full((num_features,), 1.0, dtype))
            self.num_batches_tracked = Buffer(np.zeros((), np.int64))

    def _check(self, input: Tensor, axis: int) -> None:
        """Raises: ShapeError for another number of axes, or of channels."""
        if len(input.shape) in self.ranks and input.shape[axis] == self.num_features:
            return
        raise ShapeError(
            f"{type(self).__name__}({self.num_features}) of {show(input.value.shape)}",
            help=f"it takes {' or '.join(map(str, self.ranks))} axes",
            code="E127",
        )

    def _momentum(self) -> float | Tensor:
        """How far the running statistics step; without a momentum they are the plain mean."""
        if self.momentum is not None or self.num_batches_tracked is None:
            return self.momentum or 0.0
        return 1.0 / self.num_batches_tracked

    def extra_repr(self) -> str:
        rest = f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, {rest}"


class _BatchNorm(_ByChannel):
    """``(x - mean) / sqrt(var + eps) * w + b`` for each channel over the batch and space.

    In evaluation the mean and variance are the running ones, where they are tracked.
    """

    def forward(self, input: Tensor) -> Tensor:
        self._check(input, 1)
        seen = self.num_batches_tracked
        if self.training and seen is not None:
            seen.assign(seen + 1)
        own = self.training or seen is None
        running = (self.running_mean, self.running_var)
        affine = (self.weight, self.bias)
        return N.batch_norm(input, *running, *affine, own, self._momentum(), self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch norm of ``(N, C)`` or ``(N, C, L)``.

    Example:
        >>> nn.BatchNorm1d(2)(pb.ones((1, 2, 8))).shape
        (1, 2, 8)
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch norm of ``(N, C, H, W)``.

    Example:
        >>> nn.BatchNorm2d(2)(pb.ones((1, 2, 8, 8))).shape
        (1, 2, 8, 8)
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch norm of ``(N, C, D, H, W)``.

    Example:
        >>> nn.BatchNorm3d(2)(pb.ones((1, 2, 4, 4, 4))).shape
        (1, 2, 4, 4, 4)
    """

    ranks = (5,)


class _InstanceNorm(_ByChannel):
    """``(x - mean) / sqrt(var + eps) * w + b`` for each channel of each sample over space."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: object = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        settings = (num_features, eps, momentum, affine, track_running_stats)
        super().__init__(*settings, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        batched = len(input.shape) == self.ranks[1]
        self._check(input, 1 if batched else 0)
        x = input if batched else input.reshape(1, *input.shape)
        own = self.training or not self.track_running_stats
        running = (self.running_mean, self.running_var)
        affine = (self.weight, self.bias)
        y = N.instance_norm(x, *running, *affine, own, self._momentum(), self.eps)
        return y if batched else y.reshape(*input.shape)


class InstanceNorm1d(_InstanceNorm):
    """Instance norm of ``(N, C, L)`` or ``(C, L)``.

    Example:
        >>> nn.InstanceNorm1d(2)(pb.ones((1, 2, 8))).shape
        (1, 2, 8)
    """

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance norm of ``(N, C, H, W)`` or ``(C, H, W)``.

    Example:
        >>> nn.InstanceNorm2d(2)(pb.ones((1, 2, 8, 8))).shape
        (1, 2, 8, 8)
    """

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance norm of ``(N, C, D, H, W)`` or ``(C, D, H, W)``.

    Example:
        >>> nn.InstanceNorm3d(2)(pb.ones((1, 2, 4, 4, 4))).shape
        (1, 2, 4, 4, 4)
    """

    ranks = (4, 5)


class LocalResponseNorm(Layer, function=N.local_response_norm):
    """Example:
    >>> nn.LocalResponseNorm(2)(pb.ones((1, 4, 3))).shape
    (1, 4, 3)
    """
