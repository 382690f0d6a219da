"""3D trilinear sampling of a feature volume at learned points (zero outside)."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    c, d, p = (3, 5, 7) if small else (16, 32, 8192)
    r = rng()
    return [r.standard_normal((c, d, d, d)), r.random((p, 3)) * (d + 1) - 1]


def pb_op(vol, pts):
    import pullback as pb

    c, d, h, w = vol.shape
    n = pts.shape[0]
    low = pb.floor(pts)
    f, base = pts - low, pb.floor(pts).astype(pb.int32)
    a, b, e = pb.axis(2), pb.axis(2), pb.axis(2)

    def at(p, c):
        z, y, x = base[p, 0] + a, base[p, 1] + b, base[p, 2] + e
        inside = (z >= 0) & (z < d) & (y >= 0) & (y < h) & (x >= 0) & (x < w)
        weight = 1.0
        for q, s in enumerate((a, b, e)):
            weight = weight * pb.where(s == 0, 1 - f[p, q], f[p, q])
        return pb.sum(pb.where(inside, weight * vol[c, z, y, x], 0.0), over=(a, b, e))

    return pb.compute((n, c), at)


def _g(xp, vol, pts, toint, clip):
    c, d, h, w = vol.shape
    low = xp.floor(pts)
    f, base = pts - low, toint(low)
    v = xp.moveaxis(vol, 0, -1)
    out = 0.0
    for a in (0, 1):
        for b in (0, 1):
            for e in (0, 1):
                z, y, x = base[:, 0] + a, base[:, 1] + b, base[:, 2] + e
                inside = (z >= 0) & (z < d) & (y >= 0) & (y < h) & (x >= 0) & (x < w)
                wt = (
                    (f[:, 0] if a else 1 - f[:, 0])
                    * (f[:, 1] if b else 1 - f[:, 1])
                    * (f[:, 2] if e else 1 - f[:, 2])
                )
                out = (
                    out
                    + xp.where(inside, wt, 0.0)[:, None]
                    * v[clip(z, 0, d - 1), clip(y, 0, h - 1), clip(x, 0, w - 1)]
                )
    return out


def torch_op(vol, pts):
    import torch

    return _g(torch, vol, pts, lambda t: t.long(), torch.clamp)


def jax_op(vol, pts):
    import jax.numpy as jnp

    return _g(jnp, vol, pts, lambda t: t.astype("int32"), jnp.clip)
