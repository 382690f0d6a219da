"""PointNet++ (Qi 2017): features interpolated from the three nearest points, by inverse distances."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, m, c = (7, 5, 3) if small else (2048, 512, 32)
    r = rng()
    return [r.standard_normal((m, c)), r.standard_normal((n, 3)), r.standard_normal((m, 3))]


def pb_op(f, x, p):
    import pullback as pb

    d = pb.define("d[i,j] = sum[k]((x[i,k] - p[j,k]) ** 2)", x=x, p=p)
    near, nb = pb.topk(d, 3, axis=1, largest=False)
    w = 1 / (near + 1e-3)
    w = w / pb.sum(w, axis=1, keepdims=True)
    return pb.define("y[i,c] = sum[a](w[i,a] * f[nb[i,a],c])", w=w, f=f, nb=nb)


def torch_op(f, x, p):
    near, nb = ((x[:, None] - p) ** 2).sum(-1).topk(3, 1, largest=False)
    w = 1 / (near + 1e-3)
    return ((w / w.sum(1, keepdim=True))[..., None] * f[nb]).sum(1)


def jax_op(f, x, p):
    import jax

    near, nb = jax.lax.top_k(-((x[:, None] - p) ** 2).sum(-1), 3)
    w = 1 / (-near + 1e-3)
    return ((w / w.sum(1, keepdims=True))[..., None] * f[nb]).sum(1)
