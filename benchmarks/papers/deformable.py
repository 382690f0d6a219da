"""Deformable convolution (Dai 2017): 3 x 3 taps at learned offsets, bilinear, zero outside."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    c, o, n = (3, 2, 5) if small else (16, 16, 28)
    r = rng()
    return [
        r.standard_normal((c, n, n)),
        r.standard_normal((9, n, n, 2)),
        r.standard_normal((o, c, 9)) / 12,
    ]


def pb_op(x, offset, w):
    import pullback as pb

    c, h, wd = x.shape
    a, b = pb.axis(2), pb.axis(2)

    def tap(c, t, i, j):
        py, px = i + t // 3 - 1 + offset[t, i, j, 0], j + t % 3 - 1 + offset[t, i, j, 1]
        fy, fx = py - pb.floor(py), px - pb.floor(px)
        y, q = pb.astype(pb.floor(py), pb.int32) + a, pb.astype(pb.floor(px), pb.int32) + b
        inside = (y >= 0) & (y < h) & (q >= 0) & (q < wd)
        weight = pb.where(a == 0, 1 - fy, fy) * pb.where(b == 0, 1 - fx, fx)
        return pb.sum(pb.where(inside, weight * x[c, y, q], 0.0), over=(a, b))

    taps = pb.compute((c, 9, h, wd), tap)
    return pb.einsum("oct,ctij->oij", w, taps)


def _g(xp, x, offset, w, toint, clip, arange, einsum):
    c, h, wd = x.shape
    t = arange(9)
    py = arange(h)[None, :, None] + (t // 3 - 1)[:, None, None] + offset[..., 0]
    px = arange(wd)[None, None] + (t % 3 - 1)[:, None, None] + offset[..., 1]
    ly, lx = xp.floor(py), xp.floor(px)
    taps = 0.0
    for a in (0, 1):
        for b in (0, 1):
            y, q = toint(ly) + a, toint(lx) + b
            inside = (y >= 0) & (y < h) & (q >= 0) & (q < wd)
            wt = (py - ly if a else 1 - (py - ly)) * (px - lx if b else 1 - (px - lx))
            taps = taps + xp.where(inside, wt, 0.0) * x[:, clip(y, 0, h - 1), clip(q, 0, wd - 1)]
    return einsum("oct,ctij->oij", w, taps)


def torch_op(x, offset, w):
    import torch

    return _g(torch, x, offset, w, lambda t: t.long(), torch.clamp, torch.arange, torch.einsum)


def jax_op(x, offset, w):
    import jax.numpy as jnp

    return _g(jnp, x, offset, w, lambda t: t.astype("int32"), jnp.clip, jnp.arange, jnp.einsum)
