"""Sinkhorn distances (Cuturi 2013): twenty rounds of scaling rows and columns, in logarithms."""

from benchmarks.papers.draw import rng

DIFF = 2
ROUNDS, EPSILON = 20, 0.1


def args(small):
    n = 5 if small else 128
    r = rng()
    return [r.random((n, 2)), r.random((n, 2))]


def pb_op(x, y):
    import pullback as pb

    c = pb.define("c[i,j] = sum[k]((x[i,k] - y[j,k])**2)", x=x, y=y)
    n = x.shape[0]

    def body(_, state):
        f, g = state
        f = -EPSILON * pb.logsumexp((g[None, :] - c) / EPSILON, axis=1)
        g = -EPSILON * pb.logsumexp((f[:, None] - c) / EPSILON, axis=0)
        return f, g

    start = pb.zeros((n,), dtype=x.dtype)
    f, g = pb.loop(ROUNDS, body, (start, start))
    return pb.sum(pb.exp((f[:, None] + g[None, :] - c) / EPSILON) * c) / n


def torch_op(x, y):
    import torch

    c = ((x[:, None] - y[None]) ** 2).sum(-1)
    f = g = x.new_zeros(len(x))
    for _ in range(ROUNDS):
        f = -EPSILON * torch.logsumexp((g[None] - c) / EPSILON, 1)
        g = -EPSILON * torch.logsumexp((f[:, None] - c) / EPSILON, 0)
    return (torch.exp((f[:, None] + g - c) / EPSILON) * c).sum() / len(x)


def jax_op(x, y):
    import jax
    import jax.numpy as jnp

    c = ((x[:, None] - y[None]) ** 2).sum(-1)

    def body(state, _):
        f, g = state
        f = -EPSILON * jax.nn.logsumexp((g[None] - c) / EPSILON, 1)
        return (f, -EPSILON * jax.nn.logsumexp((f[:, None] - c) / EPSILON, 0)), None

    start = jnp.zeros(len(x), x.dtype)
    (f, g), _ = jax.lax.scan(body, (start, start), None, ROUNDS)
    return (jnp.exp((f[:, None] + g - c) / EPSILON) * c).sum() / len(x)
