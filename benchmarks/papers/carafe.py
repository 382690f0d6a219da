"""CARAFE (Wang 2019): pixels of twice the size, each 5 x 5 neighbours weighted by its own softmax."""

from benchmarks.papers.draw import rng

DIFF = 2
K = 5


def args(small):
    c, n = (2, 3) if small else (32, 32)
    r = rng()
    return [r.standard_normal((c, n + K - 1, n + K - 1)), r.standard_normal((K * K, 2 * n, 2 * n))]


def pb_op(x, logits):
    import pullback as pb

    w = pb.nn.functional.softmax(logits, dim=0)
    u, v = pb.axis(K), pb.axis(K)
    return pb.compute(
        (x.shape[0], *logits.shape[1:]),
        lambda c, i, j: pb.sum(w[K * u + v, i, j] * x[c, i // 2 + u, j // 2 + v], over=(u, v)),
    )


def _g(x, w, einsum, stack):
    n = x.shape[1] - K + 1
    taps = stack([x[:, u : u + n, v : v + n] for u in range(K) for v in range(K)])
    w = w.reshape(K * K, n, 2, n, 2)
    return einsum("kcij,kiajb->ciajb", taps, w).reshape(x.shape[0], 2 * n, 2 * n)


def torch_op(x, logits):
    import torch

    return _g(x, torch.softmax(logits, 0), torch.einsum, torch.stack)


def jax_op(x, logits):
    import jax
    import jax.numpy as jnp

    return _g(x, jax.nn.softmax(logits, 0), jnp.einsum, jnp.stack)
