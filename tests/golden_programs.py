"""Programs of the sizes that people run, beside the small ones: at these the compiler tiles, packs,
blocks and cuts sums. Compiled for named processors and never run: `scripts/goldens.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.config import Options
from pullback.ir.program import Program as Traced
from pullback.nn import functional as F
from pullback.tensor.face.tree import flatten
from small_programs import PROGRAMS

OPTIONS = Options(backend="reference", threads=2, cache=None)  # nothing is compiled or run
Array = np.ndarray[Any, Any]
# A function and the shapes of its floating arguments; integers stand behind them.
Program = tuple[Callable[..., Any], tuple[Array, ...]]


def floats(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
    """Arrays of which only type and shape are looked at."""
    return tuple(np.zeros(shape, np.float32) for shape in shapes)


def places(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


def slopes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The value, and the gradients by the floating arguments under a head, the last argument."""

    def both(*args: Any) -> Any:
        y = function(*args[:-1])
        wrt = [a for a in args[:-1] if a.dtype.is_float]
        return [y, *pb.grad(y, wrt, head=args[-1])]

    return both


def product(rows: int, terms: int, columns: int) -> Program:
    return slopes(lambda a, b: a @ b), floats((rows, terms), (terms, columns), (rows, columns))


def attention(length: int, causal: bool) -> Program:
    """One sequence of 4 heads of 64, with gradients."""
    shapes = [(1, 4, length, 64)] * 4
    return slopes(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    ), floats(*shapes)


def convolution(channels: int, side: int, stride: int, groups: int = 1) -> Program:
    """3x3, as many channels out as in, with gradients."""
    out = (side - 1) // stride + 1
    shapes = [(8, channels, side, side), (channels, channels // groups, 3, 3)]
    function = slopes(lambda x, w: F.conv2d(x, w, stride=stride, padding=1, groups=groups))
    return function, floats(*shapes, (8, channels, out, out))


def training(
    model: nn.Module,
    loss: Callable[..., Any],
    make: Callable[[list[Any]], optim.Optimizer],
    *batch: Array,
    steps: int = 10,
) -> Program:
    """Steps of an optimiser in one program."""
    opt = make(list(model.parameters()))

    def train(*given: Any) -> Any:
        def step() -> None:
            opt.zero_grad()
            loss(model, *given).backward()
            opt.step()

        pb.loop(range(steps), step)
        return [p * 1.0 for p in model.parameters()]

    return train, batch


def sgd(parameters: list[Any]) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.01)


def adamw(parameters: list[Any]) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=1e-3)


def seed_net() -> Program:
    """Two linear layers with a sigmoid between; the loss is the sum."""
    model = nn.Sequential(nn.Linear(255, 255), nn.Sigmoid(), nn.Linear(255, 255))
    return training(model, lambda m, x: m(x).sum(), sgd, *floats((2, 255)))


def seed_encoder() -> Program:
    """Two post-norm encoder layers over two tokens."""
    layers = [
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    return training(nn.Sequential(*layers), lambda m, x: m(x).sum(), sgd, *floats((1, 2, 64)))


class Block(nn.Module):
    """A pre-norm block of causal attention and a feed-forward net, with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        packed = pb.reshape(self.qkv(self.norm1(x)), (batch, length, 3, self.heads, -1))
        packed = pb.permute_dims(packed, (2, 0, 3, 1, 4))
        mixed = F.scaled_dot_product_attention(packed[0], packed[1], packed[2], is_causal=True)
        mixed = pb.reshape(pb.permute_dims(mixed, (0, 2, 1, 3)), (batch, length, width))
        x = x + self.drop(self.proj(mixed))
        return x + self.drop(self.linear2(F.gelu(self.linear1(self.norm2(x)))))


class Gpt(nn.Module):
    """One block between embeddings and a head: its layers become the same kernels each time."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.block, self.norm = Block(width, 4), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.block(self.tokens(tokens) + self.positions.weight)))


def gpt() -> Program:
    def loss(m: Any, tokens: Any, wanted: Any) -> Any:
        return F.cross_entropy(pb.reshape(m(tokens), (-1, 96)), pb.reshape(wanted, (-1,)))

    return training(Gpt(96, 128, 64), loss, adamw, places(16, 64), places(16, 64))


def convnet() -> Program:
    """Two 3x3 convolutions, a pooling and two dense layers, cross entropy of 10 classes."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 144, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    images, wanted = floats((64, 1, 28, 28))[0], places(64)
    return training(model, lambda m, x, t: F.cross_entropy(m(x), t), sgd, images, wanted)


def recurrent() -> Program:
    """A GRU of 64 steps; the loss is the mean square of its states."""
    return training(
        nn.GRU(64, 64), lambda m, x: pb.mean(m(x)[0] ** 2), sgd, *floats((64, 2, 64)), steps=1
    )


def clipped() -> Program:
    """Three weights whose gradients are clipped by their common norm, under AdamW."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)])
    opt = optim.AdamW(list(model.parameters()), lr=1e-3)

    def train(x: Any) -> Any:
        opt.zero_grad()
        pb.mean(model(x) ** 2).backward()
        optim.clip_grad_norm_(list(model.parameters()), 1.0)
        opt.step()
        return [p * 1.0 for p in model.parameters()]

    return train, floats((64, 256))


def trilinear() -> Program:
    """Eight corners of a grid that data choose, 16 channels, with the gradient of the grid."""

    def sample(grid: Any, at: Any) -> Any:
        side, channels = grid.shape[0], grid.shape[-1]
        low = pb.clip(pb.floor(at), 0, side - 2)
        whole, rest = pb.astype(low, "int64"), at - low
        corner = [pb.axis(2) for _ in range(3)]

        def one(p: Any, c: Any) -> Any:
            weights = [pb.where(k == 1, rest[p, n], 1 - rest[p, n]) for n, k in enumerate(corner)]
            spots = [whole[p, n] + k for n, k in enumerate(corner)]
            return pb.sum(grid[(*spots, c)] * math.prod(weights), over=tuple(corner))

        return pb.compute((at.shape[0], channels), one)

    def both(grid: Any, at: Any, head: Any) -> Any:
        y = sample(grid, at)
        return [y, pb.grad(y, grid, head=head)]

    return both, floats((32, 32, 32, 16), (4096, 3), (4096, 16))


REAL: dict[str, Callable[[], Program]] = {
    "product 1024": lambda: product(1024, 1024, 1024),
    "product 128": lambda: product(128, 128, 128),
    "product few rows": lambda: product(8, 2000, 2000),
    "product tall sums": lambda: product(256, 16384, 256),
    "linear gelu": lambda: (
        slopes(lambda x, w, b: F.gelu(F.linear(x, w, b))),
        floats((512, 256), (1024, 256), (1024,), (512, 1024)),
    ),
    "halves product": lambda: (
        lambda a, b: pb.astype(a, "bfloat16") @ pb.astype(b, "bfloat16"),
        floats((256, 256), (256, 256)),
    ),
    "distances": lambda: (
        slopes(lambda a, b: pb.sum(pb.abs(a[:, None] - b[None]), axis=2)),
        floats((256, 64), (256, 64), (256, 256)),
    ),
    "copy": lambda: (lambda a: a * 2, floats((4_000_000,))),
    "softmax rows": lambda: (slopes(F.softmax), floats((4096, 1024), (4096, 1024))),
    "layer norm rows": lambda: (
        slopes(lambda x, g, b: F.layer_norm(x, (1024,), g, b)),
        floats((4096, 1024), (1024,), (1024,), (4096, 1024)),
    ),
    "transpose": lambda: (lambda a: pb.permute_dims(a, (1, 0)) * 1.0, floats((2048, 2048))),
    "attention 512": lambda: attention(512, causal=False),
    "causal attention 512": lambda: attention(512, causal=True),
    "convolution 64x28": lambda: convolution(64, 28, 1),
    "convolution stride 2": lambda: convolution(64, 28, 2),
    "convolution depthwise": lambda: convolution(64, 28, 1, groups=64),
    "scatter rows": lambda: (
        slopes(lambda w, i: w[i]),
        (*floats((8192, 512)), places(512), *floats((512, 512))),
    ),
    "running sums": lambda: (
        slopes(lambda a: pb.cumulative_sum(a, axis=1)),
        floats((256, 4096), (256, 4096)),
    ),
    "sort rows": lambda: (lambda a: pb.sort(a, axis=1), floats((64, 1000))),
    "trilinear": trilinear,
    "clipped adamw": clipped,
    "seed net": seed_net,
    "seed encoder": seed_encoder,
    "gpt": gpt,
    "convnet": convnet,
    "gru": recurrent,
}


def traced(program: Program) -> Traced:
    """The definitions of a program; its arguments are looked at for types and shapes alone."""
    function, arguments = program
    jitted = pb.jit(function, options=OPTIONS)
    given = flatten((tuple(map(pb.tensor, arguments)), {}))
    return jitted.trace(given, jitted.declared(given)).executable.program


def programs() -> dict[str, Callable[[], Program]]:
    """All of them by name."""
    small = {name: (lambda make=make: make("float32")) for name, make in PROGRAMS.items()}
    return small | REAL
