"""Message passing (Gilmer 2017): a product at each edge, summed into its node."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, e, c = (6, 14, 3) if small else (1024, 8192, 32)
    r = rng()
    return [
        r.standard_normal((n, c)),
        r.standard_normal((c, c)) / c**0.5,
        r.integers(0, n, e),
        r.integers(0, n, e),
    ]


def pb_op(x, w, src, dst):
    import pullback as pb

    m = pb.define(
        "m[e,o] = max(sum[c](w[o,c] * (x[src[e],c] - x[dst[e],c])), 0)", x=x, w=w, src=src, dst=dst
    )
    return pb.define(
        "y[n,o] = sum[e](where(dst[e] == n, m[e,o], 0))", m=m, dst=dst, sizes={"n": x.shape[0]}
    )


def torch_op(x, w, src, dst):
    import torch

    return torch.zeros_like(x).index_add(0, dst, torch.relu((x[src] - x[dst]) @ w.T))


def jax_op(x, w, src, dst):
    import jax

    return jax.ops.segment_sum(jax.nn.relu((x[src] - x[dst]) @ w.T), dst, x.shape[0])
