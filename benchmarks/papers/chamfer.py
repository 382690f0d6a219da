"""Chamfer distance (Fan 2017): each point to the nearest of the other set, both ways, a batch."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    b, n, m = (2, 5, 7) if small else (4, 512, 512)
    r = rng()
    return [r.standard_normal((b, n, 3)), r.standard_normal((b, m, 3))]


def pb_op(x, y):
    import pullback as pb

    d = pb.define("d[b,n,m] = sum[c]((x[b,n,c] - y[b,m,c])**2)", x=x, y=y)
    return pb.mean(pb.min(d, axis=2), axis=1) + pb.mean(pb.min(d, axis=1), axis=1)


def torch_op(x, y):
    d = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    return d.min(2).values.mean(1) + d.min(1).values.mean(1)


def jax_op(x, y):
    d = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    return d.min(2).mean(1) + d.min(1).mean(1)
