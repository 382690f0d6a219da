"""Llama of a folder of Hugging Face's.

Source: Touvron et al., LLaMA, 2023; Llama 2, 2023; Grattafiori et al., The Llama 3 Herd, 2024.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn
from pullback.errors import UnsupportedError
from pullback.models.files import Array, Folder
from pullback.models.parts import ACTIVATIONS, Scope, attention, parted


class Llama(nn.Module):
    """``x += attention(norm x); x += down(act(gate n) up n)``; scores ``[b, t, words]``

    Example:
        >>> try:
        ...     pb.models.load_llama("no folder")
        ... except RuntimeError as error:
        ...     print(error.code)
        E586
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.width, self.heads = folder.number("hidden_size"), folder.number("num_attention_heads")
        self.groups = folder.number("num_key_value_heads", default=self.heads)
        self.head = folder.number("head_dim", default=max(1, self.width // self.heads))
        self.wide, self.words = folder.number("intermediate_size"), folder.number("vocab_size")
        self.count, self.eps = folder.number("num_hidden_layers"), folder.real("rms_norm_eps", 1e-6)
        self.activation = folder.one_of("hidden_act", ACTIVATIONS, "silu")
        self.tied = bool(folder.config.get("tie_word_embeddings", False))
        folder.only({"attention_bias": (False,), "mlp_bias": (False,), "pretraining_tp": (1,)})
        if self.heads % self.groups or self.head % 2:
            raise folder.wrong(f"{self.heads} heads of {self.head} in {self.groups} groups")

    def load(self, folder: Folder) -> Llama:
        """Make the layers, with the folder's weights."""
        w, across, shared = self.width, self.heads * self.head, self.groups * self.head
        tensors = {
            name.removeprefix("model."): value
            for name, value in folder.tensors.items()
            if not name.endswith("rotary_emb.inv_freq")
            and not (self.tied and name == "lm_head.weight")
        }
        shapes = {"embed_tokens.weight": (self.words, w), "norm.weight": (w,)}
        shapes |= {} if self.tied else {"lm_head.weight": (self.words, w)}
        each = {
            "input_layernorm": (w,), "post_attention_layernorm": (w,),
            "self_attn.q_proj": (across, w), "self_attn.k_proj": (shared, w),
            "self_attn.v_proj": (shared, w), "self_attn.o_proj": (w, across),
            "mlp.gate_proj": (self.wide, w), "mlp.up_proj": (self.wide, w),
            "mlp.down_proj": (w, self.wide),
        }  # fmt: skip
        rows: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in each.items()}
        ready = folder.fitting(tensors, shapes, "layers", self.count, rows)
        self.rates = rates_of(folder, self.head)
        self.embed_tokens = nn.Embedding(self.words, w)
        self.layers = nn.ModuleList(self._layer() for _ in range(self.count))
        self.norm = nn.RMSNorm(w, eps=self.eps)
        if not self.tied:
            self.lm_head = nn.Linear(w, self.words, bias=False)
        self.load_state_dict(ready)
        return self

    def _layer(self) -> Scope:
        w, across, shared = self.width, self.heads * self.head, self.groups * self.head
        return Scope(
            input_layernorm=nn.RMSNorm(w, eps=self.eps),
            self_attn=Scope(
                q_proj=nn.Linear(w, across, bias=False),
                k_proj=nn.Linear(w, shared, bias=False),
                v_proj=nn.Linear(w, shared, bias=False),
                o_proj=nn.Linear(across, w, bias=False),
            ),
            post_attention_layernorm=nn.RMSNorm(w, eps=self.eps),
            mlp=Scope(
                gate_proj=nn.Linear(w, self.wide, bias=False),
                up_proj=nn.Linear(w, self.wide, bias=False),
                down_proj=nn.Linear(self.wide, w, bias=False),
            ),
        )

    def forward(self, tokens: pb.Tensor) -> pb.Tensor:
        """Scores of what follows each token."""
        x, share = self.embed_tokens(tokens), self.heads // self.groups
        angles = pb.astype(pb.arange(tokens.shape[1]), pb.float32)[:, None] * pb.tensor(self.rates)
        cos, sin = pb.cos(angles), pb.sin(angles)
        for layer in self.layers:
            n, own = layer.input_layernorm(x), layer.self_attn
            q = turned(parted(own.q_proj(n), self.heads), cos, sin)
            k = turned(parted(own.k_proj(n), self.groups), cos, sin)
            k, v = (pb.repeat(p, share, axis=1) for p in (k, parted(own.v_proj(n), self.groups)))
            x = x + own.o_proj(attention(q, k, v, is_causal=True))
            n, own = layer.post_attention_layernorm(x), layer.mlp
            x = x + own.down_proj(self.activation(own.gate_proj(n)) * own.up_proj(n))
        head = self.embed_tokens.weight if self.tied else self.lm_head.weight
        return self.norm(x) @ head.mT


def turned(x: pb.Tensor, cos: pb.Tensor, sin: pb.Tensor) -> pb.Tensor:
    """Rotary places: halves of a head as pairs, turned by the angles ``[t, d / 2]``"""
    half = x.shape[-1]
    assert isinstance(half, int)
    half //= 2
    a, b = x[..., :half], x[..., half:]
    return pb.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rates_of(folder: Folder, head: int) -> Array:
    """Angles a place: ``base^(-2 j / head)``; of Llama 3.1, long waves slowed down.

    Raises: UnsupportedError for another scaling.
    """
    given: Any = folder.config.get("rope_parameters") or folder.config.get("rope_scaling") or {}
    given = given if isinstance(given, dict) else {}
    base = given.get("rope_theta", folder.config.get("rope_theta", 10000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    if type(base) not in (int, float) or not 1.0 <= base < np.inf:
        raise folder.wrong(f"`rope_theta` is {base!r:.60}")
    powers = np.arange(0, head, 2, dtype=np.float32) / np.float32(head)
    rates = np.float32(1.0) / np.float32(base) ** powers
    if kind == "default":
        return rates
    if kind != "llama3":
        what = f"places scaled as {kind!r:.40} in {folder.path}"
        raise UnsupportedError(what, help="known are default, llama3", code="E586")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, places = (given.get(key) for key in keys)
    numbers = (factor, low, high, places)
    if any(type(n) not in (int, float) or not 0 < n < MANY for n in numbers) or low >= high:
        raise folder.wrong(f"places scaled by {numbers!r:.80}")
    waves = 2 * np.pi / rates
    smooth = np.clip((places / waves - low) / (high - low), 0.0, 1.0)
    return np.asarray((1 - smooth) * rates / factor + smooth * rates, np.float32)


MANY = 1e12  # beyond what a scaling of places can mean


def load_llama(path: str | os.PathLike[str]) -> Llama:
    """A Llama of a folder with `config.json` and safetensors, ready to run, float32.

    Raises: StateError, UnsupportedError where the folder does not hold one (E586).

    Example:
        >>> try:
        ...     pb.models.load_llama("no folder")
        ... except RuntimeError as error:
        ...     print(error.code)
        E586
    """
    folder = Folder(path, "llama")
    return Llama(folder).load(folder).eval()
