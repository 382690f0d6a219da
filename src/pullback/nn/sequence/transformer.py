"""The Transformer, encoder and decoder, under torch's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from pullback.errors import UnsupportedError
from pullback.ir.dtype import float32
from pullback.nn import init
from pullback.nn.activation import activation
from pullback.nn.activation.dropout import Dropout
from pullback.nn.base.build import written
from pullback.nn.base.container import ModuleList
from pullback.nn.base.module import Module
from pullback.nn.linear.layers import Linear
from pullback.nn.norm.norms import LayerNorm
from pullback.nn.sequence.multihead import MultiheadAttention
from pullback.tensor.face.tensor import Tensor, check_device
from pullback.tensor.library.ops import astype, where

Activation = Callable[[Tensor], Tensor]
Masks = tuple[Tensor | None, Tensor | None, bool]  # attention, padding, causal


class _Block(Module):
    """What the layers of encoder and decoder share: attention to itself, and a feed-forward net.

    Each is added to its input and normalised; post-norm: ``x = norm(x + f(x))``;
    `norm_first`: ``x = x + f(norm(x))``.
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
        heads: dict[str, Any] = {**kind, "dropout": dropout, "batch_first": batch_first}
        self.self_attn = MultiheadAttention(d_model, nhead, **heads)
        if self.across:
            self.multihead_attn = MultiheadAttention(d_model, nhead, **heads)
        self.linear1 = Linear(d_model, dim_feedforward, **kind)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **kind)
        self.norm_first = norm_first
        for n in range(1, 4 if self.across else 3):
            setattr(self, f"norm{n}", LayerNorm(d_model, eps=layer_norm_eps, **kind))
            setattr(self, f"dropout{n}", Dropout(dropout))
        self.activation = _activation(activation)

    across: ClassVar[bool] = False

    def _added(self, x: Tensor, norm: Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        added: Tensor = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return added

    def _feed_forward(self, x: Tensor, drop: Module) -> Tensor:
        fed: Tensor = drop(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return fed


def _attended(
    heads: MultiheadAttention, drop: Module, x: Tensor, memory: Tensor | None, masks: Masks
) -> Tensor:
    """What `x` finds in `memory` (None: in itself)."""
    mask, padding, causal = masks
    other = x if memory is None else memory
    output, _ = heads(
        x,
        other,
        other,
        attn_mask=mask,
        key_padding_mask=padding,
        need_weights=False,
        is_causal=causal,
    )
    attended: Tensor = drop(output)
    return attended


class TransformerEncoderLayer(_Block):
    """Attention and a feed-forward net, each added to its input and normalised.

    post-norm: ``x = norm(x + f(x))``; `norm_first`: ``x = x + f(norm(x))``.

    Example:
        >>> nn.TransformerEncoderLayer(8, 2, 16)(pb.ones((5, 1, 8))).shape
        (5, 1, 8)
    """

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        own: Masks = (src_mask, src_key_padding_mask, is_causal)

        def attention(x: Tensor) -> Tensor:
            return _attended(self.self_attn, self.dropout1, x, None, own)

        x = self._added(src, self.norm1, attention)
        return self._added(x, self.norm2, lambda x: self._feed_forward(x, self.dropout2))


class TransformerDecoderLayer(_Block):
    """Attention to itself and to `memory`, and a feed-forward net, each added to its input.

    Example:
        >>> nn.TransformerDecoderLayer(8, 2, 16)(pb.ones((5, 1, 8)), pb.ones((4, 1, 8))).shape
        (5, 1, 8)
    """

    across = True

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        own: Masks = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        across: Masks = (memory_mask, memory_key_padding_mask, memory_is_causal)

        def inside(x: Tensor) -> Tensor:
            return _attended(self.self_attn, self.dropout1, x, None, own)

        def outside(x: Tensor) -> Tensor:
            return _attended(self.multihead_attn, self.dropout2, x, memory, across)

        x = self._added(self._added(tgt, self.norm1, inside), self.norm2, outside)
        return self._added(x, self.norm3, lambda x: self._feed_forward(x, self.dropout3))


class TransformerEncoder(Module):
    """`num_layers` fresh layers like `encoder_layer`, and a norm at the end.

    Example:
        >>> nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)(pb.ones((5, 1, 8))).shape
        (5, 1, 8)
    """

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
        normed: Tensor = x if self.norm is None else self.norm(x)
        return normed


class TransformerDecoder(Module):
    """`num_layers` fresh layers like `decoder_layer`, and a norm at the end.

    Example:
        >>> layer = nn.TransformerDecoderLayer(8, 2, 16)
        >>> nn.TransformerDecoder(layer, 2)(pb.ones((5, 1, 8)), pb.ones((4, 1, 8))).shape
        (5, 1, 8)
    """

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        super().__init__()
        self.layers = ModuleList(decoder_layer.copy() for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        x = tgt
        for layer in self.layers:
            x = layer(x, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        normed: Tensor = x if self.norm is None else self.norm(x)
        return normed


class Transformer(Module):
    """An encoder of sources, and a decoder of targets that attends to what it made of them.

    Example:
        >>> nn.Transformer(8, 2, 1, 1, 16)(pb.ones((4, 1, 8)), pb.ones((5, 1, 8))).shape
        (5, 1, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        order = (batch_first, norm_first)
        ends = [LayerNorm(d_model, eps=layer_norm_eps, **kind) for _ in range(2)]
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*sizes, *order, **kind), num_encoder_layers, ends[0]
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*sizes, *order, **kind), num_decoder_layers, ends[1]
        )
        for parameter in self.parameters():
            if len(parameter.shape) > 1:
                init.xavier_uniform_(parameter)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, bool(src_is_causal))
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        decoded: Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return decoded

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: object = None, dtype: Any = None
    ) -> Tensor:
        """``m[i, j] = 0 if j <= i else -inf``"""
        check_device(device)
        kind = float32 if dtype is None else dtype

        def body(i: Any, j: Any) -> Any:
            return astype(where(j <= i, 0.0, -math.inf), kind)

        return written((sz, sz), body, name="causal_mask")


def _activation(given: str | Activation) -> Activation:
    """Raises: UnsupportedError for an unknown name."""
    if callable(given):
        return given
    known: dict[str, Activation] = {"relu": activation.relu, "gelu": activation.gelu}
    if given not in known:
        raise UnsupportedError(
            f"activation={given!r}", help='"relu", "gelu" or a function', code="E312"
        )
    return known[given]
