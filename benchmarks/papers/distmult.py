"""DistMult (Yang 2015): a score of triples, entities and relations looked up, beside drawn negatives."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    n, k, e, m, c = (9, 3, 8, 4, 3) if small else (10000, 50, 2048, 16, 32)
    r = rng()
    return [
        r.standard_normal((n, c)),
        r.standard_normal((k, c)),
        r.integers(0, n, e),
        r.integers(0, k, e),
        r.integers(0, n, (e, m)),
    ]


def pb_op(x, rel, head, kind, tail):
    import pullback as pb

    s = pb.define(
        "s[e,m] = sum[c](x[head[e],c] * rel[kind[e],c] * x[tail[e,m],c])",
        x=x,
        rel=rel,
        head=head,
        kind=kind,
        tail=tail,
    )
    return pb.logsumexp(s, axis=1) - s[:, 0]


def torch_op(x, rel, head, kind, tail):
    s = ((x[head] * rel[kind])[:, None] * x[tail]).sum(-1)
    return s.logsumexp(1) - s[:, 0]


def jax_op(x, rel, head, kind, tail):
    import jax

    s = ((x[head] * rel[kind])[:, None] * x[tail]).sum(-1)
    return jax.nn.logsumexp(s, axis=1) - s[:, 0]
