"""RoIAlign (He 2017): boxes of a feature map as 7 x 7 cells, each the mean of 2 x 2 samples."""

from benchmarks.papers.draw import rng

DIFF = 1
CELLS, SAMPLES = 7, 2


def args(small):
    c, d, n = (2, 9, 3) if small else (64, 50, 64)
    r = rng()
    low = r.random((n, 2)) * d / 2
    return [r.standard_normal((c, d, d)), low, low + 1 + r.random((n, 2)) * (d / 2 - 1)]


def pb_op(x, low, high):
    import pullback as pb

    c, h, w = x.shape
    k = CELLS * SAMPLES
    step = (high - low) / k
    at = pb.compute((low.shape[0], k, 2), lambda n, i, a: low[n, a] + (i + 0.5) * step[n, a])
    at = pb.clip(at, 0.0, h - 1.001)
    base = pb.floor(at).astype(pb.int32)
    f = at - pb.floor(at)
    a, b, u, v = pb.axis(2), pb.axis(2), pb.axis(SAMPLES), pb.axis(SAMPLES)

    def value(n, c, i, j):
        p, q = SAMPLES * i + u, SAMPLES * j + v
        wy = pb.where(a == 0, 1 - f[n, p, 0], f[n, p, 0])
        wx = pb.where(b == 0, 1 - f[n, q, 1], f[n, q, 1])
        one = wy * wx * x[c, base[n, p, 0] + a, base[n, q, 1] + b]
        return pb.sum(one, over=(u, v, a, b)) / SAMPLES**2

    return pb.compute((low.shape[0], c, CELLS, CELLS), value)


def _g(xp, x, low, high, arange, toint, clip):
    k = CELLS * SAMPLES
    at = low[:, None] + (arange(k)[None, :, None] + 0.5) * ((high - low) / k)[:, None]
    at = clip(at, x.shape[1] - 1.001)
    base, f = toint(xp.floor(at)), at - xp.floor(at)
    out = 0.0
    for a in (0, 1):
        for b in (0, 1):
            wy = (f[..., 0] if a else 1 - f[..., 0])[:, :, None]
            wx = (f[..., 1] if b else 1 - f[..., 1])[:, None, :]
            got = x[:, base[:, :, None, 0] + a, base[:, None, :, 1] + b]
            out = out + wy * wx * got
    n = low.shape[0]
    out = out.reshape(x.shape[0], n, CELLS, SAMPLES, CELLS, SAMPLES).mean((3, 5))
    return xp.moveaxis(out, 0, 1)


def torch_op(*a):
    import torch

    kind = a[0].dtype
    return _g(torch, *a, lambda k: torch.arange(k, dtype=kind), lambda t: t.long(),
              lambda t, m: t.clamp(0, m))  # fmt: skip


def jax_op(*a):
    import jax.numpy as jnp

    return _g(jnp, *a, jnp.arange, lambda t: t.astype(jnp.int32), lambda t, m: jnp.clip(t, 0, m))
