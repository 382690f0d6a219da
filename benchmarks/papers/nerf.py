"""NeRF volume rendering: alpha compositing along rays, exclusive cumulative product."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    n, s = (4, 6) if small else (4096, 64)
    r = rng()
    return [r.standard_normal((n, s)) * 3, r.random((n, s, 3)), r.random((n, s)) * 0.2 + 0.01]


def pb_op(sigma, rgb, delta):
    import pullback as pb

    n, s = sigma.shape
    alpha = 1 - pb.exp(-pb.relu(sigma) * delta)
    through = pb.cumulative_prod(1 - alpha + 1e-10, axis=1)
    return pb.define(
        "y[r,c] = sum[s](alpha[r,s] * where(s > 0, T[r,s-1], 1.0) * rgb[r,s,c])",
        alpha=alpha,
        T=through,
        rgb=rgb,
    )


def torch_op(sigma, rgb, delta):
    import torch

    alpha = 1 - torch.exp(-torch.relu(sigma) * delta)
    T = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * T)[..., None] * rgb).sum(1)


def jax_op(sigma, rgb, delta):
    import jax
    import jax.numpy as jnp

    alpha = 1 - jnp.exp(-jax.nn.relu(sigma) * delta)
    T = jnp.cumprod(jnp.concatenate([jnp.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * T)[..., None] * rgb).sum(1)
