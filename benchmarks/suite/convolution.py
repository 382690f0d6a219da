"""Convolutions, forward and the gradient by the image and by the kernel, each by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from suite.workload import Arrays, Operation, normal


@dataclass(frozen=True)
class Convolution(Operation):
    """`way`: "" forward, "dx" and "dw" one gradient for a given head."""

    title = "conv"
    ranges = {
        "images": (1, 16, 1),
        "inner": (16, 128, 1),
        "outer": (16, 128, 1),
        "size": (14, 64, 1),
    }
    images: int = 8
    inner: int = 64
    outer: int = 64
    size: int = 56
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    way: str = ""

    @property
    def name(self) -> str:
        kind = "depthwise" if self.groups > 1 else self.title
        sizes = f"{self.images}x{self.inner}x{self.size}x{self.size} to {self.outer}"
        return f"{kind} {self.kernel}x{self.kernel} s{self.stride} {sizes} {self.way}".rstrip()

    def drawn(self, rng: np.random.Generator) -> Convolution:
        """Depthwise stays depthwise."""
        found = super().drawn(rng)
        if self.groups == 1:
            return found
        return replace(found, outer=found.inner, groups=found.inner)

    @property
    def part(self) -> str:
        return "gradients" if self.way else ""

    @property
    def by(self) -> tuple[int, ...]:
        return (0,) if self.way == "dx" else (1,)

    @property
    def high(self) -> int:
        """Rows of the result."""
        return (self.size - 1) // self.stride + 1

    def data(self, rng: np.random.Generator) -> Arrays:
        into = self.inner // self.groups
        w = normal(rng, self.outer, into, self.kernel, self.kernel)
        x = normal(rng, self.images, self.inner, self.size, self.size)
        return [x, w / np.float32((into * self.kernel**2) ** 0.5)]

    def torch(self, s: Any, x: Any, w: Any) -> Any:
        return s.F.conv2d(x, w, None, self.stride, self.kernel // 2, 1, self.groups)

    pullback = torch

    def jax(self, s: Any, x: Any, w: Any) -> Any:
        pads = [(self.kernel // 2,) * 2] * 2
        strides = (self.stride,) * 2
        conv = s.jax.lax.conv_general_dilated
        return conv(x, w, strides, pads, feature_group_count=self.groups)

    def flops(self) -> float:
        taps = self.inner // self.groups * self.kernel**2
        return 2.0 * self.images * self.outer * self.high**2 * taps


@dataclass(frozen=True)
class Transposed(Convolution):
    """A transposed convolution of stride 2 with a 4x4 kernel: twice the size."""

    title = "transposed"
    kernel: int = 4
    stride: int = 2
    size: int = 28

    def data(self, rng: np.random.Generator) -> Arrays:
        w = normal(rng, self.inner, self.outer, self.kernel, self.kernel)
        x = normal(rng, self.images, self.inner, self.size, self.size)
        return [x, w / np.float32((self.inner * 4) ** 0.5)]

    def torch(self, s: Any, x: Any, w: Any) -> Any:
        return s.F.conv_transpose2d(x, w, None, self.stride, 1)

    pullback = torch

    def jax(self, s: Any, x: Any, w: Any) -> Any:
        """The gradient of a convolution of stride 2, written as one of a dilated image."""
        turned = w[:, :, ::-1, ::-1].swapaxes(0, 1)
        conv = s.jax.lax.conv_general_dilated
        return conv(x, turned, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2))

    def flops(self) -> float:
        taps = self.inner * self.kernel**2
        return 2.0 * self.images * self.outer * self.size**2 * taps


WAYS = ("", "dx", "dw")
WORKLOADS = tuple(
    kind(*sizes, way=way)
    for kind, sizes in (
        (Convolution, (8, 64, 64, 56, 3, 1)),
        (Convolution, (8, 64, 128, 56, 3, 2)),
        (Convolution, (8, 256, 64, 56, 1, 1)),
        (Convolution, (8, 3, 64, 224, 7, 2)),
        (Convolution, (8, 128, 128, 56, 3, 1, 128)),
        (Transposed, (8, 64, 64, 28)),
    )
    for way in WAYS
)
