"""GPT-2 from a file's facts and tensors: layer norms, learnt places, one matrix for q, k and v.

Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pullback as pb
from pullback.gguf.decoder import Decoder, Mix, Parts, sizes_of
from pullback.gguf.reader import File

Linear = Callable[[pb.Tensor], pb.Tensor]


@dataclass(frozen=True)
class Norm:
    """``(x - mean) / sqrt(var + eps) weight + bias`` along the last axis"""

    weight: pb.Tensor
    bias: pb.Tensor
    eps: float

    @classmethod
    def of(cls, parts: Parts, name: str, width: int, eps: float) -> Norm:
        """The norm of a name."""
        weight, bias = (parts.vector(f"{name}.{part}", width) for part in ("weight", "bias"))
        return cls(weight, bias, eps)

    def __call__(self, x: pb.Tensor) -> pb.Tensor:
        moved = x - pb.mean(x, axis=-1, keepdims=True)
        square = pb.mean(moved * moved, axis=-1, keepdims=True)
        made: pb.Tensor = moved * pb.rsqrt(square + self.eps) * self.weight + self.bias
        return made


@dataclass(frozen=True)
class Layer:
    """The matrices and norms of a layer."""

    before: Norm
    qkv: Linear
    out: Linear
    between: Norm
    up: Linear
    down: Linear


class GPT2(Decoder):
    """``x += out(attention(norm x)); x += down(gelu(up(norm x)))``"""

    def __init__(self, file: File, context: int | None = None) -> None:
        self.sizes = sizes_of(file, "gpt2", "attention.layer_norm_epsilon")
        s, parts = self.sizes, Parts(file)
        self.words = file["token_embd.weight"].shape[0]
        wide = file.fact("gpt2.feed_forward_length", int)
        self.embedding = parts.matrix("token_embd.weight", self.words, s.width)
        self.beginnings = parts.matrix("position_embd.weight", s.context, s.width)
        across = s.heads * s.head

        def layer(name: str) -> Layer:
            return Layer(
                before=Norm.of(parts, f"{name}.attn_norm", s.width, s.eps),
                qkv=parts.linear(f"{name}.attn_qkv", across + 2 * s.groups * s.head, s.width),
                out=parts.linear(f"{name}.attn_output", s.width, across),
                between=Norm.of(parts, f"{name}.ffn_norm", s.width, s.eps),
                up=parts.linear(f"{name}.ffn_up", wide, s.width),
                down=parts.linear(f"{name}.ffn_down", s.width, wide),
            )

        self.layers = [layer(f"blk.{n}") for n in range(s.layers)]
        self.norm = Norm.of(parts, "output_norm", s.width, s.eps)
        head = "output.weight"
        self.head = parts.matrix(head, self.words, s.width) if parts.has(head) else self.embedding
        parts.end()
        super().__init__(file, context)

    def embedded(self, tokens: pb.Tensor, first: pb.Tensor) -> pb.Tensor:
        place = pb.minimum(pb.arange(tokens.shape[0]) + first, self.sizes.context - 1)
        made: pb.Tensor = self.embedding.taken(tokens) + self.beginnings.taken(place)
        return made

    def block(self, number: int, x: pb.Tensor, first: pb.Tensor, mix: Mix) -> pb.Tensor:
        layer, s = self.layers[number], self.sizes
        made = layer.qkv(layer.before(x))
        q, k = s.heads * s.head, s.groups * s.head
        parts = made[..., :q], made[..., q : q + k], made[..., q + k :]
        lead = x.shape[:-1]
        x = x + layer.out(mix(*(pb.reshape(p, (*lead, -1, s.head)) for p in parts)))
        return x + layer.down(pb.gelu_tanh(layer.up(layer.between(x))))

    def scores(self, x: pb.Tensor) -> pb.Tensor:
        return self.head(self.norm(x))
