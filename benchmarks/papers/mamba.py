"""Selective state spaces (Gu 2023): h = exp(d A) h + d B x, y = C h, along time."""

from benchmarks.papers.draw import rng

DIFF = 5


def args(small):
    b, t, d, n = (2, 5, 3, 4) if small else (2, 128, 64, 16)
    r = rng()
    return [
        r.standard_normal((b, t, d)),
        r.random((b, t, d)) * 0.5,
        -r.random((d, n)) * 3,
        r.standard_normal((b, t, n)),
        r.standard_normal((b, t, n)),
    ]


def pb_op(x, delta, A, B, C):
    import pullback as pb

    front = lambda v: pb.moveaxis(v, 1, 0)

    def body(h, row):
        x, s, B, C = row
        new = pb.define(
            "n[b,d,k] = exp(s[b,d] * A[d,k]) * h[b,d,k] + s[b,d] * B[b,k] * x[b,d]",
            s=s, A=A, h=h, B=B, x=x,
        )  # fmt: skip
        return new, pb.define("y[b,d] = sum[k](h[b,d,k] * C[b,k])", h=new, C=C)

    start = pb.zeros((x.shape[0], *A.shape), dtype=x.dtype)
    return pb.moveaxis(pb.scan(body, start, tuple(map(front, (x, delta, B, C))))[1], 0, 1)


def torch_op(x, delta, A, B, C):
    import torch

    h, ys = x.new_zeros((x.shape[0], *A.shape)), []
    for t in range(x.shape[1]):
        s = delta[:, t, :, None]
        h = torch.exp(s * A) * h + s * B[:, t, None] * x[:, t, :, None]
        ys.append((h * C[:, t, None]).sum(-1))
    return torch.stack(ys, 1)


def jax_op(x, delta, A, B, C):
    import jax
    import jax.numpy as jnp

    def body(h, row):
        x, s, B, C = row
        h = jnp.exp(s[..., None] * A) * h + s[..., None] * B[:, None] * x[..., None]
        return h, (h * C[:, None]).sum(-1)

    rows = tuple(jnp.moveaxis(v, 1, 0) for v in (x, delta, B, C))
    return jnp.moveaxis(
        jax.lax.scan(body, jnp.zeros((x.shape[0], *A.shape), x.dtype), rows)[1], 0, 1
    )
