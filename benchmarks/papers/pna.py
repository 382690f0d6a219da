"""Principal neighbourhoods (Corso 2020): mean, largest, smallest and deviation of neighbours."""

from benchmarks.papers.draw import rng

DIFF = 1


def args(small):
    n, d, c = (6, 3, 3) if small else (1024, 8, 32)
    r = rng()
    return [r.standard_normal((n, c)), r.integers(0, n, (n, d))]


def pb_op(x, near):
    import pullback as pb

    m = pb.compute((*near.shape, x.shape[1]), lambda n, k, c: x[near[n, k], c])
    mean = pb.mean(m, axis=1)
    spread = pb.sqrt(pb.maximum(pb.mean(m * m, axis=1) - mean * mean, 0.0) + 1e-5)
    return pb.concat([mean, pb.max(m, axis=1), pb.min(m, axis=1), spread], axis=1)


def torch_op(x, near):
    import torch

    m = x[near]
    mean = m.mean(1)
    spread = torch.sqrt(torch.relu((m * m).mean(1) - mean * mean) + 1e-5)
    return torch.cat([mean, m.amax(1), m.amin(1), spread], 1)


def jax_op(x, near):
    import jax
    import jax.numpy as jnp

    m = x[near]
    mean = m.mean(1)
    spread = jnp.sqrt(jax.nn.relu((m * m).mean(1) - mean * mean) + 1e-5)
    return jnp.concatenate([mean, m.max(1), m.min(1), spread], 1)
