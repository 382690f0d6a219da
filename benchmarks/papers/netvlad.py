"""NetVLAD (Arandjelovic 2016): residuals to soft centres, summed over all places."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    b, n, c, k = (2, 5, 3, 4) if small else (4, 256, 64, 32)
    r = rng()
    return [
        r.standard_normal((b, n, c)),
        r.standard_normal((c, k)) / c**0.5,
        r.standard_normal((k, c)),
    ]


def pb_op(x, w, centres):
    import pullback as pb

    a = pb.nn.functional.softmax(x @ w, dim=2)
    v = pb.define("v[b,k,c] = sum[n](a[b,n,k] * (x[b,n,c] - m[k,c]))", a=a, x=x, m=centres)
    return v / pb.sqrt(pb.sum(v * v, axis=2, keepdims=True))


def torch_op(x, w, centres):
    import torch

    a = torch.softmax(x @ w, 2)
    v = torch.einsum("bnk,bnc->bkc", a, x) - a.sum(1)[..., None] * centres
    return torch.nn.functional.normalize(v, dim=2)


def jax_op(x, w, centres):
    import jax
    import jax.numpy as jnp

    a = jax.nn.softmax(x @ w, 2)
    v = jnp.einsum("bnk,bnc->bkc", a, x) - a.sum(1)[..., None] * centres
    return v / jnp.linalg.norm(v, axis=2, keepdims=True)
