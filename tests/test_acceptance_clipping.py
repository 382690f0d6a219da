"""Clipping by a global norm: each gradient kernel sums its own squares, the updates are one launch.

Counted beside the same step without clipping; values beside NumPy, PyTorch and one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from acceptance_support import (
    TWO_THREADS,
    Array,
    arrays,
    from_torch,
    normal,
    rng,
    step_kernels,
    torch,
)
from pullback import nn, optim
from pullback.config import Options
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel, stage_reads
from pullback.memory.plan import check
from pullback.nn.base.parameter import Parameter
from pullback.runtime.executable import Executable

Opt = Callable[[Iterator[Parameter]], optim.Optimizer]
OPTIMISERS: dict[str, Opt] = {
    "SGD": lambda p: optim.SGD(p, lr=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
}
MOST = 0.5  # the norm that gradients are clipped to


def encoder(layers: int) -> nn.Module:
    pb.random.manual_seed(1)
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers)


def trained(
    model: nn.Module, make: Opt, x: Array, clip: bool = True, options: Options = TWO_THREADS
) -> Executable:
    """Three steps on ``mean(model(x)^2)``."""
    opt = make(model.parameters())
    given = pb.tensor(x)

    def step() -> None:
        opt.zero_grad()
        (model(given) ** 2).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), MOST)
        opt.step()

    @pb.jit(options=options)
    def train() -> None:
        pb.loop(range(3), step)

    train()
    check(train.program.memory.placed)
    return train.program


def updates_of(program: Executable) -> tuple[Kernel, list[Kernel]]:
    """The one kernel of a step that writes tensors which outlive it, and the others."""
    state = {v for v in program.program.state if v.shape}
    kernels = step_kernels(program)
    found = [k for k in kernels if state.intersection(k.writes)]
    assert len(found) == 1, [k.name for k in found]
    return found[0], [k for k in kernels if k is not found[0]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "layers"), [*((n, 1) for n in OPTIMISERS), ("AdamW", 3)])
def test_the_updates_of_an_encoder_are_one_launch(name: str, layers: int) -> None:
    x = normal(2, 5, 32)
    plain = trained(encoder(layers), OPTIMISERS[name], x, clip=False)
    model = encoder(layers)
    program = trained(model, OPTIMISERS[name], x)
    updates, rest = updates_of(program)
    parameters = list(model.parameters())
    assert len(parameters) == 12 * layers == len(updates.parts)
    before = len(step_kernels(plain))
    assert len(rest) + 1 <= before + 2, "a scalar combine and the updates, no more"
    assert program.launches == 3 * (len(rest) + 1)
    assert own_sums(program, updates, rest) == len(parameters)
    size = sum(4 * math.prod(p.shape) for p in parameters)
    assert program.memory.arena_bytes <= plain.memory.arena_bytes + size


def own_sums(program: Executable, updates: Kernel, rest: list[Kernel]) -> int:
    """How many gradients the updates read, each with its square sum in its own kernel."""
    state = set(program.program.state)
    gradients = [v for v in updates.reads if v not in state and v.shape and v.name != "rates"]
    for gradient in gradients:
        readers = [k.name for k in rest if gradient in k.reads]
        assert not readers, "its square sum is not in its own kernel"
        assert sum(_squares(k, gradient) for k in rest) == 1
    return len(gradients)


def _squares(kernel: Kernel, gradient: Variable) -> int:
    """How many stages of a kernel take one number of what it stores in `gradient`."""
    made = {s.target for s in kernel.every if s.store is gradient}
    sums = [s for s in kernel.every if not s.shape]
    return sum(any(t.source in made for t in stage_reads(s)) for s in sums)


def _numpy_steps(w: list[Array], x: Array, r: Array, steps: int) -> list[Array]:
    """AdamW on ``sum(tanh(x a.T + b) c.T * r)`` under a clipped norm, float64."""
    w = [a.astype(np.float64) for a in w]
    m = [np.zeros_like(a) for a in w]
    v = [np.zeros_like(a) for a in w]
    for t in range(1, steps + 1):
        a, b, c = w
        h = np.tanh(x @ a.T + b)
        down = (r @ c) * (1 - h**2)
        grads = [down.T @ x, down.sum(0), r.T @ h]
        norm = math.sqrt(sum((g**2).sum() for g in grads))
        assert norm > MOST, "nothing would be clipped"
        for n, g in enumerate(grads):
            g = g * min(1.0, MOST / (norm + 1e-6))
            m[n] = 0.9 * m[n] + 0.1 * g
            v[n] = 0.999 * v[n] + 0.001 * g * g
            step = m[n] / (1 - 0.9**t) / (np.sqrt(v[n] / (1 - 0.999**t)) + 1e-3)
            w[n] = w[n] * (1 - 0.01 * 0.01) - 0.01 * step
    return w


def test_clipped_steps_equal_numpy() -> None:
    x, r = normal(7, 13, seed=1), normal(7, 5, seed=2)
    w = [normal(9, 13, seed=3, scale=0.3), normal(9, seed=4), normal(5, 9, seed=5)]
    owners = [nn.Parameter(a) for a in w]
    opt = optim.AdamW(owners, lr=0.01, eps=1e-3)
    given, weights = pb.tensor(x), pb.tensor(r)

    def step() -> None:
        opt.zero_grad()
        a, b, c = owners
        (pb.tanh(given @ a.mT + b) @ c.mT * weights).sum().backward()
        nn.utils.clip_grad_norm_(owners, MOST)
        opt.step()

    train = pb.jit(lambda: pb.loop(range(5), step), options=TWO_THREADS)
    train()
    for found, wanted in zip(arrays(owners), _numpy_steps(w, x, r, 5), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def wide() -> nn.Module:
    """Parameters of several sizes: enough work for many tasks."""
    pb.random.manual_seed(2)
    parts = [nn.Linear(400, 510), nn.Tanh(), nn.Linear(510, 300), nn.Tanh(), nn.Linear(300, 7)]
    return nn.Sequential(*parts)


@pytest.mark.slow
def test_one_thread_and_two_give_the_same_bits() -> None:
    x = normal(33, 400, seed=3)
    found = []
    for threads in (1, 2):
        model = wide()
        program = trained(
            model, OPTIMISERS["AdamW"], x, options=replace(TWO_THREADS, threads=threads)
        )
        updates_of(program)
        found.append(arrays(list(model.parameters())))
        assert program.barriers == 0 if threads == 1 else program.barriers > 3
    for one, two in zip(*found, strict=True):
        assert one.tobytes() == two.tobytes()


@pytest.mark.slow
def test_a_recorded_program_has_its_parts(tmp_path: Path) -> None:
    options = Options(threads=2, cache=tmp_path)
    found = []
    for _ in range(2):
        model = encoder(1)
        program = trained(model, OPTIMISERS["AdamW"], normal(2, 5, 32), options=options)
        found.append((program.launches, arrays(list(model.parameters()))))
    assert program.stats.compiled == 0
    assert found[0][0] == found[1][0]
    for one, two in zip(found[0][1], found[1][1], strict=True):
        assert one.tobytes() == two.tobytes()


def test_clipped_gradients_over_a_symbolic_extent() -> None:
    n = pb.dim("n", 1, 64)

    def clipped(x: Any, y: Any) -> Any:
        gradients = pb.grad((pb.exp(x) * pb.sum(y * y)).sum(), [x, y])
        scale = 1 / pb.sqrt(sum(pb.sum(g * g) for g in gradients))
        return [g * scale for g in gradients]

    f = pb.jit(clipped, shapes=[(n, 300), (n,)], options=TWO_THREADS)
    for size in (1, 7, 64):
        x, y = normal(size, 300, seed=size), normal(size, seed=size + 1)
        wanted = [np.exp(x) * (y @ y), 2 * y * np.exp(x).sum()]
        norm = math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in wanted))
        for found, gradient in zip(arrays(f(x, y)), wanted, strict=True):
            np.testing.assert_allclose(found, gradient / norm, rtol=1e-4, atol=1e-6)
    assert f.traces == 1
    assert any(k.parts for k in f.program.kernels)


def test_an_embedding_is_clipped_too() -> None:
    pb.random.manual_seed(3)
    model = nn.Sequential(nn.Embedding(200, 48), nn.Linear(48, 3))
    table, weight, bias = (p.numpy() for p in model.parameters())
    places = rng(4).integers(0, 200, (10, 15))
    r = normal(10, 15, 3, seed=5)
    opt = optim.SGD(model.parameters(), lr=0.1)

    @pb.jit(options=TWO_THREADS)
    def train(places: Any, r: Any) -> None:
        opt.zero_grad()
        (model(places) * r).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), MOST)
        opt.step()

    train(places, r)
    owned = [k for k in train.program.kernels if set(train.program.program.state) & set(k.writes)]
    assert len(owned) == 1
    rest = [k for k in train.program.kernels if k is not owned[0]]
    assert own_sums(train.program, owned[0], rest) == 3
    places, r = places.ravel(), r.reshape(150, 3)
    grads = [np.zeros_like(table), r.T @ table[places], r.sum(0)]
    np.add.at(grads[0], places, r @ weight)
    norm = math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
    for p, old, g in zip(model.parameters(), (table, weight, bias), grads, strict=True):
        np.testing.assert_allclose(p.numpy(), old - 0.1 * g * MOST / norm, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_clipped_training_equals_torch() -> None:
    library = torch()
    layer = library.nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    theirs = library.nn.TransformerEncoder(layer, 2)
    ours = encoder(2)
    ours.load_state_dict(from_torch(theirs.state_dict()))
    x = normal(2, 5, 32)
    trained(ours, lambda p: optim.AdamW(p, lr=0.01, eps=1e-4), x)
    opt = library.optim.AdamW(theirs.parameters(), lr=0.01, eps=1e-4)
    for _ in range(3):
        opt.zero_grad()
        (theirs(library.from_numpy(x)) ** 2).mean().backward()
        library.nn.utils.clip_grad_norm_(theirs.parameters(), MOST)
        opt.step()
    for found, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=1e-4)
