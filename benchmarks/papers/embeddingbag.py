"""DLRM (Naumov 2019): weighted sums of rows of a table, bags one after the other."""

from benchmarks.papers.draw import rng

DIFF = 2


def args(small):
    import numpy as np

    rows, bags, e, c = (9, 4, 14, 3) if small else (20000, 2048, 40960, 32)
    r = rng()
    return [
        r.standard_normal((rows, c)),
        r.standard_normal(e),
        r.integers(0, rows, e),
        np.concatenate([[0], np.sort(r.integers(0, e + 1, bags - 1)), [e]]),
    ]


def pb_op(table, w, index, start):
    import pullback as pb

    return pb.define(
        "y[b,c] = sum[e](where((start[b] <= e) & (e < start[b+1]), w[e] * table[index[e],c], 0))",
        table=table,
        w=w,
        index=index,
        start=start,
        sizes={"b": start.shape[0] - 1},
    )


def torch_op(table, w, index, start):
    import torch

    return torch.nn.functional.embedding_bag(
        index, table, start[:-1], mode="sum", per_sample_weights=w
    )


def jax_op(table, w, index, start):
    import jax
    import jax.numpy as jnp

    bags = start.shape[0] - 1
    bag = jnp.searchsorted(start, jnp.arange(len(index)), side="right") - 1
    return jax.ops.segment_sum(w[:, None] * table[index], bag, bags)
