"""Linear-chain CRF: negative log-likelihood by the forward algorithm, sequences of different lengths."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    b, t, k = (3, 5, 4) if small else (32, 64, 20)
    r = rng()

    return [
        r.standard_normal((b, t, k)),
        r.standard_normal((k, k)),
        r.integers(0, k, (b, t)),
        r.integers(2, t + 1, b),
    ]


def pb_op(x, tr, tags, length):
    import pullback as pb

    b, t, k = x.shape

    def body(a, i):
        new = pb.logsumexp(a[:, :, None] + tr[None], axis=1) + pb.compute(
            (b, k), lambda b, j: x[b, i, j]
        )
        return pb.where((i < length)[:, None], new, a), None

    a, _ = pb.scan(body, x[:, 0], pb.arange(1, t))
    s = pb.axis(t)
    score = pb.compute(
        (b,),
        lambda b: pb.sum(
            pb.where(
                s < length[b],
                x[b, s, tags[b, s]] + pb.where(s > 0, tr[tags[b, s - 1], tags[b, s]], 0.0),
                0.0,
            ),
            over=s,
        ),
    )
    return pb.logsumexp(a, axis=1) - score


def torch_op(x, tr, tags, length):
    import torch

    b, t, k = x.shape
    a = x[:, 0]
    for i in range(1, t):
        a = torch.where((i < length)[:, None], torch.logsumexp(a[:, :, None] + tr, 1) + x[:, i], a)
    e = x.gather(2, tags[..., None])[..., 0]
    e = e + torch.cat([torch.zeros_like(e[:, :1]), tr[tags[:, :-1], tags[:, 1:]]], 1)
    return torch.logsumexp(a, 1) - torch.where(torch.arange(t) < length[:, None], e, 0.0).sum(1)


def jax_op(x, tr, tags, length):
    import jax
    import jax.numpy as jnp

    b, t, k = x.shape

    def body(a, xi):
        i, e = xi
        return jnp.where(
            (i < length)[:, None], jax.nn.logsumexp(a[:, :, None] + tr, 1) + e, a
        ), None

    a, _ = jax.lax.scan(body, x[:, 0], (jnp.arange(1, t), jnp.moveaxis(x, 1, 0)[1:]))
    e = jnp.take_along_axis(x, tags[..., None], 2)[..., 0]
    e = e + jnp.concatenate([jnp.zeros_like(e[:, :1]), tr[tags[:, :-1], tags[:, 1:]]], 1)
    return jax.nn.logsumexp(a, 1) - jnp.where(jnp.arange(t) < length[:, None], e, 0.0).sum(1)
