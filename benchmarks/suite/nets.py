"""Nets that are trained, each once for pullback and PyTorch and once for JAX.

Weights have PyTorch's names in all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.workload import Arrays, Range, Training, normal


def products(rows: int, size: int) -> float:
    """Operations of products with `size` weights for each row: forward, and two gradients."""
    return 6.0 * rows * size


def dense(s: Any, p: Any, name: str, x: Any) -> Any:
    """``x w^T + b`` in JAX."""
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def norm(s: Any, p: Any, name: str, x: Any) -> Any:
    """A layer norm in JAX."""
    apart = x - x.mean(-1, keepdims=True)
    spread = (apart * apart).mean(-1, keepdims=True)
    scaled = apart * s.jax.lax.rsqrt(spread + 1e-5)
    return scaled * p[name + ".weight"] + p[name + ".bias"]


def attention(s: Any, packed: Any, heads: int, causal: bool) -> Any:
    """Of q, k, v side by side in the last axis, batch and position before it; in JAX."""
    batch, length, wide = packed.shape
    size = wide // 3 // heads
    q, k, v = s.x.moveaxis(packed.reshape(batch, length, 3, heads, size), 2, 0)
    scores = s.x.einsum("bihe,bjhe->bhij", q, k) / math.sqrt(size)
    if causal:
        scores = s.x.where(s.x.tril(s.x.ones((length, length), bool)), scores, -np.inf)
    mixed = s.x.einsum("bhij,bjhe->bihe", s.jax.nn.softmax(scores, -1), v)
    return mixed.reshape(batch, length, wide // 3)


def cross_entropy(s: Any, logits: Any, wanted: Any) -> Any:
    """The mean loss of the wanted classes, in JAX."""
    logs = s.jax.nn.log_softmax(logits, -1)
    return -s.x.take_along_axis(logs, wanted[..., None], -1).mean()


def convolution(s: Any, x: Any, w: Any, pad: int) -> Any:
    return s.jax.lax.conv_general_dilated(x, w, (1, 1), [(pad, pad)] * 2)


@dataclass(frozen=True)
class Net(Training):
    """Seed example 1: two linear layers with a sigmoid between; the loss is the sum."""

    title = "linear-sigmoid-linear, batch x width"
    ranges = {"batch_size": (1, 8, 1), "width": (64, 384, 1)}
    batch_size: int = 2
    width: int = 255
    steps = 200

    def flops(self) -> float:
        return products(self.batch_size, 2 * self.width**2) - 2 * self.batch_size * self.width**2

    def batch(self, rng: np.random.Generator) -> Arrays:
        return [np.full((self.batch_size, self.width), 0.2, np.float32)]

    def model(self, s: Any) -> Any:
        a, b = s.nn.Linear(self.width, self.width), s.nn.Linear(self.width, self.width)
        return s.nn.Sequential(a, s.nn.Sigmoid(), b)

    def loss(self, s: Any, model: Any, x: Any) -> Any:
        return model(x).sum()

    def jax(self, s: Any, p: Any, x: Any) -> Any:
        return dense(s, p, "2", s.jax.nn.sigmoid(dense(s, p, "0", x))).sum()


@dataclass(frozen=True)
class Perceptron(Training):
    """Linear layers with relu between them and the cross entropy of 10 classes."""

    title = "MLP"
    ranges = {"batch_size": (8, 256, 1), "width": (128, 1024, 1)}
    batch_size: int = 16
    inputs: int = 784
    width: int = 512
    steps = 10

    @property
    def name(self) -> str:
        sizes = f"{self.inputs}-{self.width}-{self.width}-10"
        return f"{self.title} {sizes}, batch {self.batch_size}"

    def flops(self) -> float:
        inner = (self.width + 10) * self.width
        return products(self.batch_size, inner) + 4.0 * self.batch_size * self.inputs * self.width

    def batch(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.batch_size, self.inputs), rng.integers(0, 10, self.batch_size)]

    def model(self, s: Any) -> Any:
        first, last = s.nn.Linear(self.inputs, self.width), s.nn.Linear(self.width, 10)
        middle = s.nn.Linear(self.width, self.width)
        return s.nn.Sequential(first, s.nn.ReLU(), middle, s.nn.ReLU(), last)

    def loss(self, s: Any, model: Any, x: Any, wanted: Any) -> Any:
        return s.F.cross_entropy(model(x), wanted)

    def jax(self, s: Any, p: Any, x: Any, wanted: Any) -> Any:
        for name in ("0", "2"):
            x = s.jax.nn.relu(dense(s, p, name, x))
        return cross_entropy(s, dense(s, p, "4", x), wanted)


@dataclass(frozen=True)
class Recurrent(Training):
    """A GRU over a sequence; the loss is the mean square of its states."""

    title = "GRU loop, length x batch x width"
    ranges = {"length": (16, 128, 1), "batch_size": (1, 16, 1), "width": (32, 128, 1)}
    length: int = 64
    batch_size: int = 2
    width: int = 64
    steps = 10

    def flops(self) -> float:
        return (4.0 + 6.0) * self.length * self.batch_size * 3 * self.width**2

    def batch(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.length, self.batch_size, self.width)]

    def model(self, s: Any) -> Any:
        return s.nn.GRU(self.width, self.width)

    def loss(self, s: Any, model: Any, x: Any) -> Any:
        y = model(x)[0]
        return (y * y).mean()

    def jax(self, s: Any, p: Any, x: Any) -> Any:
        nn = s.jax.nn
        given = x @ p["weight_ih_l0"].T + p["bias_ih_l0"]

        def step(h: Any, g: Any) -> Any:
            own = h @ p["weight_hh_l0"].T + p["bias_hh_l0"]
            (gr, gz, gn), (hr, hz, hn) = s.x.split(g, 3, -1), s.x.split(own, 3, -1)
            r, z = nn.sigmoid(gr + hr), nn.sigmoid(gz + hz)
            new = s.x.tanh(gn + r * hn)
            h = new + z * (h - new)
            return h, h

        y = s.jax.lax.scan(step, s.x.zeros((self.batch_size, self.width)), given)[1]
        return (y * y).mean()


@dataclass(frozen=True)
class Encoder(Training):
    """Seed example 2: post-norm encoder layers of 64 features, 4 heads, 128 in between."""

    title = "encoder d 64"
    layers: int = 6
    sequences: int = 0
    tokens: int = 2

    WIDTH, HEADS, INNER = 64, 4, 128

    @property
    def ranges(self) -> dict[str, Range]:
        return {"layers": (1, 6, 1), "tokens": (16, 128, 1) if self.sequences else (2, 8, 1)}

    @property
    def name(self) -> str:
        many = f"{self.sequences}x" if self.sequences else ""
        return f"{self.title}, {many}{self.tokens} tokens, {self.layers} layers"

    @property
    def steps(self) -> int:
        return 20 if self.tokens <= 8 and not self.sequences else 5

    def flops(self) -> float:
        rows = max(1, self.sequences) * self.tokens
        size = 4 * self.WIDTH**2 + 2 * self.WIDTH * self.INNER + 2 * self.tokens * self.WIDTH
        return products(rows, self.layers * size)

    def batch(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, max(1, self.sequences), self.tokens, self.WIDTH)]

    def model(self, s: Any) -> Any:
        form = {"dropout": 0.0, "batch_first": True}
        layer = s.nn.TransformerEncoderLayer(self.WIDTH, self.HEADS, self.INNER, **form)
        return s.nn.TransformerEncoder(layer, self.layers, enable_nested_tensor=False)

    def loss(self, s: Any, model: Any, x: Any) -> Any:
        return model(x).sum()

    def jax(self, s: Any, p: Any, x: Any) -> Any:
        for n in range(self.layers):
            at = f"layers.{n}."
            weight, bias = p[at + "self_attn.in_proj_weight"], p[at + "self_attn.in_proj_bias"]
            mixed = attention(s, x @ weight.T + bias, self.HEADS, False)
            x = norm(s, p, at + "norm1", x + dense(s, p, at + "self_attn.out_proj", mixed))
            hidden = s.jax.nn.relu(dense(s, p, at + "linear1", x))
            x = norm(s, p, at + "norm2", x + dense(s, p, at + "linear2", hidden))
        return x.sum()


@dataclass(frozen=True)
class Gpt(Training):
    """Pre-norm blocks of causal attention and a feed-forward net with GELU; AdamW."""

    title = "GPT"
    ranges = {"layers": (2, 6, 1), "sequences": (2, 16, 1), "tokens": (32, 128, 1)}
    optimiser = "adamw"
    rate = 1e-3
    width: int = 128
    layers: int = 4
    sequences: int = 16
    tokens: int = 64
    heads: int = 4
    words: int = 96
    dropout: float = 0.0

    @property
    def name(self) -> str:
        sizes = f"d {self.width}, {self.layers} layers, {self.sequences}x{self.tokens} tokens"
        return f"{self.title} {sizes}" + (f", dropout {self.dropout}" if self.dropout else "")

    @property
    def tolerance(self) -> float:
        return 5e-2 if self.dropout else 1e-3  # masks are each system's own

    def flops(self) -> float:
        """Of causal attention the half that counts."""
        rows = self.sequences * self.tokens
        size = self.layers * (12 * self.width**2 + self.tokens * self.width)
        return products(rows, size + self.words * self.width)

    def batch(self, rng: np.random.Generator) -> Arrays:
        found = rng.integers(0, self.words, (self.sequences, self.tokens + 1))
        return [found[:, :-1].copy(), found[:, 1:].copy()]

    def model(self, s: Any) -> Any:
        return gpt(s, self)

    def loss(self, s: Any, model: Any, tokens: Any, wanted: Any) -> Any:
        logits = model(tokens)
        return s.F.cross_entropy(logits.reshape((-1, self.words)), wanted.reshape((-1,)))

    def jax(self, s: Any, p: Any, tokens: Any, wanted: Any, key: Any = None) -> Any:
        keys = iter(s.jax.random.split(key, 2 * self.layers)) if self.dropout else None
        x = p["tokens.weight"][tokens] + p["positions.weight"]
        for n in range(self.layers):
            at = f"blocks.{n}."
            packed = dense(s, p, at + "qkv", norm(s, p, at + "norm1", x))
            mixed = dense(s, p, at + "proj", attention(s, packed, self.heads, True))
            x = x + self.dropped(s, keys, mixed)
            hidden = dense(s, p, at + "linear1", norm(s, p, at + "norm2", x))
            hidden = dense(s, p, at + "linear2", s.jax.nn.gelu(hidden, approximate=True))
            x = x + self.dropped(s, keys, hidden)
        return cross_entropy(s, dense(s, p, "head", norm(s, p, "norm", x)), wanted)

    def dropped(self, s: Any, keys: Any, x: Any) -> Any:
        if keys is None:
            return x
        kept = s.jax.random.bernoulli(next(keys), 1.0 - self.dropout, x.shape)
        return s.x.where(kept, x / (1.0 - self.dropout), 0.0)


def gpt(s: Any, w: Gpt) -> Any:
    """The module, with the classes of `s.nn`."""
    nn, F = s.nn, s.F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(w.width), nn.LayerNorm(w.width)
            self.qkv, self.proj = nn.Linear(w.width, 3 * w.width), nn.Linear(w.width, w.width)
            self.linear1 = nn.Linear(w.width, 4 * w.width)
            self.linear2 = nn.Linear(4 * w.width, w.width)
            self.drop = nn.Dropout(w.dropout)

        def forward(self, x: Any) -> Any:
            shape = (w.sequences, w.tokens, 3, w.heads, w.width // w.heads)
            packed = s.permuted(self.qkv(self.norm1(x)).reshape(shape), (2, 0, 3, 1, 4))
            q, k, v = packed[0], packed[1], packed[2]
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = s.permuted(mixed, (0, 2, 1, 3)).reshape((w.sequences, w.tokens, w.width))
            x = x + self.drop(self.proj(mixed))
            hidden = F.gelu(self.linear1(self.norm2(x)), approximate="tanh")
            return x + self.drop(self.linear2(hidden))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(w.words, w.width)
            self.positions = nn.Embedding(w.tokens, w.width)
            self.blocks = nn.ModuleList([Block() for _ in range(w.layers)])
            self.norm = nn.LayerNorm(w.width)
            self.head = nn.Linear(w.width, w.words, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


@dataclass(frozen=True)
class ConvNet(Training):
    """Two 3x3 convolutions, a pooling and two dense layers, cross entropy of 10 classes."""

    title = "ConvNet 28x28, batch"
    ranges = {"images": (8, 128, 1), "channels": (8, 32, 1)}
    images: int = 64
    channels: int = 32

    @property
    def name(self) -> str:
        return f"{self.title} {self.images}, {self.channels} channels"

    def flops(self) -> float:
        c = self.channels
        dense = 2 * c * 144 * 128 + 1280
        first, second = 26**2 * 9 * c, 24**2 * 9 * 2 * c * c
        return products(self.images, dense + second) + 4.0 * self.images * first

    def batch(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.images, 1, 28, 28), rng.integers(0, 10, self.images)]

    def model(self, s: Any) -> Any:
        nn, c = s.nn, self.channels
        first, second = nn.Conv2d(1, c, 3), nn.Conv2d(c, 2 * c, 3)
        head = [nn.Flatten(), nn.Linear(2 * c * 144, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), *head)

    def loss(self, s: Any, model: Any, x: Any, wanted: Any) -> Any:
        return s.F.cross_entropy(model(x), wanted)

    def jax(self, s: Any, p: Any, x: Any, wanted: Any) -> Any:
        for name in ("0", "2"):
            x = convolution(s, x, p[name + ".weight"], 0) + p[name + ".bias"][:, None, None]
            x = s.jax.nn.relu(x)
        window = (1, 1, 2, 2)
        x = s.jax.lax.reduce_window(x, -np.inf, s.jax.lax.max, window, window, "VALID")
        x = s.jax.nn.relu(dense(s, p, "6", x.reshape(self.images, -1)))
        return cross_entropy(s, dense(s, p, "8", x), wanted)


@dataclass(frozen=True)
class Residual(Training):
    """``relu(x + norm(conv(relu(norm(conv(x))))))`` with batch norms in training mode; the loss is
    the mean square.
    """

    title = "ResNet block"
    ranges = {"channels": (16, 96, 1), "size": (14, 56, 1), "images": (2, 8, 1)}
    size: int = 56
    channels: int = 64
    images: int = 8

    @property
    def name(self) -> str:
        return f"{self.title} {self.size}x{self.size}x{self.channels}, batch {self.images}"

    def flops(self) -> float:
        return 5 / 3 * products(self.images * self.size**2, 9 * self.channels**2)

    def batch(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.images, self.channels, self.size, self.size)]

    def model(self, s: Any) -> Any:
        nn, c = s.nn, self.channels
        norms = [nn.BatchNorm2d(c, track_running_stats=False) for _ in range(2)]
        convs = [nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(2)]
        return nn.Sequential(convs[0], norms[0], nn.ReLU(), convs[1], norms[1])

    def loss(self, s: Any, model: Any, x: Any) -> Any:
        y = s.F.relu(model(x) + x)
        return (y * y).mean()

    def jax(self, s: Any, p: Any, x: Any) -> Any:
        def normed(name: str, y: Any) -> Any:
            apart = y - y.mean((0, 2, 3), keepdims=True)
            spread = (apart * apart).mean((0, 2, 3), keepdims=True)
            y = apart * s.jax.lax.rsqrt(spread + 1e-5)
            return y * p[name + ".weight"][:, None, None] + p[name + ".bias"][:, None, None]

        y = s.jax.nn.relu(normed("1", convolution(s, x, p["0.weight"], 1)))
        y = s.jax.nn.relu(normed("4", convolution(s, y, p["3.weight"], 1)) + x)
        return (y * y).mean()


TINY = (
    Net(),
    *(Encoder(layers=n) for n in range(1, 7)),
    Perceptron(2, 255, 255),
    Recurrent(),
)
SMALL = (Encoder(sequences=2, tokens=64), Gpt(dropout=0.1))
MEDIUM = (
    Perceptron(16),
    Perceptron(128),
    Gpt(width=384, sequences=4, tokens=128, layers=6, heads=6),
    ConvNet(),
    Residual(),
)
TRAINED = (Encoder(), *SMALL, *MEDIUM)
