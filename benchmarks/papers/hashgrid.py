"""Instant NGP (Mueller 2022): features of eight levels of hashed grids, interpolated in space."""

from benchmarks.papers.draw import rng

DIFF = 2
BASE, GROWTH = 8, 1.5


def args(small):
    l, t, f, p = (2, 64, 2, 7) if small else (8, 4096, 2, 4096)
    r = rng()
    return [r.standard_normal((l, t, f)), r.random((p, 3))]


def sizes(l):
    return [int(BASE * GROWTH**k) for k in range(l)]


def pb_op(table, x):
    import numpy as np

    import pullback as pb

    l, t, f = table.shape
    p = x.shape[0]
    n = pb.tensor(np.array(sizes(l)))
    a, b, e = pb.axis(2), pb.axis(2), pb.axis(2)

    def at(p, l, f):
        weight, key = 1.0, 0
        for q, (s, prime) in enumerate(((a, 1), (b, 2654435761), (e, 805459861))):
            place = x[p, q] * n[l]
            low = pb.floor(place)
            weight = weight * pb.where(s == 0, 1 - (place - low), place - low)
            key = key ^ ((pb.astype(low, pb.int64) + s) * prime)
        return pb.sum(weight * table[l, key % t, f], over=(a, b, e))

    return pb.compute((p, l, f), at)


def _g(xp, table, x, toint, n, stack):
    l, t, f = table.shape
    levels = []
    for k in range(l):
        place = x * n[k]
        low = xp.floor(place)
        w, base = place - low, toint(low)
        out = 0.0
        for c in range(8):
            s = [c >> q & 1 for q in range(3)]
            key = (
                (base[:, 0] + s[0])
                ^ (base[:, 1] + s[1]) * 2654435761
                ^ (base[:, 2] + s[2]) * 805459861
            )
            wt = 1.0
            for q in range(3):
                wt = wt * (w[:, q] if s[q] else 1 - w[:, q])
            out = out + wt[:, None] * table[k][key % t]
        levels.append(out)
    return stack(levels)


def torch_op(table, x):
    import torch

    return _g(torch, table, x, lambda t: t.long(), sizes(len(table)), lambda v: torch.stack(v, 1))


def jax_op(table, x):
    import jax.numpy as jnp

    return _g(
        jnp, table, x, lambda t: t.astype("uint32"), sizes(len(table)), lambda v: jnp.stack(v, 1)
    )
