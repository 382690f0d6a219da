"""Segment reductions, searchsorted, topk and sort, beside NumPy, PyTorch and JAX.

`python benchmarks/segments.py [NAME ..]`: milliseconds of processor time, one thread, all sides in
turn, median. Segments: 100,000 rows of 16 float32 into 10,000 places, value and gradient of the
rows (spans: rows in order, between 10,001 places); sorts and searches: 1,000,000 float32.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from sides import medians

import pullback as pb

PLACES, ROWS, WIDE, MANY = 10_000, 100_000, 16, 1_000_000
RNG = np.random.default_rng(0)
Run = Callable[[], Any]
BY_KEY = "y[n,o] = {0}[e](where(key[e] == n, m[e,o], {1}))"
BY_SPAN = "y[n,o] = {0}[e](where((key[n] <= e) & (e < key[n + 1]), m[e,o], {1}))"
NOTHING = {"sum": "0", "max": "-inf", "min": "inf"}


def own(define: Callable[..., Any], arrays: list[np.ndarray]) -> Run:
    """The value and the gradient of the first array."""

    def both(h: Any, m: Any, *rest: Any) -> Any:
        y = define(m, *rest)
        return [y, *pb.grad(y, [m], head=h)]

    program = pb.jit(both, options=pb.Options(threads=1))
    given = [*map(pb.tensor, arrays)]
    head = pb.tensor(np.ones((PLACES if define is not softmax else ROWS, WIDE), np.float32))
    return lambda: program(head, *given)


def reduced(name: str, text: str) -> Callable[..., Any]:
    def define(m: Any, key: Any) -> Any:
        kind = "sum" if name == "mean" else name
        sizes = {"n": PLACES}
        y = pb.define(text.format(kind, NOTHING[kind]), m=m, key=key, sizes=sizes)
        if name != "mean":
            return y
        count = "c[n] = sum[e](where(key[e] == n, 1.0, 0.0))"
        many = pb.define(count, key=key, sizes=sizes).astype(pb.float32)
        return y / pb.maximum(many, 1.0)[:, None]

    return define


def softmax(m: Any, key: Any) -> Any:
    sizes = {"n": PLACES}
    top = pb.define(BY_KEY.format("max", "-inf"), m=pb.stop_gradient(m), key=key, sizes=sizes)
    p = pb.define("p[e,o] = exp(m[e,o] - t[key[e],o])", m=m, t=top, key=key)
    z = pb.define(BY_KEY.format("sum", "0"), m=p, key=key, sizes=sizes)
    return pb.define("y[e,o] = p[e,o] / z[key[e],o]", p=p, z=z, key=key)


def torch_run(name: str, arrays: list[np.ndarray], spans: bool) -> Run:
    import torch

    torch.set_num_threads(1)
    m, key = map(torch.from_numpy, arrays)
    m.requires_grad_()
    wide = None if spans else key[:, None].expand(ROWS, WIDE)
    names = {"max": "amax", "min": "amin", "mean": "mean"}
    fill = {"max": -torch.inf, "min": torch.inf}

    def value() -> Any:
        if spans:
            return torch.segment_reduce(m, name, offsets=key, axis=0)
        if name == "sum":
            return torch.zeros(PLACES, WIDE).index_add(0, key, m)
        if name == "softmax":
            t = torch.full((PLACES, WIDE), -torch.inf).scatter_reduce(0, wide, m.detach(), "amax")
            p = torch.exp(m - t[key])
            return p / torch.zeros(PLACES, WIDE).index_add(0, key, p)[key]
        start = torch.full((PLACES, WIDE), fill.get(name, 0.0))
        return start.scatter_reduce(0, wide, m, names[name], include_self=False)

    def call() -> Any:
        y = value()
        return torch.autograd.grad(y, m, torch.ones_like(y))

    return call


def jax_run(name: str, arrays: list[np.ndarray]) -> Run:
    import jax
    import jax.numpy as jnp

    m, key = map(jnp.asarray, arrays)

    def value(m: Any) -> Any:
        if name == "softmax":
            t = jax.ops.segment_max(jax.lax.stop_gradient(m), key, PLACES)
            p = jnp.exp(m - t[key])
            return p / jax.ops.segment_sum(p, key, PLACES)[key]
        if name == "mean":
            many = jax.ops.segment_sum(jnp.ones(ROWS), key, PLACES)
            return jax.ops.segment_sum(m, key, PLACES) / jnp.maximum(many, 1)[:, None]
        return getattr(jax.ops, f"segment_{name}")(m, key, PLACES)

    @jax.jit
    def both(m: Any) -> Any:
        y, pull = jax.vjp(value, m)
        return [y, *pull(jnp.ones_like(y))]

    return lambda: jax.block_until_ready(both(m))


def segments() -> dict[str, Callable[[], dict[str, Run]]]:
    m = RNG.standard_normal((ROWS, WIDE)).astype(np.float32)
    key = RNG.integers(0, PLACES, ROWS)
    cuts = np.sort(RNG.integers(0, ROWS + 1, PLACES - 1))
    spans = np.concatenate([[0], cuts, [ROWS]])
    row = np.repeat(np.arange(PLACES), np.diff(spans))
    cases: dict[str, Callable[[], dict[str, Run]]] = {}
    for name in ("sum", "max", "min", "mean", "softmax"):
        define = softmax if name == "softmax" else reduced(name, BY_KEY)
        cases[f"{name} by key"] = lambda n=name, d=define: {
            "pullback": own(d, [m, key]),
            "PyTorch": torch_run(n, [m, key], False),
            "JAX": jax_run(n, [m, key]),
        }
    for name in ("sum", "max"):
        cases[f"{name} of spans"] = lambda n=name: {
            "pullback": own(reduced(n, BY_SPAN), [m, spans]),
            "PyTorch": torch_run(n, [m, spans], True),
            "JAX": jax_run(n, [m, row]),
        }
    return cases


def order() -> dict[str, Callable[[], dict[str, Run]]]:
    import jax
    import jax.numpy as jnp
    import torch

    torch.set_num_threads(1)
    x = RNG.standard_normal(MANY).astype(np.float32)
    rows = RNG.standard_normal((1000, 1000)).astype(np.float32)
    edges = np.sort(RNG.standard_normal(10_000).astype(np.float32))
    t = torch.from_numpy(x)
    ready = jax.block_until_ready

    def sides(mine: Any, numpy: Run, torch_: Run, jax_: Any, *given: Any) -> dict[str, Run]:
        program, made = pb.jit(mine, options=pb.Options(threads=1)), jax.jit(jax_)
        tensors, arrays = [*map(pb.tensor, given)], [*map(jnp.asarray, given)]
        both: dict[str, Run] = {"pullback": lambda: program(*tensors), "NumPy": numpy}
        return {**both, "PyTorch": torch_, "JAX": lambda: ready(made(*arrays))}

    def firsts() -> dict[str, Run]:
        tensor = torch.from_numpy(rows)
        return sides(
            lambda x: pb.topk(x, 16),
            lambda: np.argpartition(rows, 16, -1),  # in no order
            lambda: tensor.topk(16),
            lambda x: jax.lax.top_k(x, 16),
            rows,
        )

    return {
        "sort": lambda: sides(pb.sort, lambda: np.sort(x), lambda: t.sort(), jnp.sort, x),
        "argsort": lambda: sides(
            pb.argsort, lambda: np.argsort(x), lambda: t.argsort(), jnp.argsort, x
        ),
        "topk, 16 of 1000 rows of 1000": firsts,
        "topk, 16 of all": lambda: sides(
            lambda x: pb.topk(x, 16),
            lambda: np.argpartition(x, 16),
            lambda: t.topk(16),
            lambda x: jax.lax.top_k(x, 16),
            x,
        ),
        "searchsorted, 10,000 edges": lambda: sides(
            pb.searchsorted,
            lambda: np.searchsorted(edges, x),
            lambda: torch.searchsorted(torch.from_numpy(edges), t),
            jnp.searchsorted,
            edges,
            x,
        ),
    }


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    wanted = sys.argv[1:]
    print("| | pullback ms | beside |\n|---|---|---|")
    for name, case in {**segments(), **order()}.items():
        if wanted and not any(w in name for w in wanted):
            continue
        times = medians(case())
        mine = times.pop("pullback")
        beside = ", ".join(f"{n} {t / mine:.2f}" for n, t in times.items())
        print(f"| {name} | {mine:.2f} | {beside} |", flush=True)


if __name__ == "__main__":
    main()
