"""Attention beside each peer's best form of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.workload import Arrays, Operation, normal


@dataclass(frozen=True)
class Attention(Operation):
    title = "attention"
    ranges = {"batch": (1, 4, 1), "heads": (2, 8, 1), "length": (64, 1024, 1)}
    wrt = (0, 1, 2)
    batch: int = 4
    heads: int = 8
    length: int = 128
    features: int = 64
    mask: str = ""
    way: str = ""

    def data(self, rng: np.random.Generator) -> Arrays:
        shape = (self.batch, self.heads, self.length, self.features)
        return [normal(rng, *shape) for _ in range(3)]

    def torch(self, s: Any, q: Any, k: Any, v: Any) -> Any:
        return s.F.scaled_dot_product_attention(q, k, v, is_causal=self.mask == "causal")

    pullback = torch

    def jax(self, s: Any, q: Any, k: Any, v: Any) -> Any:
        scores = s.x.einsum("bhie,bhje->bhij", q, k) / np.float32(self.features**0.5)
        if self.mask == "causal":
            below = s.x.tril(s.x.ones((self.length, self.length), bool))
            scores = s.x.where(below, scores, -np.inf)
        return s.x.einsum("bhij,bhje->bhie", s.jax.nn.softmax(scores, -1), v)

    def numpy(self, s: Any, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) / np.float32(self.features**0.5)
        if self.mask == "causal":
            scores = np.where(np.tri(self.length, dtype=bool), scores, np.float32(-np.inf))
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)) @ v

    def flops(self) -> float:
        """2 products forward; backward 4 more and the scores once more."""
        pairs = self.length * (self.length + 1) // 2 if self.mask else self.length**2
        product = 2.0 * self.batch * self.heads * pairs * self.features
        return product * (7 if self.way else 2)


WORKLOADS = tuple(
    Attention(length=length, mask=mask, way=way)
    for length in (128, 512, 2048)
    for mask in ("", "causal")
    for way in ("", "both")
)
