"""A GPT: pre-norm blocks of causal attention and a feed-forward net over token embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import expr as E
from pullback.nn import init
from pullback.nn.activation.activation import gelu
from pullback.nn.activation.dropout import Dropout
from pullback.nn.base.build import at, make
from pullback.nn.base.container import ModuleList
from pullback.nn.base.module import Module
from pullback.nn.linear.layers import Embedding, Linear
from pullback.nn.linear.linear import linear
from pullback.nn.loss.cross_entropy import token_cross_entropy
from pullback.nn.norm.norms import LayerNorm
from pullback.nn.sequence.attention import Mask, Packed, attend
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.values.elementwise import show


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of a GPT. `context`: positions. `tied`: the head reads the token embedding.

    Example:
        >>> nn.GPTConfig(vocabulary=11, layers=1, dim=8, heads=2).dim
        8
    """

    vocabulary: int
    context: int = 64
    layers: int = 4
    dim: int = 128
    heads: int = 4
    dropout: float = 0.0
    tied: bool = False
    std: float = 0.08


class CausalAttention(Module):
    """Self-attention of every position to itself and those before it.

    Example:
        >>> nn.CausalAttention(8, 2)(pb.ones((1, 3, 8))).shape
        (1, 3, 8)
    """

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % heads:
            raise ShapeError(f"dim {dim} is not a multiple of heads {heads}", code="E125")
        self.heads = heads
        self.size = dim // heads
        self.dropout = dropout
        self.qkv = Linear(dim, 3 * dim)
        self.proj = Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        packed = self.qkv(x)
        wide = self.heads * self.size
        q, k, v = (
            Packed(packed.value, n * wide, self.heads, self.size, packed.dtype) for n in range(3)
        )
        dropout = self.dropout if self.training else 0.0
        attended = attend(q, k, v, Mask(causal=True), 1.0 / math.sqrt(self.size), dropout)
        projected: Tensor = self.proj(attended.output)
        return projected


class Block(Module):
    """``x = x + attention(norm1(x)); x = x + w2 gelu(w1 norm2(x))``

    Example:
        >>> nn.Block(8, 2)(pb.ones((1, 3, 8))).shape
        (1, 3, 8)
    """

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attention = CausalAttention(dim, heads, dropout)
        self.norm2 = LayerNorm(dim)
        self.linear1 = Linear(dim, 4 * dim)
        self.linear2 = Linear(4 * dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = gelu(self.linear1(self.norm2(x)), approximate="tanh")
        added: Tensor = x + self.dropout(self.linear2(hidden))
        return added


class GPT(Module):
    """Logits (batch.., positions, vocabulary) of the next token at every position.

    Example:
        >>> model = nn.GPT(nn.GPTConfig(vocabulary=11, context=4, layers=1, dim=8, heads=2))
        >>> model(pb.tensor([[1, 2, 3]])).shape
        (1, 3, 11)
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Embedding(config.vocabulary, config.dim)
        self.positions = Embedding(config.context, config.dim)
        self.blocks = ModuleList(
            Block(config.dim, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.norm = LayerNorm(config.dim)
        self.head = Linear(config.dim, config.vocabulary, bias=False)
        self._initialise()
        if config.tied:
            self.head.weight = self.tokens.weight

    def _initialise(self) -> None:
        """Weights from N(0, std^2); those that write to the residual and all biases 0."""
        for name, parameter in self.named_parameters():
            if name.endswith(("proj.weight", "linear2.weight", "bias")):
                init.zeros_(parameter)
            elif len(parameter.shape) == 2:
                init.normal_(parameter, 0.0, self.config.std)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x)
        return linear(self.norm(x), self.head.weight)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Cross entropy of `targets`, the tokens one place on."""
        return token_cross_entropy(self(tokens), targets, ignore_index, reduction)

    def _embed(self, tokens: Tensor) -> Tensor:
        """``x[b, t, e] = tokens[token[b, t], e] + positions[t, e]``"""
        length = tokens.value.shape[-1] if tokens.shape else 0
        if not tokens.shape or E.upper(length) > self.config.context:
            raise ShapeError(
                f"tokens of shape {show(tokens.value.shape)} do not fit a context of "
                f"{self.config.context}"
            )
        table = self.positions.weight.value
        x: Any = self.tokens(tokens).value

        def body(*i: E.Expr) -> E.Expr:
            return E.Add(at(x, *i), at(table, *i[-2:]))

        return make("embedded", x.shape, body)
