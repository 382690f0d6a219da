"""Causal attention with ALiBi slopes (learned), a sliding window and attention sinks."""

from benchmarks.papers.draw import rng

DIFF = 4


def args(small):
    h, t, c = (2, 9, 3) if small else (4, 512, 32)
    r = rng()
    return [r.standard_normal((h, t, c)) for _ in range(3)] + [0.5 ** (1.0 + r.random(h) * 7)]


def sizes(t):
    return (3, 2) if t < 64 else (64, 4)


def pb_op(q, k, v, slope):
    import pullback as pb

    h, t, c = q.shape
    window, sinks = sizes(t)
    d = pb.axis(c)

    def score(h, i, j):
        seen = (j <= i) & ((i - j < window) | (j < sinks))
        return pb.where(
            seen, pb.sum(q[h, i, d] * k[h, j, d], over=d) / c**0.5 - slope[h] * (i - j), -pb.inf
        )

    return pb.softmax(pb.compute((h, t, t), score), axis=-1) @ v


def torch_op(q, k, v, slope):
    import torch

    h, t, c = q.shape
    window, sinks = sizes(t)
    i, j = torch.arange(t)[:, None], torch.arange(t)[None]
    seen = (j <= i) & ((i - j < window) | (j < sinks))
    s = q @ k.mT / c**0.5 - slope[:, None, None] * (i - j)
    return torch.softmax(s.masked_fill(~seen, -float("inf")), -1) @ v


def jax_op(q, k, v, slope):
    import jax
    import jax.numpy as jnp

    h, t, c = q.shape
    window, sinks = sizes(t)
    i, j = jnp.arange(t)[:, None], jnp.arange(t)[None]
    seen = (j <= i) & ((i - j < window) | (j < sinks))
    s = q @ k.mT / c**0.5 - slope[:, None, None] * (i - j)
    return jax.nn.softmax(jnp.where(seen, s, -jnp.inf), -1) @ v
