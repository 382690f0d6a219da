"""Products of matrices: many sizes, transposed operands, batches, an epilogue, bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.workload import Arrays, Operation, normal


@dataclass(frozen=True)
class Product(Operation):
    """``a @ b`` where `form` says for each operand whether it is kept as it is or transposed."""

    title = "product"
    ranges = {"m": (2, 2048, 1), "n": (32, 2048, 1), "k": (32, 2048, 1)}
    m: int
    n: int
    k: int
    form: str = "nn"

    def data(self, rng: np.random.Generator) -> Arrays:
        left = (self.m, self.k) if self.form[0] == "n" else (self.k, self.m)
        right = (self.k, self.n) if self.form[1] == "n" else (self.n, self.k)
        return [normal(rng, *left), normal(rng, *right)]

    def torch(self, s: Any, a: Any, b: Any) -> Any:
        return (a if self.form[0] == "n" else a.T) @ (b if self.form[1] == "n" else b.T)

    pullback = torch
    jax = torch
    numpy = torch

    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True)
class HalfProduct(Product):
    """Operands and result in bfloat16, sums in float32."""

    title = "product bf16"
    dtype = "bfloat16"
    tolerance = 2e-2
    numpy = None  # has no bfloat16 of its own

    def flops(self) -> float:
        """In float32 multiply-adds, which the limit is measured in: an instruction does two."""
        return super().flops() / 2


@dataclass(frozen=True)
class Batched(Operation):
    title = "batched product"
    ranges = {"batch": (4, 128, 1), "size": (32, 256, 1)}
    batch: int = 64
    size: int = 128

    def data(self, rng: np.random.Generator) -> Arrays:
        return [normal(rng, self.batch, self.size, self.size) for _ in range(2)]

    def torch(self, s: Any, a: Any, b: Any) -> Any:
        return a @ b

    pullback = torch
    jax = torch
    numpy = torch

    def flops(self) -> float:
        return 2.0 * self.batch * self.size**3


@dataclass(frozen=True)
class LinearGelu(Operation):
    """``gelu(x w^T + b)``, the exact gelu."""

    title = "linear + bias + GELU"
    ranges = {"rows": (2, 4096, 1), "outer": (64, 2048, 1), "inner": (64, 2048, 1)}
    rows: int = 512
    outer: int = 512
    inner: int = 512

    def data(self, rng: np.random.Generator) -> Arrays:
        x, w = normal(rng, self.rows, self.inner), normal(rng, self.outer, self.inner)
        return [x, w / np.float32(self.inner**0.5), normal(rng, self.outer)]

    def torch(self, s: Any, x: Any, w: Any, b: Any) -> Any:
        return s.F.gelu(s.F.linear(x, w, b))

    pullback = torch

    def jax(self, s: Any, x: Any, w: Any, b: Any) -> Any:
        return s.jax.nn.gelu(x @ w.T + b, approximate=False)

    def flops(self) -> float:
        return 2.0 * self.rows * self.outer * self.inner


SIZES = (
    (2, 255, 255),
    (64, 64, 64),
    (128, 256, 64),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 1024, 1024),
)
WORKLOADS = (
    *(Product(*size) for size in SIZES),
    *(Product(n, n, n, form) for n in (256, 1024, 2048) for form in ("nt", "tn")),
    Batched(),
    *(LinearGelu(*size) for size in ((2, 255, 255), (128, 256, 64), (512, 512, 512))),
    LinearGelu(4096, 1024, 1024),
    HalfProduct(512, 512, 512),
    HalfProduct(1024, 1024, 1024),
)
