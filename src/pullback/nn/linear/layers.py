"""Layers under torch's names: parameters and a call of the function of the same name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import expr as E
from pullback.nn import init
from pullback.nn.base.build import axis_of
from pullback.nn.base.layer import Layer
from pullback.nn.base.module import Module
from pullback.nn.base.parameter import Parameter
from pullback.nn.linear import linear as L
from pullback.tensor.face.tensor import Tensor, check_device
from pullback.tensor.shaped import shaped


class Identity(Module):
    """``y = x``

    Example:
        >>> nn.Identity()(pb.ones(2))
        Tensor([1., 1.], dtype=float32)
    """

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """``y = x w^T + b``, w of shape (out, in).

    Example:
        >>> nn.Linear(2, 3)(pb.ones((5, 2))).shape
        (5, 3)
    """

    @shaped("", where="int(in_features) >= 0, int(out_features) >= 0")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.in_features = in_features
        self.out_features = out_features
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        self.weight = init.new_uniform((out_features, in_features), bound, dtype)
        self.bias = init.new_uniform((out_features,), bound, dtype) if bias else None
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        return L.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """``y[.., e] = w[tokens[..], e]``; row `padding_idx` starts at 0 and gets no gradient.

    Example:
        >>> nn.Embedding(5, 3)(pb.tensor([0, 2])).shape
        (2, 3)
    """

    @shaped("", where="int(num_embeddings) >= 0, int(embedding_dim) >= 0")
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.settings = (max_norm, norm_type, scale_grad_by_freq, sparse)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ShapeError(
                f"padding_idx {padding_idx} is no row of {num_embeddings}", code="E123"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = init.new_normal((num_embeddings, embedding_dim), 1.0, dtype)
        if self.padding_idx is not None:
            self.weight = Parameter(L.without_row(self.weight, self.padding_idx))

    def forward(self, input: Tensor) -> Tensor:
        return L.embedding(input, self.weight, self.padding_idx, *self.settings)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class EmbeddingBag(Module):
    """The sum, mean or max of the rows that each bag of tokens names.

    Example:
        >>> nn.EmbeddingBag(5, 3)(pb.tensor([[0, 2], [1, 1]])).shape
        (2, 3)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.settings: dict[str, Any] = {
            "max_norm": max_norm,
            "norm_type": norm_type,
            "scale_grad_by_freq": scale_grad_by_freq,
            "mode": mode,
            "sparse": sparse,
            "include_last_offset": include_last_offset,
            "padding_idx": padding_idx,
        }
        self.weight = init.new_normal((num_embeddings, embedding_dim), 1.0, dtype)
        if padding_idx is not None:
            self.weight = Parameter(L.without_row(self.weight, padding_idx % num_embeddings))

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        weights = per_sample_weights
        return L.embedding_bag(
            input, self.weight, offsets, per_sample_weights=weights, **self.settings
        )

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.settings['mode']!r}"


class Bilinear(Module):
    """``y = a^T w b + bias``, w of shape (out, in1, in2).

    Example:
        >>> nn.Bilinear(2, 3, 4)(pb.ones((5, 2)), pb.ones((5, 3))).shape
        (5, 4)
    """

    @shaped("", where="int(in1_features) >= 1, int(in2_features) >= 1, int(out_features) >= 0")
    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        bound = 1.0 / math.sqrt(in1_features)
        shape = (out_features, in1_features, in2_features)
        self.weight = init.new_uniform(shape, bound, dtype)
        start = init.new_uniform((out_features,), bound, dtype) if bias else None
        self.register_parameter("bias", start)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return L.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in1_features}, {self.in2_features}, {self.out_features}"


def flatten(input: Tensor, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    """The axes ``start_dim .. end_dim`` as one."""
    rank = len(input.shape)
    start, end = axis_of(start_dim, rank), axis_of(end_dim, rank)
    return input.reshape(*input.shape[:start], -1, *input.shape[end + 1 :])


def unflatten(input: Tensor, dim: int, unflattened_size: Sequence[int]) -> Tensor:
    """The axis `dim` as several."""
    axis = axis_of(dim, len(input.shape))
    sizes = list(unflattened_size)
    if -1 in sizes:
        rest = -math.prod(sizes)
        sizes[sizes.index(-1)] = E.upper(input.shape[axis]) // rest
    return input.reshape(*input.shape[:axis], *sizes, *input.shape[axis + 1 :])


class Flatten(Layer, function=flatten):
    """Example:
    >>> nn.Flatten()(pb.ones((5, 2, 3))).shape
    (5, 6)
    """


class Unflatten(Layer, function=unflatten):
    """Example:
    >>> nn.Unflatten(1, (2, 3))(pb.ones((5, 6))).shape
    (5, 2, 3)
    """
