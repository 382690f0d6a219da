"""A GPT that two ranks train, each its half of every batch: `python distributed_gpt.py OUT [shard]`
is a rank; `parts` and `joined` are one process.

    rank r    g = g_0 / 2 + g_1 / 2, by the ring
    parts     the same halves by the same kernels, added in the order of the ranks
    joined    g of the whole batch
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.distributed import DataParallel, Group
from pullback.distributed.transport import ALL_GATHER, Alone

Array = np.ndarray[Any, Any]
BATCH, CONTEXT, VOCABULARY, DIM, STEPS, RANKS = 8, 16, 31, 32, 100, 2


class Echo(Alone):
    """Two ranks, of which the other gives zeros: programs are cut as those of a rank are."""

    size = RANKS

    def run(self, kind: str, source: Array, target: Array) -> None:
        """A sum is what was given."""
        where = target.reshape(RANKS, -1) if kind == ALL_GATHER else target
        where[...] = source


def made() -> nn.GPT:
    pb.random.manual_seed(0)
    return nn.GPT(nn.GPTConfig(VOCABULARY, CONTEXT, layers=2, dim=DIM, heads=2))


def adamw(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=1e-3)


def batches() -> Array:
    shape = (STEPS, BATCH, CONTEXT + 1)
    return np.random.default_rng(0).integers(0, VOCABULARY, shape).astype(np.int32)


def pair(rows: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def kept(model: nn.Module, losses: list[float]) -> dict[str, Array]:
    weights = {name: t.numpy() for name, t in model.state_dict().items()}
    return {**weights, "losses": np.array(losses)}


def joined(group: Group, shard: bool = False) -> dict[str, Array]:
    """Weights and losses of a rank of `group`, as one program."""
    model = made()
    opt, parallel = adamw(model), DataParallel(model, bucket=1 << 14, group=group)
    if shard:
        opt = pb.distributed.sharded(opt, parallel)
    rows = BATCH // group.size
    own = iter(batches()[:, group.rank * rows : (group.rank + 1) * rows])
    losses: list[float] = []

    def step() -> None:
        shape = ((rows, CONTEXT),) * 2
        x, y = pb.Feeder(lambda: pair(next(own)), shape=shape, dtype=("int32", "int32"))
        opt.zero_grad()
        with parallel.sharing():
            loss = model.loss(x, y)
        seen = pb.distributed.all_reduce(loss, "mean", group=group)
        loss.backward()
        opt.step()
        pb.Receiver(lambda v: losses.append(float(v)), [seen])

    pb.jit(lambda: pb.loop(STEPS, step))()
    return kept(model, losses)


def parts() -> dict[str, Array]:
    """Each rank's half, one after the other, and the sum in the order of the ranks."""
    model = made()
    group = Group(Echo())
    opt, parallel = adamw(model), DataParallel(model, bucket=1 << 14, group=group)
    parameters = list(model.parameters())

    @pb.jit
    def half(x: Any, y: Any) -> list[Any]:
        opt.zero_grad()
        with parallel.sharing():
            loss = model.loss(x, y)
        seen = pb.distributed.all_reduce(loss, "mean", group=group)
        loss.backward()
        return [seen, *(p.grad for p in parameters)]

    @pb.jit
    def update(first: list[Any], second: list[Any]) -> Any:
        loss, *grads = (a + b for a, b in zip(first, second, strict=True))
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        opt.step()
        return loss

    losses = []
    for batch in batches():
        halves = [half(*pair(rows)) for rows in np.split(batch, RANKS)]
        losses.append(float(update(*halves).item()))
    return kept(model, losses)


if __name__ == "__main__":
    group = pb.distributed.init(timeout=60.0)
    results = joined(group, shard="shard" in sys.argv)
    np.savez(f"{sys.argv[1]}{group.rank}.npz", **results)
