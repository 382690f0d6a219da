"""Swin (Liu 2021): attention in shifted windows with a learned table of relative positions."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, h, c, m = (4, 2, 3, 2) if small else (28, 4, 16, 7)
    r = rng()
    return [
        r.standard_normal((3, h, n, n, c)),
        r.standard_normal(((2 * m - 1) ** 2, h)),
        r.integers(0, 1, (m,)),
    ]


def pb_op(qkv, table, window):
    import pullback as pb

    _, h, n, _, c = qkv.shape
    m = window.shape[0]
    s, k = m // 2, n // m
    d = pb.axis(c)

    def at(w, i, part, h, d):  # the row and column of a token of a window, rolled
        y, x = w // k * m + i // m + s, w % k * m + i % m + s
        return qkv[part, h, y % n, x % n, d]

    def group(w, i):
        y, x = w // k * m + i // m, w % k * m + i % m
        zone = lambda p: pb.where(p < n - m, 0, pb.where(p < n - s, 1, 2))
        return zone(y) * 3 + zone(x)

    def score(w, h, i, j):
        place = (i // m - j // m + m - 1) * (2 * m - 1) + i % m - j % m + m - 1
        dot = pb.sum(at(w, i, 0, h, d) * at(w, j, 1, h, d), over=d) / c**0.5 + table[place, h]
        return pb.where(group(w, i) == group(w, j), dot, -pb.inf)

    p = pb.softmax(pb.compute((k * k, h, m * m, m * m), score), axis=-1)
    v = pb.compute((k * k, h, m * m, c), lambda w, h, j, d: at(w, j, 2, h, d))
    return p @ v


def _g(xp, qkv, table, m, roll, softmax, arange, take):
    _, h, n, _, c = qkv.shape
    s, k = m // 2, n // m
    z = roll(qkv, (-s, -s), (2, 3)).reshape(3, h, k, m, k, m, c)
    z = xp.moveaxis(z, 4, 3).reshape(3, h, k * k, m * m, c)
    q, key, v = (xp.moveaxis(z[t], 1, 0) for t in range(3))
    i = arange(m * m)
    dy, dx = i[:, None] // m - i // m, i[:, None] % m - i % m
    bias = xp.moveaxis(table[(dy + m - 1) * (2 * m - 1) + dx + m - 1], -1, 0)
    p = arange(n)
    zone = (p >= n - m) * 1 + (p >= n - s) * 1
    g = (zone[:, None] * 3 + zone).reshape(k, m, k, m)
    g = xp.moveaxis(g, 2, 1).reshape(k * k, m * m)
    a = q @ xp.swapaxes(key, -1, -2) / c**0.5 + bias
    return softmax(xp.where((g[:, :, None] == g[:, None])[:, None], a, -float("inf"))) @ v


def torch_op(qkv, table, window):
    import torch

    return _g(
        torch,
        qkv,
        table,
        len(window),
        torch.roll,
        lambda t: torch.softmax(t, -1),
        torch.arange,
        None,
    )


def jax_op(qkv, table, window):
    import jax
    import jax.numpy as jnp

    return _g(jnp, qkv, table, len(window), jnp.roll, jax.nn.softmax, jnp.arange, None)
