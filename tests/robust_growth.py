"""Steps by the thousand: the process does not grow.

The resident set, and the blocks of memory that Python has, are read after a tenth of the steps,
when all that is kept has been made, and at the end; collections of garbage come first.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.errors import PullbackError
from robust_support import Found, Tell, silent

MOST = 0.01  # of the resident set, that it may grow by
BLOCKS = 0.5  # of memory, for each step: what is kept of every step has one at least
WIDTH = 32
Step = Callable[[], object]


def held() -> tuple[int, int]:
    """Bytes of memory that the process has, and blocks of Python's, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), sys.getallocatedblocks()


def _data(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _model() -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    return model, optim.AdamW(model.parameters(), lr=1e-3)


def training() -> Step:
    """A compiled step of a model."""
    model, rule = _model()
    x, y = pb.tensor(_data(8, WIDTH)), pb.tensor(_data(8, 4))

    @pb.jit
    def step() -> Any:
        rule.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        rule.step()
        return loss

    return lambda: step().item()


def eager_training() -> Step:
    """The same without `jit`."""
    model, rule = _model()
    x, y = pb.tensor(_data(8, WIDTH)), pb.tensor(_data(8, 4))

    def step() -> float:
        rule.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        rule.step()
        return float(loss.item())

    return step


def calls() -> Step:
    """A compiled operation, called on fresh arrays."""
    run = pb.jit(lambda a, b: pb.tanh(a @ b.T))
    a = _data(16, WIDTH)
    return lambda: run(a + 1, a).numpy()


def eager() -> Step:
    """Operations on tensors."""
    a = _data(16, WIDTH)

    def step() -> float:
        x = pb.tensor(a)
        y = pb.softmax(x @ x.T, axis=1) + pb.sum(x, axis=1, keepdims=True)
        return float(pb.sum(y).item())

    return step


def gradients() -> Step:
    """`pb.grad` from NumPy, and of a definition as text."""
    slope = pb.grad(lambda x: pb.sum(pb.sin(x) * x))
    a = _data(16, WIDTH)

    def step() -> object:
        x = pb.tensor(a)
        y = pb.define("s = sum[i, j](x[i, j] * exp(x[i, j]))", x=x)
        return slope(a), pb.grad(y, x).numpy()

    return step


def feeding() -> Step:
    """A loop with a feeder and a receiver, five steps a call."""
    a, seen = _data(8, WIDTH), [0.0]
    state = pb.State(pb.zeros((8, WIDTH)))

    def receive(total: Any) -> None:
        seen[0] = float(total)

    @pb.jit
    def run() -> None:
        def body() -> None:
            x = pb.Feeder(lambda: a * 2.0, shape=(8, WIDTH), dtype="float32")
            state.assign(state * 0.5 + x)
            pb.Receiver(receive, [pb.sum(state)])

        pb.loop(5, body)

    return run


def errors() -> Step:
    """Calls that are refused, and texts."""
    x = pb.tensor(_data(4, 5))

    def step() -> None:
        for wrong in (lambda: x @ x, lambda: pb.define("y[i] = x[i]", x=x)):
            try:
                wrong()
            except PullbackError:
                continue
            raise AssertionError("it was not refused")

    return step


KINDS = {
    "compiled training": training,
    "eager training": eager_training,
    "calls": calls,
    "eager operations": eager,
    "gradients": gradients,
    "feeders and receivers": feeding,
    "errors": errors,
}


def steps(count: int, seed: int, tell: Tell = silent, most: float = MOST) -> Found:
    """`count` steps of every kind; each may grow the process by 1 % after the first tenth."""
    found = Found()
    for name, make in KINDS.items():
        before, more, blocks = grown(make(), count, lambda done: tell(found.count + done))
        found.count += count
        found.note(f"{name}: bytes more of {before:,}", more)
        if more > most * before or blocks > BLOCKS * count:
            found.wrong.append(f"{name}: {more:,} bytes more of {before:,}, {blocks:,} blocks")
    return found


def grown(step: Step, count: int, tell: Tell = silent) -> tuple[int, int, int]:
    """Bytes after a tenth of the steps; bytes and blocks that come to them by the end."""
    first = count // 10
    for _ in range(first):
        step()
    before, blocks = held()
    for done in range(first, count):
        step()
        if done % 100 == 0:
            tell(done)
    after, most = held()
    return before, after - before, most - blocks
