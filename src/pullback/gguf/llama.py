"""Llama from a file's facts and tensors: RMS norms, rotary places, grouped heads, gated layers.

Source: Touvron et al., LLaMA, 2023; Llama 2, 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import pullback as pb
from pullback.errors import StateError, UnsupportedError
from pullback.gguf.decoder import Array, Decoder, Mix, Parts, Sizes, normed, sizes_of, turned
from pullback.gguf.reader import File
from pullback.gguf.weights import Weight

Linear = Callable[[pb.Tensor], pb.Tensor]
SCALED = ("rope.scaling.type", "rope.scale_linear")


@dataclass(frozen=True)
class Layer:
    """The matrices and norms of a layer."""

    before: pb.Tensor
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    between: pb.Tensor
    gate: Linear
    up: Linear
    down: Linear


class Llama(Decoder):
    """``x += out(attention(norm x)); x += down(silu(gate n) up n), n = norm x``"""

    def __init__(self, file: File, context: int | None = None) -> None:
        self.sizes = sizes_of(file, "llama", "attention.layer_norm_rms_epsilon")
        s = self.sizes
        parts = Parts(file)
        self.words = file["token_embd.weight"].shape[0]
        wide = file.fact("llama.feed_forward_length", int)
        self.embedding = parts.matrix("token_embd.weight", self.words, s.width)
        self.layers = [_layer(parts, f"blk.{n}", s, wide) for n in range(s.layers)]
        self.rates = rates_of(file, parts, s)  # of a head whose matrices are there
        self.norm = parts.vector("output_norm.weight", s.width)
        tied = not parts.has("output.weight")
        self.head: Weight = (
            self.embedding if tied else parts.matrix("output.weight", self.words, s.width)
        )
        parts.end()
        super().__init__(file, context)

    def embedded(self, tokens: pb.Tensor, first: pb.Tensor) -> pb.Tensor:
        return self.embedding.taken(tokens)

    def block(self, number: int, x: pb.Tensor, first: pb.Tensor, mix: Mix) -> pb.Tensor:
        layer, s = self.layers[number], self.sizes
        n = normed(x, layer.before, s.eps)
        lead = x.shape[:-1]
        q = pb.reshape(layer.q(n), (*lead, s.heads, s.head))
        k, v = (pb.reshape(f(n), (*lead, s.groups, s.head)) for f in (layer.k, layer.v))
        q, k = (turned(part, first, self.rates, pairs=True) for part in (q, k))
        x = x + layer.out(mix(q, k, v))
        n = normed(x, layer.between, s.eps)
        return x + layer.down(pb.silu(layer.gate(n)) * layer.up(n))

    def scores(self, x: pb.Tensor) -> pb.Tensor:
        return self.head(normed(x, self.norm, self.sizes.eps))


def _layer(parts: Parts, name: str, s: Sizes, wide: int) -> Layer:
    across, shared = s.heads * s.head, s.groups * s.head
    return Layer(
        before=parts.vector(f"{name}.attn_norm.weight", s.width),
        q=parts.linear(f"{name}.attn_q", across, s.width),
        k=parts.linear(f"{name}.attn_k", shared, s.width),
        v=parts.linear(f"{name}.attn_v", shared, s.width),
        out=parts.linear(f"{name}.attn_output", s.width, across),
        between=parts.vector(f"{name}.ffn_norm.weight", s.width),
        gate=parts.linear(f"{name}.ffn_gate", wide, s.width),
        up=parts.linear(f"{name}.ffn_up", wide, s.width),
        down=parts.linear(f"{name}.ffn_down", s.width, wide),
    )


def rates_of(file: File, parts: Parts, sizes: Sizes) -> Array:
    """Angles a place: ``base^(-2 j / count)``, divided by the file's factors where it has some.

    Raises: UnsupportedError for places that are scaled otherwise.
    """
    for key in SCALED:
        value = file.facts.get(f"llama.{key}", "none")
        if value not in ("none", 1.0):
            what = f"`llama.{key}` of {file.path} is {value!r:.60}"
            raise UnsupportedError(what, code="E583")
    count: int = file.fact("llama.rope.dimension_count", int, sizes.head)
    base: float = file.fact("llama.rope.freq_base", float, 10000.0)
    if not 2 <= count <= sizes.head or count % 2 or not 1.0 <= base < np.inf:
        what = f"{count} numbers of {sizes.head} turned by powers of {base}, in {file.path}"
        raise StateError(what, code="E587")
    powers = np.arange(0, count, 2, dtype=np.float32) / np.float32(count)
    rates = np.float32(1.0) / np.float32(base) ** powers
    if parts.has("rope_freqs.weight"):
        rates = rates / parts.vector("rope_freqs.weight", count // 2).numpy()
    return np.asarray(rates, np.float32)
