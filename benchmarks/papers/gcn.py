"""Graph convolution (Kipf 2017): neighbours summed, weighted by the degrees of both ends."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, e, c = (6, 14, 3) if small else (2048, 16384, 32)
    r = rng()
    return [
        r.standard_normal((n, c)),
        r.standard_normal((c, c)) / c**0.5,
        r.integers(0, n, e),
        r.integers(0, n, e),
    ]


def pb_op(x, w, src, dst):
    import pullback as pb

    n = {"n": x.shape[0]}
    count = pb.define("d[n] = sum[e](where(dst[e] == n, 1.0, 0.0))", dst=dst, sizes=n)
    root = pb.rsqrt(count.astype(x.dtype) + 1)
    h = x @ w
    return pb.define(
        "y[n,o] = sum[e](where(dst[e] == n, r[src[e]] * r[dst[e]] * h[src[e],o], 0))",
        r=root,
        h=h,
        src=src,
        dst=dst,
        sizes=n,
    )


def torch_op(x, w, src, dst):
    import torch

    root = torch.rsqrt(torch.bincount(dst, minlength=len(x)).to(x.dtype) + 1)
    h = x @ w
    return torch.zeros_like(h).index_add(0, dst, (root[src] * root[dst])[:, None] * h[src])


def jax_op(x, w, src, dst):
    import jax
    import jax.numpy as jnp

    n = x.shape[0]
    root = jax.lax.rsqrt(jax.ops.segment_sum(jnp.ones(len(dst), x.dtype), dst, n) + 1)
    h = x @ w
    return jax.ops.segment_sum((root[src] * root[dst])[:, None] * h[src], dst, n)
