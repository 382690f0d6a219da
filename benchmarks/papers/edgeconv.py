"""DGCNN's EdgeConv: kNN graph of the features, max over neighbours of a small net on (x_i, x_j - x_i)."""

from benchmarks.papers.draw import rng

DIFF = 3


def args(small):
    n, c, o = (9, 3, 4) if small else (1024, 3, 32)
    r = rng()
    return [r.standard_normal((n, c)), r.standard_normal((o, 2 * c)), r.standard_normal(o)]


def near(n):
    return 3 if n < 64 else 16


def pb_op(x, w, b):
    import pullback as pb

    n, c = x.shape
    o, k = w.shape[0], near(n)
    d = pb.define("d[i,j] = sum[c]((x[i,c] - x[j,c]) ** 2)", x=pb.stop_gradient(x))
    _, nb = pb.topk(d, k, axis=1, largest=False)
    m = pb.define(
        "m[i,a,o] = sum[c](w[o,c] * x[i,c] + w[o,c+C] * (x[nb[i,a],c] - x[i,c])) + b[o]",
        x=x,
        w=w,
        b=b,
        nb=nb,
        C=c,
        sizes={"c": c},
    )
    return pb.max(pb.maximum(m, 0.2 * m), axis=1)


def torch_op(x, w, b):
    import torch

    n, c = x.shape
    k = near(n)
    with torch.no_grad():
        nb = ((x[:, None] - x[None]) ** 2).sum(-1).topk(k, 1, largest=False).indices
    e = torch.cat([x[:, None].expand(n, k, c), x[nb] - x[:, None]], -1)
    return torch.nn.functional.leaky_relu(e @ w.T + b, 0.2).max(1).values


def jax_op(x, w, b):
    import jax
    import jax.numpy as jnp

    n, c = x.shape
    k = near(n)
    s = jax.lax.stop_gradient(x)
    _, nb = jax.lax.top_k(-((s[:, None] - s[None]) ** 2).sum(-1), k)
    e = jnp.concatenate([jnp.broadcast_to(x[:, None], (n, k, c)), x[nb] - x[:, None]], -1)
    return jax.nn.leaky_relu(e @ w.T + b, 0.2).max(1)
