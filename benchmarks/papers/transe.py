"""TransE (Bordes 2013): head plus relation beside tail, with margins to drawn tails."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, m, b, k, c = (6, 3, 4, 2, 3) if small else (5000, 50, 512, 8, 64)
    r = rng()
    return [
        r.standard_normal((n, c)),
        r.standard_normal((m, c)),
        r.integers(0, n, b),
        r.integers(0, m, b),
        r.integers(0, n, b),
        r.integers(0, n, (b, k)),
    ]


def pb_op(nodes, links, head, link, tail, wrong):
    import pullback as pb

    c = pb.axis(nodes.shape[1])
    to = lambda i, t: pb.sum(pb.abs(nodes[head[i], c] + links[link[i], c] - nodes[t, c]), over=c)
    good = pb.compute(head.shape, lambda i: to(i, tail[i]))
    bad = pb.compute(wrong.shape, lambda i, j: to(i, wrong[i, j]))
    return pb.mean(pb.nn.functional.relu(1.0 + good[:, None] - bad), axis=1)


def _g(nodes, links, head, link, tail, wrong, abs, relu):
    there = nodes[head] + links[link]
    good = abs(there - nodes[tail]).sum(-1)
    bad = abs(there[:, None] - nodes[wrong]).sum(-1)
    return relu(1.0 + good[:, None] - bad).mean(1)


def torch_op(*a):
    import torch

    return _g(*a, torch.abs, torch.relu)


def jax_op(*a):
    import jax
    import jax.numpy as jnp

    return _g(*a, jnp.abs, jax.nn.relu)
