"""Adaptive separable convolution (Niklaus 2017): each pixel has a column and a row of taps."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    c, n, k = (2, 4, 3) if small else (3, 64, 11)
    r = rng()
    taps = lambda: r.standard_normal((k, n, n)) / k**0.5
    return [r.standard_normal((c, n + k - 1, n + k - 1)), taps(), taps()]


def pb_op(x, v, h):
    import pullback as pb

    return pb.define("y[c,i,j] = sum[u,w](v[u,i,j] * h[w,i,j] * x[c,i+u,j+w])", x=x, v=v, h=h)


def torch_op(x, v, h):
    import torch

    k = v.shape[0]
    patches = x.unfold(1, k, 1).unfold(2, k, 1)
    return torch.einsum("cijuw,uij,wij->cij", patches, v, h)


def jax_op(x, v, h):
    import jax.numpy as jnp

    k, n = v.shape[0], v.shape[1]
    rows = jnp.stack([x[:, u : u + n] for u in range(k)])
    patches = jnp.stack([rows[..., w : w + n] for w in range(k)])
    return jnp.einsum("wucij,uij,wij->cij", patches, v, h)
