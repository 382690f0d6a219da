"""FlowNet's local correlation: 9x9 displacements."""

from benchmarks.papers.draw import rng

DIFF = 2
R = 4


def args(small):
    n, c, h, w = (2, 3, 6, 5) if small else (1, 64, 48, 48)
    r = rng()
    return [r.standard_normal((n, c, h, w)) for _ in range(2)]


def pb_op(f, g):
    import pullback as pb

    n, c, h, w = f.shape
    k = pb.axis(c)

    def at(n, a, b, i, j):
        y, x = i + a - R, j + b - R
        return pb.where(
            (y >= 0) & (y < h) & (x >= 0) & (x < w),
            pb.sum(f[n, k, i, j] * g[n, k, y, x], over=k) / c,
            0.0,
        )

    return pb.compute((n, 2 * R + 1, 2 * R + 1, h, w), at)


def _g(xp, f, g, pad):
    n, c, h, w = f.shape
    p = pad(g)
    return xp.stack(
        [
            (f * p[:, :, a : a + h, b : b + w]).sum(1) / c
            for a in range(2 * R + 1)
            for b in range(2 * R + 1)
        ],
        1,
    ).reshape(n, 2 * R + 1, 2 * R + 1, h, w)


def torch_op(f, g):
    import torch

    return _g(torch, f, g, lambda t: torch.nn.functional.pad(t, (R,) * 4))


def jax_op(f, g):
    import jax.numpy as jnp

    return _g(jnp, f, g, lambda t: jnp.pad(t, ((0, 0), (0, 0), (R, R), (R, R))))
