"""Layers under torch's names: parameters and a call of the function of the same name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pullback.errors import Origin, ShapeError
from pullback.nn import activation as A
from pullback.nn import init
from pullback.nn import linear as L
from pullback.nn.module import Module
from pullback.nn.parameter import Parameter
from pullback.tensor.tensor import Tensor, check_device


class Identity(Module):
    """``y = x``"""

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """``y = x w^T + b``, w of shape (out, in)."""

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
    """``y[.., e] = w[tokens[..], e]``; row `padding_idx` starts at 0 and gets no gradient."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ShapeError(
                f"padding_idx {padding_idx} is no row of {num_embeddings}",
                origin=Origin.of_caller(),
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = init.new_normal((num_embeddings, embedding_dim), 1.0, dtype)
        if self.padding_idx is not None:
            self.weight = Parameter(L.without_row(self.weight, self.padding_idx))

    def forward(self, input: Tensor) -> Tensor:
        return L.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class LayerNorm(Module):
    """``(x - mean) / sqrt(var + eps) * w + b`` over the last axes."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.normalized_shape = _box(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        if elementwise_affine:
            self.weight = init.new_full(self.normalized_shape, 1.0, dtype)
        if elementwise_affine and bias:
            self.bias = init.new_full(self.normalized_shape, 0.0, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return L.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        rest = f"eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, {rest}"


class RMSNorm(Module):
    """``x / sqrt(mean(x^2) + eps) * w`` over the last axes."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.normalized_shape = _box(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", None)
        if elementwise_affine:
            self.weight = init.new_full(self.normalized_shape, 1.0, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return L.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        rest = f"eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, {rest}"


class Dropout(Module):
    """``x / (1 - p)`` with probability ``1 - p``, else 0; in evaluation `x`."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        A.check_probability(p)
        self.p = p
        self.inplace = inplace  # the planner decides; kept for torch's signature

    def forward(self, input: Tensor) -> Tensor:
        return A.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class ReLU(Module):
    """``max(0, x)``"""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace  # the planner decides; kept for torch's signature

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""

    def forward(self, input: Tensor) -> Tensor:
        return A.relu(input)


class GELU(Module):
    """``x * P(z <= x)``, z standard normal; or its tanh form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return A.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """``x * sigmoid(x)``"""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace  # the planner decides; kept for torch's signature

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""

    def forward(self, input: Tensor) -> Tensor:
        return A.silu(input)


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``"""

    def forward(self, input: Tensor) -> Tensor:
        return A.sigmoid(input)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        return A.tanh(input)


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return A.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """``x - log(sum(exp(x)))`` along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return A.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def _box(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)
