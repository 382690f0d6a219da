"""Graph attention (Velickovic 2018): softmax over the edges into each node."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    import numpy as np

    n, e, c = (6, 14, 3) if small else (1024, 8192, 32)
    r = rng()
    return [
        r.standard_normal((n, c)),
        r.standard_normal(c),
        r.standard_normal(c),
        r.integers(0, n, e),
        np.concatenate([np.arange(n), r.integers(0, n, e - n)]),
    ]


def pb_op(x, a, b, src, dst):
    import pullback as pb

    n = x.shape[0]
    u, v = x @ a, x @ b
    s = pb.define(
        "s[e] = max(u[src[e]] + v[dst[e]], 0.2 * (u[src[e]] + v[dst[e]]))",
        u=u,
        v=v,
        src=src,
        dst=dst,
    )
    top = pb.define(
        "t[n] = max[e](where(dst[e] == n, s[e], -inf))",
        s=pb.stop_gradient(s),
        dst=dst,
        sizes={"n": n},
    )
    p = pb.define("p[e] = exp(s[e] - t[dst[e]])", s=s, t=top, dst=dst)
    z = pb.define("z[n] = sum[e](where(dst[e] == n, p[e], 0))", p=p, dst=dst, sizes={"n": n})
    return pb.define(
        "y[n,c] = sum[e](where(dst[e] == n, p[e] / z[dst[e]] * x[src[e],c], 0))",
        p=p,
        z=z,
        x=x,
        src=src,
        dst=dst,
        sizes={"n": n},
    )


def torch_op(x, a, b, src, dst):
    import torch

    s = torch.nn.functional.leaky_relu((x @ a)[src] + (x @ b)[dst], 0.2)
    t = torch.full_like(x[:, 0], -float("inf")).scatter_reduce(0, dst, s.detach(), "amax")
    p = torch.exp(s - t[dst])
    z = torch.zeros_like(t).index_add(0, dst, p)
    return torch.zeros_like(x).index_add(0, dst, (p / z[dst])[:, None] * x[src])


def jax_op(x, a, b, src, dst):
    import jax
    import jax.numpy as jnp

    n = x.shape[0]
    s = jax.nn.leaky_relu((x @ a)[src] + (x @ b)[dst], 0.2)
    t = jax.ops.segment_max(jax.lax.stop_gradient(s), dst, n)
    p = jnp.exp(s - t[dst])
    z = jax.ops.segment_sum(p, dst, n)
    return jax.ops.segment_sum((p / z[dst])[:, None] * x[src], dst, n)
