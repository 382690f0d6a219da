"""Linear attention (Katharopoulos 2020): causal, by a sum of outer products along time."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    h, t, c = (2, 5, 3) if small else (4, 256, 32)
    r = rng()
    return [r.standard_normal((h, t, c)) for _ in range(3)]


def pb_op(q, k, v):
    import pullback as pb

    q, k = (pb.nn.functional.elu(x) + 1 for x in (q, k))
    scores = pb.define("s[h,i,j] = where(j <= i, sum[c](q[h,i,c] * k[h,j,c]), 0)", q=q, k=k)
    return (scores @ v) / pb.sum(scores, axis=2, keepdims=True)


def _g(xp, q, k, v, elu, tril):
    q, k = elu(q) + 1, elu(k) + 1
    scores = tril(xp.einsum("hic,hjc->hij", q, k))
    return (scores @ v) / scores.sum(2)[..., None]


def torch_op(q, k, v):
    import torch

    return _g(torch, q, k, v, torch.nn.functional.elu, torch.tril)


def jax_op(q, k, v):
    import jax
    import jax.numpy as jnp

    return _g(jnp, q, k, v, jax.nn.elu, jnp.tril)
