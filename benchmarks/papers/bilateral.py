"""HDRNet (Gharbi 2017): a bilateral grid of affine coefficients, sliced by a learned guide."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    c, g, d, n = (3, 4, 3, 9) if small else (12, 16, 8, 128)
    r = rng()
    return [r.standard_normal((c, d, g, g)), r.random((n, n))]


def pb_op(grid, guide):
    import pullback as pb

    c, d, g, _ = grid.shape
    n = guide.shape[0]
    depth = guide * d - 0.5
    k, a, b = pb.axis(2), pb.axis(2), pb.axis(2)

    def at(c, i, j):
        y, x = (i + 0.5) * g / n - 0.5, (j + 0.5) * g / n - 0.5
        value, weight = grid, 1.0
        places = []
        for s, p, m in ((k, depth[i, j], d), (a, y, g), (b, x, g)):
            low = pb.floor(p)
            weight = weight * pb.where(s == 0, 1 - (p - low), p - low)
            places.append(pb.clip(pb.astype(low, pb.int32) + s, 0, m - 1))
        return pb.sum(weight * grid[c, places[0], places[1], places[2]], over=(k, a, b))

    return pb.compute((c, n, n), at)


def _g(xp, grid, guide, toint, clip, arange):
    c, d, g, _ = grid.shape
    n = guide.shape[0]
    p = (arange(n) + 0.5) * g / n - 0.5
    axes = (guide * d - 0.5, d), (p[:, None], g), (p[None], g)
    low = [xp.floor(q) for q, _ in axes]
    out = 0.0
    for corner in range(8):
        w, at = 1.0, []
        for q, ((place, m), l) in enumerate(zip(axes, low)):
            s = corner >> q & 1
            w = w * (place - l if s else 1 - (place - l))
            at.append(clip(toint(l) + s, 0, m - 1))
        out = out + w * grid[:, at[0], at[1], at[2]]
    return out


def torch_op(grid, guide):
    import torch

    return _g(
        torch,
        grid,
        guide,
        lambda t: t.long(),
        torch.clamp,
        lambda n: torch.arange(n, dtype=grid.dtype),
    )


def jax_op(grid, guide):
    import jax.numpy as jnp

    return _g(
        jnp,
        grid,
        guide,
        lambda t: t.astype("int32"),
        jnp.clip,
        lambda n: jnp.arange(n, dtype=grid.dtype),
    )
