"""Message passing over an edge list: messages by a product, max over the edges into each node (scatter-max)."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, e, c = (6, 14, 3) if small else (512, 4096, 32)
    r = rng()
    import numpy as np

    dst = np.concatenate([np.arange(n), r.integers(0, n, e - n)]).astype(np.int64)
    return [
        r.standard_normal((n, c)),
        r.standard_normal((c, c)) / c**0.5,
        r.integers(0, n, e).astype(np.int64),
        dst,
    ]


def pb_op(x, w, src, dst):
    import pullback as pb

    # there is no scatter_max: a maximum over all edges, guarded. O(nodes * edges)
    n = x.shape[0]
    m = pb.define(
        "m[e,o] = sum[c](w[o,c] * (x[src[e],c] - x[dst[e],c]))", x=x, w=w, src=src, dst=dst
    )
    return pb.define(
        "y[n,o] = max[e](where(dst[e] == n, m[e,o], -inf))", m=m, dst=dst, sizes={"n": n}
    )


def torch_op(x, w, src, dst):
    import torch

    m = (x[src] - x[dst]) @ w.T
    return torch.full_like(x, -float("inf")).scatter_reduce(0, dst[:, None].expand_as(m), m, "amax")


def jax_op(x, w, src, dst):
    import jax

    m = (x[src] - x[dst]) @ w.T
    return jax.ops.segment_max(m, dst, x.shape[0])
