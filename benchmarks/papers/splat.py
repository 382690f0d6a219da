"""Gaussian splatting in the plane: 200 anisotropic Gaussians, front to back over 64 x 64 pixels."""

from benchmarks.papers.draw import rng

DIFF = 5


def args(small):
    g, n = (5, 6) if small else (200, 64)
    r = rng()
    return [
        r.random((g, 2)) * n,
        r.random((g, 2)) * n / 20 + n / 40,
        r.random(g) * 3,
        r.standard_normal(g),
        r.random((g, 3)),
    ]


def side(g):
    return 6 if g < 200 else 64


def pb_op(mu, scale, turn, logit, color):
    import pullback as pb

    g = mu.shape[0]
    n = side(g)
    co, si, op = pb.cos(turn), pb.sin(turn), pb.sigmoid(logit)

    def alpha(i, j, g):
        dx, dy = j + 0.5 - mu[g, 0], i + 0.5 - mu[g, 1]
        a, b = (co[g] * dx + si[g] * dy) / scale[g, 0], (co[g] * dy - si[g] * dx) / scale[g, 1]
        return pb.minimum(op[g] * pb.exp(-0.5 * (a * a + b * b)), 0.99)

    al = pb.compute((n, n, g), alpha)
    through = pb.cumulative_prod(1 - al, axis=2)
    k = pb.axis(g)
    return pb.compute(
        (n, n, 3),
        lambda i, j, c: pb.sum(
            al[i, j, k] * pb.where(k > 0, through[i, j, k - 1], 1.0) * color[k, c], over=k
        ),
    )


def _g(xp, mu, scale, turn, logit, color, arange, sigmoid, minimum, cumprod, concat):
    n = side(mu.shape[0])
    co, si, op = xp.cos(turn), xp.sin(turn), sigmoid(logit)
    p = arange(n)
    dx, dy = p[None, :, None] + 0.5 - mu[:, 0], p[:, None, None] + 0.5 - mu[:, 1]
    a, b = (co * dx + si * dy) / scale[:, 0], (co * dy - si * dx) / scale[:, 1]
    al = minimum(op * xp.exp(-0.5 * (a * a + b * b)))
    T = cumprod(concat([xp.ones_like(al[..., :1]), 1 - al]))[..., :-1]
    return (al * T) @ color


def torch_op(*a):
    import torch

    return _g(
        torch,
        *a,
        torch.arange,
        torch.sigmoid,
        lambda t: t.clamp(max=0.99),
        lambda t: torch.cumprod(t, -1),
        lambda l: torch.cat(l, -1),
    )


def jax_op(*a):
    import jax
    import jax.numpy as jnp

    return _g(
        jnp,
        *a,
        jnp.arange,
        jax.nn.sigmoid,
        lambda t: jnp.minimum(t, 0.99),
        lambda t: jnp.cumprod(t, -1),
        lambda l: jnp.concatenate(l, -1),
    )
