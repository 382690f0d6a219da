"""Spatial transformers (Jaderberg 2015): features sampled at learned places, zero outside."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    c, d, p = (3, 5, 7) if small else (32, 64, 64)
    r = rng()
    return [r.standard_normal((c, d, d)), r.random((p, p, 2)) * (d + 1) - 1]


def pb_op(x, at):
    import pullback as pb

    c, h, w = x.shape
    low = pb.floor(at)
    f, base = at - low, low.astype(pb.int32)
    a, b = pb.axis(2), pb.axis(2)

    def value(c, i, j):
        y, q = base[i, j, 0] + a, base[i, j, 1] + b
        inside = (y >= 0) & (y < h) & (q >= 0) & (q < w)
        weight = pb.where(a == 0, 1 - f[i, j, 0], f[i, j, 0]) * pb.where(
            b == 0, 1 - f[i, j, 1], f[i, j, 1]
        )
        return pb.sum(pb.where(inside, weight * x[c, y, q], 0.0), over=(a, b))

    return pb.compute((c, *at.shape[:2]), value)


def _g(xp, x, at, toint, clip):
    c, h, w = x.shape
    low = xp.floor(at)
    f, base = at - low, toint(low)
    out = 0.0
    for a in (0, 1):
        for b in (0, 1):
            y, q = base[..., 0] + a, base[..., 1] + b
            inside = (y >= 0) & (y < h) & (q >= 0) & (q < w)
            wt = (f[..., 0] if a else 1 - f[..., 0]) * (f[..., 1] if b else 1 - f[..., 1])
            out = out + xp.where(inside, wt, 0.0) * x[:, clip(y, 0, h - 1), clip(q, 0, w - 1)]
    return out


def torch_op(x, at):
    import torch

    return _g(torch, x, at, lambda t: t.long(), torch.clamp)


def jax_op(x, at):
    import jax.numpy as jnp

    return _g(jnp, x, at, lambda t: t.astype("int32"), jnp.clip)
