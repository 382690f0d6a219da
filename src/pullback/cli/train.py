"""Training a character model as one compiled program, and writing text with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pullback import nn
from pullback.cli import checkpoint
from pullback.cli.display import Display
from pullback.cli.settings import BETAS, WEIGHT_DECAY, Settings
from pullback.cli.text import IGNORED, Text, batch, windows
from pullback.config import Options
from pullback.distributed.collectives import all_reduce
from pullback.distributed.group import Group
from pullback.distributed.parallel import DataParallel
from pullback.distributed.sharded import Sharded, sharded
from pullback.ir import expr as E
from pullback.ir.expr import Add, If
from pullback.nn.base.build import at, make
from pullback.nn.base.parameter import Buffer, as_tensor
from pullback.optim import AdamW, Optimizer
from pullback.runtime.executable import Executable
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.control import cond, loop
from pullback.tensor.library import maths, ops, random
from pullback.tensor.run.host import Feeder, Receiver
from pullback.tensor.run.program import Jit, jit

Array = np.ndarray[Any, Any]


def make_model(settings: Settings, vocabulary: int) -> nn.GPT:
    """A fresh model, drawn from the seed."""
    random.manual_seed(settings.seed)
    return nn.GPT(settings.model(vocabulary))


def make_optimizer(model: nn.Module, settings: Settings) -> AdamW:
    """AdamW that decays matrices only, with the schedule inside the step."""
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if len(p.shape) > 1]},
        {"params": [p for p in parameters if len(p.shape) <= 1], "weight_decay": 0.0},
    ]
    return AdamW(
        groups,
        lr=settings.lr,
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
        schedule=settings.schedule(),
    )


@dataclass(eq=False)
class Run:
    """A model in training. `losses` and `times` (seconds) are those of this process's steps,
    of which number `first` was the first. `timed`: launches are timed. `program`: as it ran.
    `every`: steps between two checkpoints, 0 for none before the end. `group`: each of its ranks
    has its part of every batch; after `share` perhaps of the optimiser's states, too.
    """

    text: Text
    settings: Settings
    model: nn.GPT
    opt: Optimizer
    display: Display
    folder: Path
    first: int = 0
    losses: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    checked: list[float] = field(default_factory=list)
    timed: bool = False
    program: Executable | None = None
    every: int = 0
    group: Group = field(default_factory=Group)
    parallel: DataParallel | None = None

    @property
    def done(self) -> int:
        """Steps taken, those before a resume included."""
        return int(self.opt.steps.item())

    def share(self, group: Group, shard: bool) -> None:
        """Train with the other ranks of a group; `shard`: states in parts."""
        self.group = group
        self.parallel = DataParallel(self.model, group=group)
        if shard:
            self.opt = sharded(self.opt, self.parallel)

    def build(self, steps: int, validate: bool) -> Jit[..., Any]:
        """Training steps and perhaps the validation, as one program."""
        group = self.group
        shape = (self.settings.batch // group.size, self.settings.context)
        batches = self._batches()
        checks = self._checks(*shape) if validate else []
        waiting = iter(checks)
        parallel = self.parallel or DataParallel(self.model, group=group)
        pair: dict[str, Any] = {"shape": (shape, shape), "dtype": ("int32", "int32")}

        def step() -> None:
            tokens, targets = Feeder(lambda: next(batches), **pair)
            self.opt.zero_grad()
            with parallel.sharing():
                loss = self.model.loss(tokens, targets)
            seen = all_reduce(loss, "mean", group=group)
            loss.backward()
            self.opt.step()
            Receiver(self._stepped, [seen])
            if self.every and isinstance(
                self.opt, Sharded
            ):  # what gathers the states runs then only
                due = self.opt.steps % self.every == 0
                cond(due, lambda: self._keep(1), lambda: None)
            elif self.every:
                self._keep(self.every)

        def check() -> None:
            tokens, targets = Feeder(lambda: next(waiting), **pair)
            loss = self.model.loss(tokens, targets, IGNORED, "sum")
            whole = all_reduce(loss, group=group)
            Receiver(lambda loss_now: self.checked.append(float(loss_now)), [whole])

        def train() -> None:
            loop(range(steps), step)
            if checks:
                loop(range(len(checks)), check)

        options = Options.from_environment()
        return Jit(train, options=replace(options, profile=options.profile or self.timed))

    def _batches(self) -> Iterator[tuple[Array, Array]]:
        s, group = self.settings, self.group
        own = slice(group.rank * s.batch // group.size, (group.rank + 1) * s.batch // group.size)
        for number in range(self.done, s.steps):
            tokens, targets = batch(self.text.train, number, s.seed, s.batch, s.context)
            yield tokens[own], targets[own]

    def _checks(self, size: int, context: int) -> list[tuple[Array, Array]]:
        """This rank's part of the validation, as many batches on each rank."""
        checks = windows(self.text.valid, size, context)
        nothing = np.zeros((size, context), np.int32), np.full((size, context), IGNORED, np.int32)
        checks += [nothing] * (-len(checks) % self.group.size)
        return checks[self.group.rank :: self.group.size]

    def _keep(self, every: int) -> None:
        """A checkpoint of this place in the program, each `every`-th time; rank 0 writes it."""
        state = checkpoint.contents(self.model, self.opt)
        names = list(state)

        def write(*arrays: Array) -> None:
            if self.group.rank == 0:
                kept = dict(zip(names, arrays, strict=True))
                checkpoint.write(self.folder, kept, self.settings, self.text.characters)

        Receiver(write, list(state.values()), every=every, depth=1)

    def _stepped(self, loss: Array) -> None:
        self.losses.append(float(loss))
        self.times.append(time.perf_counter())
        self.display.step(self.first + len(self.losses), self.losses[-1])

    def execute(self) -> float:
        """Train to the end; the validation loss, nats per character."""
        self.first = self.done
        self._run(self.build(self.settings.steps - self.first, validate=True))
        return sum(self.checked) / (len(self.text.valid) - 1)

    def train_steps(self, count: int) -> None:
        """Only train, `count` steps."""
        self.first = self.done
        self._run(self.build(count, validate=False))

    def _run(self, program: Jit[..., Any]) -> None:
        try:
            program()
        finally:
            self.program = None if program.last is None else program.program

    def save(self) -> None:
        """Everything up to the last whole step; one of the ranks writes it."""
        if self.group.rank and not isinstance(self.opt, Sharded):
            return
        state = checkpoint.contents(self.model, self.opt)
        if not self.group.rank:
            checkpoint.write(self.folder, state, self.settings, self.text.characters)


def write(model: nn.GPT, text: Text, length: int, seed: int, heat: float = 0.8) -> str:
    """`length` characters that follow the beginning of the validation text, as one program."""
    context = model.config.context
    start = np.zeros((1, context), np.int32)
    prompt = text.valid[:context]
    start[0, context - len(prompt) :] = prompt
    window = Buffer(as_tensor(start))
    tokens: list[int] = []

    def step() -> None:
        token = drawn(model(window), heat)
        window.assign(shifted(window, token))
        Receiver(lambda t: tokens.append(int(t)), [token])

    @jit
    def program() -> None:
        loop(range(length), step)

    random.manual_seed(seed)
    program()
    return text.decode(np.array(tokens, np.int32))


def drawn(logits: Tensor, heat: float) -> Tensor:
    """A token drawn from ``softmax(logits / heat)`` of the last position: the largest of
    ``logits / heat - log(-log u)``.
    """
    last = logits[0, -1]
    noise = maths.log(maths.negative(maths.log(random.uniform(last.shape, 1e-7, 1.0))))
    token: Tensor = ops.argmax(last / heat - noise)
    return token


def shifted(window: Tensor, token: Tensor) -> Tensor:
    """The window one place on, with `token` at its end."""
    value, new = window.value, token.value
    last = E.index(E.upper(value.shape[1]) - 1)

    def body(row: E.Expr, place: E.Expr) -> E.Expr:
        after = at(value, row, Add(place, E.index(1)))
        return If(E.Less(place, last), after, E.Cast(at(new), value.dtype))

    return make("window", value.shape, body)
