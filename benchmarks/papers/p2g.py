"""Particles to grid (Hu 2018, MLS-MPM): momenta added to 3 x 3 nodes by quadratic B-splines."""

from benchmarks.papers.draw import rng

DIFF = 2
NODES = 64


def args(small):
    n = 7 if small else 8192
    r = rng()
    return [r.random((n, 2)) * (NODES - 4) + 2, r.standard_normal((n, 3))]


def pb_op(x, m):
    import pullback as pb

    base = pb.floor(x - 0.5).astype(pb.int32)
    f = x - base.astype(x.dtype)

    def weight(p, a, k):
        t = f[p, k]
        side = pb.where(a == 0, (1.5 - t) ** 2, (t - 0.5) ** 2) * 0.5
        return pb.where(a == 1, 0.75 - (t - 1) ** 2, side)

    w = pb.compute((x.shape[0], 3, 2), weight)
    return pb.define(
        "g[i,j,c] = sum[p,a,b](where((B[p,0] + a == i) & (B[p,1] + b == j), w[p,a,0] * w[p,b,1] * m[p,c], 0))",
        B=base, w=w, m=m, sizes={"i": NODES, "j": NODES, "a": 3, "b": 3},
    )  # fmt: skip


def _w(xp, x, floor):
    base = floor(x - 0.5)
    f = x - base
    return base, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2]


def torch_op(x, m):
    import torch

    base, w = _w(torch, x, torch.floor)
    at, out = base.long(), x.new_zeros((NODES * NODES, 3))
    for a in range(3):
        for b in range(3):
            flat = (at[:, 0] + a) * NODES + at[:, 1] + b
            out = out.index_add(0, flat, (w[a][:, 0] * w[b][:, 1])[:, None] * m)
    return out.reshape(NODES, NODES, 3)


def jax_op(x, m):
    import jax
    import jax.numpy as jnp

    base, w = _w(jnp, x, lambda t: jax.lax.stop_gradient(jnp.floor(t)))
    at, out = base.astype(jnp.int32), jnp.zeros((NODES, NODES, 3), x.dtype)
    for a in range(3):
        for b in range(3):
            out = out.at[at[:, 0] + a, at[:, 1] + b].add((w[a][:, 0] * w[b][:, 1])[:, None] * m)
    return out
