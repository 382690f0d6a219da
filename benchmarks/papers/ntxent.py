"""NT-Xent (Chen 2020): two views of each sample are near, all others of the batch far."""

from benchmarks.papers.draw import rng

DIFF = 1


def args(small):
    n, c = (4, 5) if small else (256, 128)
    return [rng().standard_normal((2 * n, c))]


def pb_op(z):
    import pullback as pb

    n = z.shape[0]
    unit = z / pb.sqrt(pb.sum(z * z, axis=1, keepdims=True))
    s = unit @ unit.T / 0.5
    others = pb.compute((n, n), lambda i, j: pb.where(i == j, -float("inf"), s[i, j]))
    pairs = pb.compute((n,), lambda i: s[i, (i + n // 2) % n])
    return pb.logsumexp(others, axis=1) - pairs


def torch_op(z):
    import torch

    n = len(z)
    unit = torch.nn.functional.normalize(z, dim=1)
    s = unit @ unit.T / 0.5
    others = s.masked_fill(torch.eye(n, dtype=torch.bool), -float("inf"))
    at = torch.arange(n)
    return torch.logsumexp(others, 1) - s[at, (at + n // 2) % n]


def jax_op(z):
    import jax
    import jax.numpy as jnp

    n = len(z)
    unit = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    s = unit @ unit.T / 0.5
    others = jnp.where(jnp.eye(n, dtype=bool), -jnp.inf, s)
    at = jnp.arange(n)
    return jax.nn.logsumexp(others, 1) - s[at, (at + n // 2) % n]
