"""The Transformer encoder under torch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.errors import Origin, UnsupportedError
from pullback.nn import activation
from pullback.nn.container import ModuleList
from pullback.nn.dropout import Dropout
from pullback.nn.layers import Linear
from pullback.nn.module import Module
from pullback.nn.multihead import MultiheadAttention
from pullback.nn.norms import LayerNorm
from pullback.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


class TransformerEncoderLayer(Module):
    """Attention and a feed-forward net, each added to its input and normalised.

    post-norm: ``x = norm(x + f(x))``; `norm_first`: ``x = x + f(norm(x))``.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, batch_first=batch_first, **kind
        )
        self.linear1 = Linear(d_model, dim_feedforward, **kind)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **kind)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, **kind)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, **kind)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        masks = (src_mask, src_key_padding_mask, is_causal)
        x = src
        if self.norm_first:
            x = x + self._attention(self.norm1(x), *masks)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(x + self._attention(x, *masks))
        found: Tensor = self.norm2(x + self._feed_forward(x))
        return found

    def _attention(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        output, _ = self.self_attn(
            x,
            x,
            x,
            attn_mask=mask,
            key_padding_mask=padding,
            need_weights=False,
            is_causal=is_causal,
        )
        found: Tensor = self.dropout1(output)
        return found

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.linear1(x)))
        found: Tensor = self.dropout2(self.linear2(hidden))
        return found


class TransformerEncoder(Module):
    """`num_layers` fresh layers like `encoder_layer`, and a norm at the end."""

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList(encoder_layer.copy() for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal)
        found: Tensor = x if self.norm is None else self.norm(x)
        return found


def _activation(given: str | Activation) -> Activation:
    """Raises: UnsupportedError for an unknown name."""
    if callable(given):
        return given
    known: dict[str, Activation] = {"relu": activation.relu, "gelu": activation.gelu}
    if given not in known:
        raise UnsupportedError(
            f"activation={given!r}", origin=Origin.of_caller(), help='"relu", "gelu" or a function'
        )
    return known[given]
