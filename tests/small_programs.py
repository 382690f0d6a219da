"""Some forty small programs, each a function of arrays: rendered by `scripts/goldens.py`, run on
every backend by the acceptance tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.nn import functional as F

Array = np.ndarray[Any, Any]
# `make(kind)` gives a function and its arguments, floats of type `kind`.
Make = Callable[[str], tuple[Callable[..., Any], tuple[Array, ...]]]


def _data(kind: str, *shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(kind)


def _places(extent: int, *shape: int, seed: int = 9) -> Array:
    return np.random.default_rng(seed).integers(0, extent, shape)


def _maps(function: Callable[..., Any], *shapes: tuple[int, ...], low: float = -2.0) -> Make:
    """A program over arrays of these shapes."""

    def make(kind: str) -> tuple[Callable[..., Any], tuple[Array, ...]]:
        return function, tuple(_data(kind, *s, seed=n, low=low) for n, s in enumerate(shapes))

    return make


def _indexed(
    function: Callable[..., Any], shape: tuple[int, ...], extent: int, *places: int
) -> Make:
    """A program over an array and integers below `extent`."""

    def make(kind: str) -> tuple[Callable[..., Any], tuple[Array, ...]]:
        return function, (_data(kind, *shape), _places(extent, *places))

    return make


def _slopes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The value and the gradients by all (floating) arguments of a sum weighted unevenly."""

    def both(*args: Any) -> Any:
        y = function(*args)
        weights = pb.cos(pb.astype(pb.arange(math.prod(y.shape)), y.dtype))
        floats = [a for a in args if a.dtype.is_float]
        return [y, *pb.grad((y * pb.reshape(weights, y.shape)).sum(), floats)]

    return both


def _stencil(x: Any) -> Any:
    n = x.shape[0]
    return pb.compute(
        (n,), lambda i: pb.where((i > 0) & (i < n - 1), x[i - 1] + x[i + 1] - 2 * x[i], 0.0)
    )


def _convolution(x: Any, w: Any) -> Any:
    """Images (n, c, h, w) with filters (o, c, 3, 3), stride 2, no padding."""
    n, c, h, v = x.shape
    o = w.shape[0]
    k, a, b = pb.axis(c), pb.axis(3), pb.axis(3)
    rows, columns = (h - 3) // 2 + 1, (v - 3) // 2 + 1
    return pb.compute(
        (n, o, rows, columns),
        lambda m, f, i, j: pb.sum(x[m, k, 2 * i + a, 2 * j + b] * w[f, k, a, b], over=(k, a, b)),
    )


def _pooling(x: Any) -> Any:
    a, b = pb.axis(2), pb.axis(2)
    h, v = x.shape
    return pb.compute((h // 2, v // 2), lambda i, j: pb.max(x[2 * i + a, 2 * j + b], over=(a, b)))


def _gather(table: Any, tokens: Any) -> Any:
    return pb.compute((tokens.shape[0], table.shape[1]), lambda i, j: table[tokens[i], j])


def _attention(causal: bool) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _norm_maps(x: Any, g: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), g, b)


def _steps(make: Callable[[list[Any]], optim.Optimizer]) -> Make:
    """Three steps of an optimiser on two parameters."""

    def build(kind: str) -> tuple[Callable[..., Any], tuple[Array, ...]]:
        w, b = (nn.Parameter(_data(kind, *s, seed=5)) for s in ((5, 7), (5,)))
        opt = make([w, b])

        def train(x: Any) -> Any:
            def step() -> None:
                opt.zero_grad()
                y = F.tanh(F.linear(x, w, b))
                (y * y).sum().backward()
                opt.step()

            pb.loop(range(3), step)
            return [w + 0.0, b + 0.0]

        return train, (_data(kind, 6, 7),)

    return build


def _module(model: Callable[[], nn.Module], *shape: int) -> Make:
    """A module's output and gradients."""

    def build(kind: str) -> tuple[Callable[..., Any], tuple[Array, ...]]:
        net = model()
        given = [nn.Parameter(_data(kind, *p.shape, seed=n)) for n, p in enumerate(_cells(net))]
        names = [name for name, _ in net.named_parameters()]

        def both(x: Any) -> Any:
            y = nn.functional_call(net, dict(zip(names, given, strict=True)), (x,))
            return [y, *pb.grad((y * y * y).sum(), given)]

        return both, (_data(kind, *shape),)

    return build


def _cells(net: nn.Module) -> list[Any]:
    return [p for _, p in net.named_parameters()]


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0)


def _random(draw: Callable[[Any, str], Any]) -> Make:
    """A program that adds random numbers of a fixed key."""

    def build(kind: str) -> tuple[Callable[..., Any], tuple[Array, ...]]:
        key = pb.random.key(42)
        return lambda x: x + draw(key, kind), (_data(kind, 6, 11),)

    return build


def _recurrence(x: Any, w: Any) -> Any:
    """``h = tanh(x[t] + w h)``"""

    def body(h: Any, row: Any) -> Any:
        h = pb.tanh(row + w @ h)
        return h, h

    return list(pb.scan(body, x[0], x))


def _halving(x: Any) -> Any:
    return pb.while_loop(lambda v: pb.sum(pb.abs(v)) > 1.0, lambda v: v * 0.5, x)


PROGRAMS: dict[str, Make] = {
    "add broadcast": _maps(lambda a, b: a * 2 + b, (5, 7), (7,)),
    "unary chain": _maps(lambda a: pb.exp(-(a * a)) + pb.sin(a) * pb.tanh(a), (40,)),
    "logarithms": _maps(lambda a: pb.log(a) * pb.sqrt(a) + pb.rsqrt(a), (33,), low=0.1),
    "erf and gelu": _maps(_slopes(lambda a: F.gelu(a) + pb.erf(a)), (70,)),
    "select": _maps(lambda a, b: pb.where(a < b, a - b, pb.maximum(a, 0.5)), (9,), (9,)),
    "integers": _indexed(lambda a, i: (a + i // 3 - i % 5) * (i ^ 3), (17,), 100, 17),
    "sum": _maps(lambda a: [pb.sum(a), pb.sum(a, axis=0), pb.sum(a, axis=1)], (9, 33)),
    "max and argmax": _maps(lambda a: [pb.max(a, axis=1), pb.argmax(a, axis=1)], (5, 33)),
    "prod": _maps(_slopes(lambda a: pb.prod(a, axis=1)), (4, 6), low=0.5),
    "mean and variance": _maps(lambda a: [pb.mean(a), pb.var(a, axis=0)], (9, 8)),
    "logsumexp": _maps(_slopes(lambda a: pb.logsumexp(a * 9, axis=1)), (4, 33)),
    "softmax": _maps(_slopes(lambda a: F.softmax(a * 5, dim=-1)), (6, 33)),
    "log softmax": _maps(_slopes(lambda a: F.log_softmax(a, dim=-1)), (6, 33)),
    "layer norm": _maps(_slopes(_norm_maps), (6, 32), (32,), (32,)),
    "rms norm": _maps(_slopes(lambda x, g: F.rms_norm(x, (16,), g)), (6, 16), (16,)),
    "matmul": _maps(_slopes(lambda a, b: a @ b), (19, 34), (34, 35)),
    "batched matmul": _maps(_slopes(lambda a, b: a @ b), (2, 3, 9), (2, 9, 17)),
    "vector products": _maps(_slopes(lambda a, b: b @ (a @ b)), (37, 37), (37,)),
    "linear silu": _maps(
        _slopes(lambda x, w, b: F.silu(F.linear(x, w, b))), (18, 20), (33, 20), (33,)
    ),
    "cross entropy": _indexed(
        lambda x, t: [F.cross_entropy(x, t), pb.grad(F.cross_entropy(x, t), x)], (12, 10), 10, 12
    ),
    "nll": _indexed(lambda x, t: F.nll_loss(F.log_softmax(x), t), (12, 10), 10, 12),
    "views": _maps(lambda a: pb.flip(pb.permute_dims(a, (2, 0, 1))[1:, ::2], axis=2), (4, 5, 6)),
    "concat and pad": _maps(
        _slopes(lambda a, b: pb.pad(pb.concat([a, b], axis=1), ((1, 0), (0, 2)))), (3, 4), (3, 5)
    ),
    "reshape": _maps(_slopes(lambda a: pb.reshape(a * a, (10, 6))), (3, 4, 5)),
    "roll and tile": _maps(lambda a: pb.tile(pb.roll(a, 2, axis=0), (2, 1)), (5, 3)),
    "triangle": _maps(_slopes(lambda a: pb.tril(a) - pb.triu(a, k=1)), (9, 9)),
    "stencil": _maps(_slopes(_stencil), (70,)),
    "convolution": _maps(_slopes(_convolution), (2, 3, 9, 11), (4, 3, 3, 3)),
    "pooling": _maps(_slopes(_pooling), (8, 10)),
    "gather": _indexed(_slopes(_gather), (11, 6), 11, 40),
    "take along axis": _indexed(lambda x, i: pb.take_along_axis(x, i, axis=1), (4, 7), 7, 4, 3),
    "one hot": _indexed(lambda x, i: pb.one_hot(i, 8) * x[0], (3,), 8, 9),
    "cumulative sum": _maps(_slopes(lambda a: pb.cumulative_sum(a, axis=1)), (4, 50)),
    "sort": _maps(lambda a: pb.sort(a, axis=1), (4, 19)),
    "attention": _maps(_slopes(_attention(False)), (2, 9, 8), (2, 9, 8), (2, 9, 8)),
    "causal attention": _maps(_slopes(_attention(True)), *[(2, 33, 8)] * 3),
    "uniform": _random(lambda k, d: pb.random.uniform((6, 11), key=k, dtype=d)),
    "normal": _random(lambda k, d: pb.random.normal((6, 11), key=k, dtype=d)),
    "bernoulli": _random(lambda k, d: pb.random.bernoulli(0.3, (6, 11), key=k)),
    "dropout": _random(lambda k, d: pb.where(pb.random.bernoulli(0.5, (6, 11), key=k), 2.0, 0.0)),
    "scan": _maps(_recurrence, (7, 5), (5, 5)),
    "while": _maps(_halving, (9,)),
    "sgd": _steps(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "adamw": _steps(lambda p: optim.AdamW(p, lr=0.01)),
    "encoder layer": _module(_encoder, 5, 16),
    "embedding": _indexed(lambda w, i: pb.grad((F.embedding(i, w) ** 2).sum(), w), (7, 5), 7, 30),
}
