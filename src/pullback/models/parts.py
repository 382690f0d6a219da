"""What the models share: modules by name, attention of heads, activations."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback import nn

ACTIVATIONS = {
    "gelu": pb.gelu, "gelu_new": pb.gelu_tanh, "gelu_pytorch_tanh": pb.gelu_tanh,
    "relu": pb.relu, "silu": pb.silu,
}  # fmt: skip


class Scope(nn.Module):
    """Modules under names."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


def parted(x: pb.Tensor, heads: int) -> pb.Tensor:
    """``[b, t, heads * d] -> [b, heads, t, d]``"""
    batch, length, width = x.shape
    assert isinstance(width, int)
    return pb.permute_dims(pb.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def joined(x: pb.Tensor) -> pb.Tensor:
    """``[b, heads, t, d] -> [b, t, heads * d]``"""
    batch, heads, length, size = x.shape
    assert isinstance(heads, int) and isinstance(size, int)
    return pb.reshape(pb.permute_dims(x, (0, 2, 1, 3)), (batch, length, heads * size))


def attention(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor, **how: Any) -> pb.Tensor:
    """The attention of heads ``[b, heads, t, d]``, side by side again."""
    return joined(nn.functional.scaled_dot_product_attention(q, k, v, **how))
