"""RWKV-6 / gated linear attention, recurrent: S = diag(w_t) S + k_t v_t^T; y_t = r_t (S + u k_t v_t^T)."""

from benchmarks.papers.draw import rng

DIFF = 5


def args(small):
    b, h, t, c = (2, 2, 5, 3) if small else (1, 4, 128, 32)
    r = rng()
    return [
        r.standard_normal((b, h, t, c)) * 0.5,
        r.standard_normal((b, h, t, c)) * 0.5,
        r.standard_normal((b, h, t, c)),
        r.standard_normal((b, h, t, c)) - 2,
        r.standard_normal((h, c)),
    ]


def pb_op(r, k, v, w, u):
    import pullback as pb

    b, h, t, c = r.shape
    decay = pb.exp(-pb.exp(w))
    front = lambda x: pb.moveaxis(x, 2, 0)

    def body(S, x):
        r, k, v, a = x
        y = pb.define(
            "y[b,h,j] = sum[i](r[b,h,i] * (S[b,h,i,j] + u[h,i] * k[b,h,i] * v[b,h,j]))",
            r=r,
            S=S,
            u=u,
            k=k,
            v=v,
        )
        new = pb.define(
            "n[b,h,i,j] = a[b,h,i] * S[b,h,i,j] + k[b,h,i] * v[b,h,j]", a=a, S=S, k=k, v=v
        )
        return new, y

    _, ys = pb.scan(
        body, pb.zeros((b, h, c, c), dtype=r.dtype), tuple(front(x) for x in (r, k, v, decay))
    )
    return pb.moveaxis(ys, 0, 2)


def torch_op(r, k, v, w, u):
    import torch

    b, h, t, c = r.shape
    a = torch.exp(-torch.exp(w))
    S = torch.zeros(b, h, c, c, dtype=r.dtype)
    ys = []
    for i in range(t):
        kv = k[:, :, i, :, None] * v[:, :, i, None, :]
        ys.append((r[:, :, i, None, :] @ (S + u[:, :, None] * kv))[:, :, 0])
        S = a[:, :, i, :, None] * S + kv
    return torch.stack(ys, 2)


def jax_op(r, k, v, w, u):
    import jax
    import jax.numpy as jnp

    b, h, t, c = r.shape
    a = jnp.exp(-jnp.exp(w))

    def body(S, x):
        r, k, v, a = x
        kv = k[..., None] * v[..., None, :]
        y = jnp.einsum("bhi,bhij->bhj", r, S + u[:, :, None] * kv)
        return a[..., None] * S + kv, y

    _, ys = jax.lax.scan(
        body, jnp.zeros((b, h, c, c), r.dtype), tuple(jnp.moveaxis(x, 2, 0) for x in (r, k, v, a))
    )
    return jnp.moveaxis(ys, 0, 2)
