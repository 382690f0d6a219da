"""ArcFace (Deng 2019): an angle is added where the label stands, then cross entropy."""

from benchmarks.papers.draw import rng

DIFF = 2
SCALE, MARGIN = 30.0, 0.5


def args(small):
    n, c, k = (4, 5, 6) if small else (128, 64, 1000)
    r = rng()
    return [r.standard_normal((n, c)), r.standard_normal((k, c)), r.integers(0, k, n)]


def pb_op(x, w, label):
    import pullback as pb

    unit = lambda v: v / pb.sqrt(pb.sum(v * v, axis=1, keepdims=True))
    cos = pb.clip(unit(x) @ unit(w).T, -0.999, 0.999)
    logits = pb.compute(
        cos.shape,
        lambda i, j: (
            SCALE * pb.where(j == label[i], pb.cos(pb.acos(cos[i, j]) + MARGIN), cos[i, j])
        ),
    )
    return pb.logsumexp(logits, axis=1) - pb.compute((x.shape[0],), lambda i: logits[i, label[i]])


def torch_op(x, w, label):
    import torch

    F = torch.nn.functional
    cos = (F.normalize(x, dim=1) @ F.normalize(w, dim=1).T).clamp(-0.999, 0.999)
    hot = F.one_hot(label, len(w)).bool()
    logits = SCALE * torch.where(hot, torch.cos(torch.acos(cos) + MARGIN), cos)
    return F.cross_entropy(logits, label, reduction="none")


def jax_op(x, w, label):
    import jax
    import jax.numpy as jnp

    unit = lambda v: v / jnp.linalg.norm(v, axis=1, keepdims=True)
    cos = jnp.clip(unit(x) @ unit(w).T, -0.999, 0.999)
    hot = jax.nn.one_hot(label, len(w), dtype=bool)
    logits = SCALE * jnp.where(hot, jnp.cos(jnp.arccos(cos) + MARGIN), cos)
    return jax.nn.logsumexp(logits, 1) - jnp.take_along_axis(logits, label[:, None], 1)[:, 0]
