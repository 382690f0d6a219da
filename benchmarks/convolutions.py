"""Drawn convolutions beside PyTorch (oneDNN): forward, by data and by weights.

`python benchmarks/convolutions.py [--count 40] [--seed 7] [--threads 1]`: both in turn, the median
of processor time by PyTorch's, results compared. Plain, grouped, depthwise, dilated, transposed
and of three axes, stride 1 and 2, kernels of 1 to 7.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sides import medians

import pullback as pb

KINDS = ("plain", "plain", "plain", "grouped", "depthwise", "dilated", "transposed", "3-D")
WORK = (2e7, 1.2e9)  # multiply-adds and additions of a forward pass
Run = Callable[[], Any]
F = pb.nn.functional


@dataclass(frozen=True)
class Shape:
    """A convolution: how many pictures, their channels and size, the channels that come of them."""

    kind: str
    batch: int
    channels: int
    size: int
    out: int
    kernel: int
    stride: int
    padding: int
    groups: int = 1
    dilation: int = 1

    def __str__(self) -> str:
        more = f" g{self.groups}" if self.groups > 1 else ""
        more += f" d{self.dilation}" if self.dilation > 1 else ""
        size = f"{self.batch}x{self.channels}x{self.size} to {self.out}"
        return f"{self.kind} {self.kernel} s{self.stride} {size}{more}"

    @property
    def axes(self) -> int:
        return 3 if self.kind == "3-D" else 2

    @property
    def given(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *[self.size] * self.axes)

    @property
    def weights(self) -> tuple[int, ...]:
        first = (self.out, self.channels // self.groups)
        pair = (self.channels, self.out) if self.kind == "transposed" else first
        return (*pair, *[self.kernel] * self.axes)

    def __call__(self, functional: Any, x: Any, w: Any) -> Any:
        options = {"stride": self.stride, "padding": self.padding}
        if self.kind == "transposed":
            return functional.conv_transpose2d(x, w, **options)
        conv = functional.conv3d if self.kind == "3-D" else functional.conv2d
        return conv(x, w, **options, dilation=self.dilation, groups=self.groups)


def drawn(random: np.random.Generator, kind: str) -> Shape:
    """A shape of a kind whose work lies within `WORK`."""
    while True:
        kernel = int(random.choice([2, 4] if kind == "transposed" else [1, 3, 3, 5, 7]))
        kernel = min(kernel, 3) if kind in ("3-D", "dilated") else kernel
        stride = 2 if kind == "transposed" else int(random.choice([1, 2]))
        channels, out = (int(2 ** random.uniform(2, 9)) for _ in range(2))
        size = int(random.integers(5, 20 if kind == "3-D" else 90))
        groups = int(random.choice([2, 4])) if kind == "grouped" else 1
        channels, out = (-(-n // groups) * groups for n in (channels, out))
        if kind == "depthwise":
            groups = out = channels
        dilation = 2 if kind == "dilated" and kernel > 1 else 1
        padding = (dilation * (kernel - 1) + 1) // 2 if kind != "transposed" else kernel // 2 - 1
        batch = int(random.integers(1, 9))
        shape = Shape(kind, batch, channels, size, out, kernel, stride, padding, groups, dilation)
        terms = math.prod(shape.weights) if kind == "transposed" else math.prod(shape.weights[1:])
        places = 1 if kind == "transposed" else out / stride**shape.axes
        work = 2 * batch * size**shape.axes * terms * places
        if WORK[0] <= work <= WORK[1] and size > kernel * dilation:
            return shape


def sides(shape: Shape, threads: int) -> dict[str, tuple[Run, Run]]:
    """Forward, by data and by weights: ours and PyTorch's."""
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(s).astype(np.float32) for s in (shape.given, shape.weights))
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    y = shape(torch.nn.functional, tx, tw)
    g = random.standard_normal(tuple(y.shape)).astype(np.float32)
    tg, options = torch.from_numpy(g), pb.Options(threads=threads)
    px, pw, pg = map(pb.tensor, (x, w, g))
    axes = shape.axes
    rest = [[n] * axes for n in (shape.stride, shape.padding, shape.dilation)]
    fixed = (None, *rest, shape.kind == "transposed", [0] * axes, shape.groups)

    def theirs(*wanted: bool) -> Run:
        return lambda: torch.ops.aten.convolution_backward(tg, tx, tw, *fixed, [*wanted, False])

    def loss(x: Any, w: Any, g: Any) -> Any:
        return pb.sum(shape(F, x, w) * g)

    ours = [pb.jit(lambda x, w: shape(F, x, w), options=options)]
    ours += [pb.jit(pb.grad(loss, argnums=n), options=options) for n in (0, 1)]
    return {
        "forward": (lambda: ours[0](px, pw), lambda: shape(torch.nn.functional, tx, tw)),
        "by data": (lambda: ours[1](px, pw, pg), theirs(True, False)),
        "by weights": (lambda: ours[2](px, pw, pg), theirs(False, True)),
    }


def compared(own: Run, peer: Run, which: int | None) -> float:
    """The largest difference by the largest result."""
    theirs = peer() if which is None else peer()[which]
    wanted = theirs.detach().numpy()
    return float(np.abs(own().numpy() - wanted).max() / np.abs(wanted).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    random = np.random.default_rng(given.seed)
    ratios: dict[str, list[float]] = {}
    print("| convolution | forward ms, x | by data ms, x | by weights ms, x | off by |")
    print("|---|---|---|---|---|")
    with torch.no_grad():
        for number in range(given.count):
            shape = drawn(random, KINDS[number % len(KINDS)])
            cells, off = [], 0.0
            both = sides(shape, given.threads).items()
            for (name, (own, peer)), which in zip(both, (None, 0, 1), strict=True):
                off = max(off, compared(own, peer, which))
                ms, theirs = medians({"own": own, "peer": peer}).values()
                ratios.setdefault(name, []).append(theirs / ms)
                ratio = f"{theirs / ms:.2f}"
                cells.append(f"{ms:.2f}, {ratio if theirs >= ms else f'**{ratio}**'}")
            print(f"| {shape} | {' | '.join(cells)} | {off:.0e} |", flush=True)
    every = [r for own in ratios.values() for r in own]
    for name, own in (*ratios.items(), ("all", every)):
        mean = math.exp(sum(map(math.log, own)) / len(own))
        below = sum(r < 1 for r in own)
        print(f"\n{name}: mean {mean:.2f}, least {min(own):.2f}, {below} of {len(own)} below 1")


if __name__ == "__main__":
    main()
