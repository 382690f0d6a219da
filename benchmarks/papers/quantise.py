"""VQ-VAE (van den Oord 2017): each vector by its nearest code, and the distance to it."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, k, c = (9, 5, 3) if small else (4096, 256, 32)
    r = rng()
    return [r.standard_normal((n, c)), r.standard_normal((k, c))]


def pb_op(x, code):
    import pullback as pb

    a, b = pb.stop_gradient(x), pb.stop_gradient(code)
    d = pb.sum(b * b, axis=1) - 2 * (a @ b.T)
    near = pb.argmin(d, axis=1)
    return pb.define("y[i] = sum[c]((x[i,c] - code[near[i],c]) ** 2)", x=x, code=code, near=near)


def torch_op(x, code):
    import torch

    with torch.no_grad():
        near = ((code * code).sum(1) - 2 * (x @ code.T)).argmin(1)
    return ((x - code[near]) ** 2).sum(1)


def jax_op(x, code):
    import jax
    import jax.numpy as jnp

    a, b = jax.lax.stop_gradient(x), jax.lax.stop_gradient(code)
    near = jnp.argmin((b * b).sum(1) - 2 * (a @ b.T), axis=1)
    return ((x - code[near]) ** 2).sum(1)
