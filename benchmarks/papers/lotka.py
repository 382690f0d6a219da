"""Lotka-Volterra fitted by RK4 with 200 steps: Hessian-vector product of the loss (value column), its gradient beside."""

from benchmarks.papers.draw import rng

DIFF = 1
STEPS = 200


def args(small):
    import numpy as np

    r = rng()
    n = 20 if small else STEPS
    return [np.array([1.1, 0.4, 0.4, 0.1]), np.array([0.3, -0.2, 0.1, 0.5]), r.random((n, 2)) * 10]


def field(s, p, stack):
    x, y = s[0], s[1]
    return stack([p[0] * x - p[1] * x * y, p[3] * x * y - p[2] * y])


def rk4(s, p, stack, h=0.05):
    a = field(s, p, stack)
    b = field(s + 0.5 * h * a, p, stack)
    c = field(s + 0.5 * h * b, p, stack)
    d = field(s + h * c, p, stack)
    return s + h / 6 * (a + 2 * b + 2 * c + d)


def pb_op(p, v, data):
    import pullback as pb

    def loss(p):
        def body(s, d):
            s = rk4(s, p, pb.stack)
            return s, pb.sum((s - d) ** 2)

        _, e = pb.scan(body, pb.tensor([10.0, 5.0]).astype(p.dtype), data)
        return pb.mean(e)

    return pb.hvp(loss, p, v)


def torch_op(p, v, data):
    import torch

    def loss(p):
        s = torch.tensor([10.0, 5.0], dtype=p.dtype)
        e = []
        for i in range(len(data)):
            s = rk4(s, p, torch.stack)
            e.append(((s - data[i]) ** 2).sum())
        return torch.stack(e).mean()

    if not torch.is_grad_enabled():
        return torch.zeros(4)
    (g,) = torch.autograd.grad(loss(p), p, create_graph=True)
    (h,) = torch.autograd.grad((g * v).sum(), p, create_graph=True)
    return h


def jax_op(p, v, data):
    import jax
    import jax.numpy as jnp

    def loss(p):
        def body(s, d):
            s = rk4(s, p, jnp.stack)
            return s, ((s - d) ** 2).sum()

        return jax.lax.scan(body, jnp.asarray([10.0, 5.0], p.dtype), data)[1].mean()

    return jax.jvp(jax.grad(loss), (p,), (v,))[1]
