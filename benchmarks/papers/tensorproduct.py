"""Tensor field networks (Thomas 2018): features and spherical harmonics of edges by Clebsch-Gordan's table, weighted for each edge."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    n, e, c = (5, 9, 2) if small else (256, 2048, 16)
    r = rng()
    return [
        r.standard_normal((n, c, 3)),
        r.standard_normal((e, 5)),
        r.standard_normal((e, c)),
        r.standard_normal((3, 5, 3)),
        r.integers(0, n, e),
        r.integers(0, n, e),
    ]


def pb_op(x, y, w, cg, src, dst):
    import pullback as pb

    m = pb.define(
        "m[e,u,k] = sum[i,j](w[e,u] * x[src[e],u,i] * y[e,j] * cg[i,j,k])",
        x=x,
        y=y,
        w=w,
        cg=cg,
        src=src,
    )
    return pb.define(
        "o[n,u,k] = sum[e](where(dst[e] == n, m[e,u,k], 0))", m=m, dst=dst, sizes={"n": x.shape[0]}
    )


def torch_op(x, y, w, cg, src, dst):
    import torch

    m = torch.einsum("eu,eui,ej,ijk->euk", w, x[src], y, cg)
    return torch.zeros_like(x).index_add(0, dst, m)


def jax_op(x, y, w, cg, src, dst):
    import jax
    import jax.numpy as jnp

    m = jnp.einsum("eu,eui,ej,ijk->euk", w, x[src], y, cg)
    return jax.ops.segment_sum(m, dst, x.shape[0])
