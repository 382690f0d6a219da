"""Continuous filters (Schuett 2017): neighbours weighted by a net of their distance, summed."""

from benchmarks.papers.draw import rng

DIFF = 4


def args(small):
    n, e, c, g = (6, 14, 3, 4) if small else (512, 8192, 64, 16)
    r = rng()
    return [
        r.standard_normal((n, c)),
        r.random(e) * 5,
        r.standard_normal((g, c)) / g**0.5,
        r.standard_normal((c, c)) / c**0.5,
        r.integers(0, n, e),
        r.integers(0, n, e),
    ]


def pb_op(x, d, w1, w2, src, dst):
    import pullback as pb

    g = w1.shape[0]
    rbf = pb.compute((d.shape[0], g), lambda e, k: pb.exp(-10.0 * (d[e] - k * 5.0 / g) ** 2))
    filters = pb.nn.functional.softplus(rbf @ w1) @ w2
    return pb.define(
        "y[n,c] = sum[e](where(dst[e] == n, f[e,c] * x[src[e],c], 0))",
        f=filters, x=x, src=src, dst=dst, sizes={"n": x.shape[0]},
    )  # fmt: skip


def torch_op(x, d, w1, w2, src, dst):
    import torch

    g = w1.shape[0]
    rbf = torch.exp(-10.0 * (d[:, None] - torch.arange(g) * 5.0 / g) ** 2)
    filters = torch.nn.functional.softplus(rbf @ w1) @ w2
    return torch.zeros_like(x).index_add(0, dst, filters * x[src])


def jax_op(x, d, w1, w2, src, dst):
    import jax
    import jax.numpy as jnp

    g = w1.shape[0]
    rbf = jnp.exp(-10.0 * (d[:, None] - jnp.arange(g) * 5.0 / g) ** 2)
    filters = jax.nn.softplus(rbf @ w1) @ w2
    return jax.ops.segment_sum(filters * x[src], dst, x.shape[0])
