"""Involution: a 7x7 kernel of its own for each pixel, shared by the channels of a group."""

from benchmarks.papers.draw import rng

DIFF = 3
K, G = 7, 4


def args(small):
    n, c, r_, h, w = (2, 8, 2, 6, 5) if small else (1, 64, 4, 32, 32)
    r = rng()
    return [
        r.standard_normal((n, c, h, w)),
        r.standard_normal((c // r_, c)) / c**0.5,
        r.standard_normal((G, K, K, c // r_)) / (c // r_) ** 0.5,
    ]


def pb_op(x, reduce, span):
    import pullback as pb

    n, c, h, w = x.shape
    hid = pb.define("z[n,d,i,j] = max(sum[c](r[d,c] * x[n,c,i,j]), 0)", r=reduce, x=x)
    ker = pb.define("k[n,g,a,b,i,j] = sum[d](s[g,a,b,d] * z[n,d,i,j])", s=span, z=hid)
    a, b = pb.axis(K), pb.axis(K)

    def at(n, c_, i, j):
        y, q = i + a - K // 2, j + b - K // 2
        return pb.sum(
            pb.where(
                (y >= 0) & (y < h) & (q >= 0) & (q < w),
                ker[n, c_ // (c // G), a, b, i, j] * x[n, c_, y, q],
                0.0,
            ),
            over=(a, b),
        )

    return pb.compute((n, c, h, w), at)


def torch_op(x, reduce, span):
    import torch

    n, c, h, w = x.shape
    z = torch.relu(torch.einsum("dc,ncij->ndij", reduce, x))
    k = torch.einsum("gabd,ndij->ngabij", span, z).reshape(n, G, 1, K * K, h, w)
    u = torch.nn.functional.unfold(x, K, padding=K // 2).reshape(n, G, c // G, K * K, h, w)
    return (k * u).sum(3).reshape(n, c, h, w)


def jax_op(x, reduce, span):
    import jax
    import jax.numpy as jnp

    n, c, h, w = x.shape
    z = jax.nn.relu(jnp.einsum("dc,ncij->ndij", reduce, x))
    k = jnp.einsum("gabd,ndij->ngabij", span, z)
    p = jnp.pad(x, ((0, 0), (0, 0), (K // 2,) * 2, (K // 2,) * 2)).reshape(
        n, G, c // G, h + K - 1, w + K - 1
    )
    y = sum(k[:, :, None, a, b] * p[..., a : a + h, b : b + w] for a in range(K) for b in range(K))
    return y.reshape(n, c, h, w)
