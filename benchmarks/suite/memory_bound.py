"""Operations that move more memory than they compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.workload import Arrays, Operation, normal


@dataclass(frozen=True)
class Chain(Operation):
    """15 operations on each element of two arrays."""

    title = "chain"
    ranges = {"rows": (64, 8192, 1), "columns": (64, 2048, 1)}
    rows: int = 4096
    columns: int = 1024

    def data(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.rows, self.columns) for _ in range(2)]

    def torch(self, s: Any, x: Any, y: Any) -> Any:
        a = s.x.tanh(x * 0.5 + y)
        b = s.x.exp(-(x * x)) * s.x.sigmoid(y)
        c = s.x.maximum(a, b) - y * 0.25
        return c / (s.x.abs(a) + 1.0) + s.x.sqrt(b + 1.0)

    pullback = torch

    def jax(self, s: Any, x: Any, y: Any) -> Any:
        a = s.x.tanh(x * 0.5 + y)
        b = s.x.exp(-(x * x)) * s.jax.nn.sigmoid(y)
        c = s.x.maximum(a, b) - y * 0.25
        return c / (s.x.abs(a) + 1.0) + s.x.sqrt(b + 1.0)

    def numpy(self, s: Any, x: Any, y: Any) -> Any:
        a = np.tanh(x * np.float32(0.5) + y)
        b = np.exp(-(x * x)) / (1 + np.exp(-y))
        c = np.maximum(a, b) - y * np.float32(0.25)
        return c / (np.abs(a) + 1) + np.sqrt(b + 1)


@dataclass(frozen=True)
class Softmax(Operation):
    title = "softmax"
    ranges = {"rows": (64, 8192, 1), "columns": (64, 4096, 1)}
    rows: int = 4096
    columns: int = 1024
    way: str = ""

    def data(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.rows, self.columns)]

    def torch(self, s: Any, x: Any) -> Any:
        return s.F.softmax(x, -1)

    pullback = torch

    def jax(self, s: Any, x: Any) -> Any:
        return s.jax.nn.softmax(x, -1)

    def numpy(self, s: Any, x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


@dataclass(frozen=True)
class NegativeLogLikelihood(Operation):
    """log-softmax and the loss of the wanted class of each row, with the gradient."""

    title = "log-softmax + NLL"
    ranges = {"rows": (16, 512, 1), "classes": (8192, 65536, 1)}
    rows: int = 256
    classes: int = 32768
    way: str = "both"

    def data(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.rows, self.classes), rng.integers(0, self.classes, self.rows)]

    def torch(self, s: Any, x: Any, wanted: Any) -> Any:
        return s.F.nll_loss(s.F.log_softmax(x, -1), wanted)

    pullback = torch

    def jax(self, s: Any, x: Any, wanted: Any) -> Any:
        logs = s.jax.nn.log_softmax(x, -1)
        return -s.x.take_along_axis(logs, wanted[:, None], 1).mean()


@dataclass(frozen=True)
class LayerNorm(Operation):
    title = "layer norm"
    ranges = {"rows": (64, 8192, 1), "columns": (64, 4096, 1)}
    wrt = (0, 1, 2)
    rows: int = 4096
    columns: int = 1024
    way: str = ""

    def data(self, rng: np.random.Generator) -> Arrays:
        scale, shift = normal(rng, self.columns), normal(rng, self.columns)
        return [normal(rng, self.rows, self.columns), scale, shift]

    def torch(self, s: Any, x: Any, scale: Any, shift: Any) -> Any:
        return s.F.layer_norm(x, (self.columns,), scale, shift)

    pullback = torch

    def jax(self, s: Any, x: Any, scale: Any, shift: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        apart = x - mean
        spread = (apart * apart).mean(-1, keepdims=True)
        return apart * s.jax.lax.rsqrt(spread + 1e-5) * scale + shift

    def numpy(self, s: Any, x: Any, scale: Any, shift: Any) -> Any:
        apart = x - x.mean(-1, keepdims=True)
        spread = (apart * apart).mean(-1, keepdims=True)
        return apart / np.sqrt(spread + np.float32(1e-5)) * scale + shift


@dataclass(frozen=True)
class GatedNorm(Operation):
    """RMSNorm of ``silu(a) * b`` where a, b are the halves of each row: what follows a
    feed-forward net's first product.
    """

    title = "RMSNorm + SwiGLU"
    ranges = {"rows": (64, 8192, 1), "columns": (64, 2048, 1)}
    wrt = (0, 1)
    rows: int = 4096
    columns: int = 1024
    way: str = ""

    def data(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.rows, 2 * self.columns), normal(rng, self.columns)]

    def torch(self, s: Any, x: Any, scale: Any) -> Any:
        gated = s.F.silu(x[:, : self.columns]) * x[:, self.columns :]
        return s.F.rms_norm(gated, (self.columns,), scale, 1e-6)

    pullback = torch

    def jax(self, s: Any, x: Any, scale: Any) -> Any:
        gated = s.jax.nn.silu(x[:, : self.columns]) * x[:, self.columns :]
        size = (gated * gated).mean(-1, keepdims=True)
        return gated * s.jax.lax.rsqrt(size + 1e-6) * scale


@dataclass(frozen=True)
class Rotary(Operation):
    """RoPE: pairs of features turned by an angle that grows with the position."""

    title = "RoPE"
    ranges = {"batch": (1, 8, 1), "heads": (4, 16, 1), "length": (64, 2048, 1)}
    batch: int = 4
    heads: int = 8
    length: int = 1024
    features: int = 64
    way: str = ""

    def data(self, rng: np.random.Generator) -> Arrays:
        half = self.features // 2
        rates = 10000.0 ** (-np.arange(half) / half)
        angles = np.arange(self.length)[:, None] * rates
        x = normal(rng, self.batch, self.heads, self.length, self.features)
        return [x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]

    def torch(self, s: Any, x: Any, cos: Any, sin: Any) -> Any:
        half = self.features // 2
        a, b = x[..., :half], x[..., half:]
        return s.join([a * cos - b * sin, b * cos + a * sin], -1)

    pullback = torch
    jax = torch
    numpy = torch


@dataclass(frozen=True)
class EmbeddingGradient(Operation):
    """Rows of the head added up at the tokens that they are for."""

    title = "embedding gradient"
    ranges = {"tokens": (256, 8192, 1), "words": (1000, 50000, 1), "features": (64, 1024, 1)}
    tokens: int = 4096
    words: int = 32000
    features: int = 256
    way: str = "gradients"

    def data(self, rng: np.random.Generator) -> Arrays:
        table = normal(rng, self.words, self.features)
        return [table, rng.integers(0, self.words, self.tokens)]

    def torch(self, s: Any, table: Any, tokens: Any) -> Any:
        return s.F.embedding(tokens, table)

    pullback = torch

    def jax(self, s: Any, table: Any, tokens: Any) -> Any:
        return table[tokens]


@dataclass(frozen=True)
class CumulativeSum(Operation):
    title = "cumsum"
    ranges = {"rows": (16, 4096, 1), "columns": (256, 8192, 1)}
    tolerance = 1e-2  # sums of thousands of float32 in other orders
    rows: int = 4096
    columns: int = 1024

    def data(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.rows, self.columns)]

    def torch(self, s: Any, x: Any) -> Any:
        return s.x.cumsum(x, -1)

    def pullback(self, s: Any, x: Any) -> Any:
        return s.x.cumulative_sum(x, axis=-1)

    def jax(self, s: Any, x: Any) -> Any:
        return s.x.cumsum(x, -1)

    numpy = jax


@dataclass(frozen=True)
class AdamWStep(Operation):
    """The eleventh step of AdamW over many parameters; a peer may write in place."""

    title = "AdamW"
    ranges = {"parameters": (1_000_000, 20_000_000, 1)}
    parameters: int = 10_000_000
    RATE, B1, B2, EPS, DECAY, STEP = 1e-3, 0.9, 0.999, 1e-8, 0.01, 11

    def data(self, rng: np.random.Generator) -> Arrays:
        p, g, m, v = (normal(rng, self.parameters) for _ in range(4))
        return [p, g, m, v * v]

    def state(self) -> tuple[int, ...]:
        """The inputs that the results replace, in their order."""
        return (0, 2, 3)

    def jax(self, s: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
        m = self.B1 * m + (1 - self.B1) * g
        v = self.B2 * v + (1 - self.B2) * (g * g)
        size = math.sqrt(1 - self.B2**self.STEP)
        rate = self.RATE / (1 - self.B1**self.STEP)
        p = p * (1 - self.RATE * self.DECAY) - rate * m / (s.x.sqrt(v) / size + self.EPS)
        return p, m, v

    pullback = jax
    compile = jax

    def torch(self, s: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
        """PyTorch's fused step, in place."""
        steps = [s.x.tensor(float(self.STEP - 1))]
        options = {"lr": self.RATE, "beta1": self.B1, "beta2": self.B2, "eps": self.EPS}
        kind = {"weight_decay": self.DECAY, "amsgrad": False, "maximize": False}
        s.x._foreach_add_(steps, 1)
        s.x._fused_adamw_([p], [g], [m], [v], [], steps, **options, **kind)
        return p, m, v


WORKLOADS = (
    Chain(),
    Chain(512, 512),
    Softmax(),
    Softmax(512, 512),
    Softmax(way="both"),
    NegativeLogLikelihood(),
    LayerNorm(),
    LayerNorm(512, 512),
    LayerNorm(way="both"),
    LayerNorm(512, 512, way="both"),
    GatedNorm(),
    GatedNorm(way="both"),
    Rotary(),
    Rotary(way="both"),
    AdamWStep(),
    EmbeddingGradient(),
    CumulativeSum(),
)
