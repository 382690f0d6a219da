"""Pairwise forces (Greydanus 2019): each body is pulled by all others, softened."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n = 6 if small else 512
    r = rng()
    return [r.standard_normal((n, 3)), r.random(n) + 0.5]


def pb_op(x, m):
    import pullback as pb

    square = pb.define("r[i,j] = sum[k]((x[j,k] - x[i,k])**2) + 0.01", x=x)
    near = square**-1.5
    return pb.define("f[i,k] = sum[j](m[j] * near[i,j] * (x[j,k] - x[i,k]))", m=m, near=near, x=x)


def _g(xp, x, m):
    d = x[None] - x[:, None]
    near = ((d * d).sum(-1) + 0.01) ** -1.5
    return xp.einsum("j,ij,ijk->ik", m, near, d)


def torch_op(x, m):
    import torch

    return _g(torch, x, m)


def jax_op(x, m):
    import jax.numpy as jnp

    return _g(jnp, x, m)
