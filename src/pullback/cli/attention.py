"""The operation of `pullback demo`, and the same by hand in NumPy and PyTorch.

    s[t, d] = q[t] . k[t - d] / 8 + b[d];  p = softmax(s);  y[t] = sum[d] p[t, d] v[t - d]

Of the ways to write it in NumPy and PyTorch these are the fastest that we found: a loop over
distances (whole T x T matrices take four times as long, windows 1.4 times), and blocks of keys.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pullback as pb
from pullback.tensor.face.tensor import Tensor

PLACES, WIDTH, DISTANCES = 1024, 64, 32

Array = np.ndarray[Any, Any]
Step = Callable[[], Sequence[Array]]  # the result, and the gradients by all four inputs


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Any:
    s = pb.define(
        "s[t,d] = where(d <= t, sum[c](q[t,c] * k[t-d,c]) / 8 + b[d], -inf)", q=query, k=key, b=bias
    )
    p = pb.softmax(s, axis=-1)
    return pb.define("y[t,c] = sum[d](where(d <= t, p[t,d] * v[t-d,c], 0))", p=p, v=value)


def step(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, head: Tensor) -> Any:
    """The result and its gradients."""
    result = attention(query, key, value, bias)
    return (result, *pb.grad(result, [query, key, value, bias], head=head))


def drawn(places: int, width: int, distances: int, kind: Any = np.float32) -> list[Array]:
    """Query, key, value, bias and a head, at random."""
    rng = np.random.default_rng(0)
    rows = (places, width)
    return [rng.normal(size=s).astype(kind) for s in (rows, rows, rows, (distances,), rows)]


def in_numpy(query: Array, key: Array, value: Array, bias: Array, head: Array) -> list[Array]:
    """The result and its gradients, a distance at a time."""
    places, distances = len(query), len(bias)
    s = np.full((places, distances), -np.inf, query.dtype)
    for d in range(distances):
        s[d:, d] = np.einsum("tc,tc->t", query[d:], key[: places - d]) / 8 + bias[d]
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    result, dvalue, dp = np.zeros_like(value), np.zeros_like(value), np.zeros_like(p)
    for d in range(distances):
        weight = p[d:, d, None]
        result[d:] += weight * value[: places - d]
        dvalue[: places - d] += weight * head[d:]
        dp[d:, d] = np.einsum("tc,tc->t", head[d:], value[: places - d])
    ds = p * (dp - (p * dp).sum(1, keepdims=True))
    dquery, dkey = np.zeros_like(query), np.zeros_like(key)
    for d in range(distances):
        weight = ds[d:, d, None] / 8
        dquery[d:] += weight * key[: places - d]
        dkey[: places - d] += weight * query[d:]
    return [result, dquery, dkey, dvalue, ds.sum(0)]


def in_torch(arrays: Sequence[Array]) -> Step | None:
    """The same on one thread in PyTorch's eager mode, imported lazily: it is optional.

    None without it. As many queries as there are distances are a block, which meets the keys of
    its own places and of the block before.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(1)
    *inputs, head = (torch.from_numpy(a.copy()) for a in arrays)
    for tensor in inputs:
        tensor.requires_grad_()
    query, key, value, bias = inputs
    places, size = len(query), len(bias)
    row, column = torch.arange(size)[:, None], torch.arange(2 * size)
    distance = row + size - column
    inside = (distance >= 0) & (distance < size)
    first = torch.arange(places // size)[:, None, None] == 0
    outside = ~inside | (first & (column < size))

    def blocks(rows: Any) -> Any:
        padded = torch.nn.functional.pad(rows, (0, 0, size, 0))
        parts = padded[:-size], padded[size:]
        return torch.cat([x.view(-1, size, rows.shape[1]) for x in parts], 1)

    def call() -> Sequence[Array]:
        s = query.view(-1, size, query.shape[1]) @ blocks(key).transpose(1, 2) / 8
        s = s + bias[distance.clamp(0, size - 1)]
        p = s.masked_fill(outside, -torch.inf).softmax(-1)
        result = (p @ blocks(value)).reshape(query.shape)
        gradients = torch.autograd.grad(result, inputs, head)
        return [result.detach().numpy(), *(g.numpy() for g in gradients)]

    return call
