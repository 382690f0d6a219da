"""Training of a daten program: its steps are one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pullback import nn
from pullback.daten.model import Array, Model
from pullback.errors import StateError, SyntaxFormError
from pullback.nn.base.parameter import label
from pullback.optim import SGD, Adam, AdamW, RMSprop
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.control import loop
from pullback.tensor.library.creation import asarray
from pullback.tensor.run.host import Feeder, Receiver
from pullback.tensor.run.program import jit

MOST_STEPS = 10**9
OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}


@dataclass(frozen=True, slots=True)
class Settings:
    """How a program is trained; `batch`: rows of data a step, all of them where it is 0."""

    optimizer: str = "sgd"
    lr: float = 0.1
    steps: int = 100
    batch: int = 0


def settings_of(model: Model, **given: Any) -> Settings:
    """What the section `train:` says, and what is given instead. Raises: SyntaxFormError."""
    own = Settings()
    known = list(Settings.__dataclass_fields__)
    for name, (text, origin) in model.text.settings.items():
        if name not in known:
            help = f"these are known: {', '.join(known)}"
            what = f"no setting is called {name}"
            raise SyntaxFormError(what, origin=origin, help=help, code="E558")
        kind = type(getattr(own, name))
        try:
            value = kind(text)
            right = _right(replace(own, **{name: value}))
        except ValueError:
            right = False
        if not right:
            help = f"{', '.join(OPTIMIZERS)}" if name == "optimizer" else "a number above 0"
            what = f"{name} = {text} is none"
            raise SyntaxFormError(what, origin=origin, help=help, code="E558")
        own = replace(own, **{name: value})
    own = replace(own, **{n: v for n, v in given.items() if v is not None})
    if not _right(own):
        raise StateError(f"{own}: no such training", help=", ".join(OPTIMIZERS), code="E559")
    return own


def _right(own: Settings) -> bool:
    small = 0 < own.steps <= MOST_STEPS and 0 <= own.batch < 2**31 and 0 < own.lr < float("inf")
    return own.optimizer in OPTIMIZERS and small


def train(
    model: Model,
    settings: Settings,
    data: Mapping[str, Any],
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Losses of all steps; marked parameters are trained in place. `told`: each step, its loss.

    Data of ``batch = n`` is read in pieces of n rows, in order, again from the first when less
    than n are left.

    Raises: StateError for data that does not fit, GradientError for what is no loss.
    """
    marked = model.marked()
    pieces = Pieces(model, settings.batch, data)
    given = model.bound(model.goal(), {**data, **pieces.first})
    fixed = {n: a for n, a in given.items() if n not in pieces.first and n not in marked}
    own = {name: nn.Parameter(asarray(given[name])) for name in marked}
    for name, parameter in own.items():
        label(parameter, name)
    optimizer = OPTIMIZERS[settings.optimizer](list(own.values()), lr=settings.lr)
    losses: list[float] = []

    def seen(loss: Array) -> None:
        losses.append(float(loss))
        told(len(losses), losses[-1])

    def program(**held: Tensor) -> None:
        def step() -> None:
            made = model.evaluated({**held, **own, **pieces.fed()}, model.goal())
            loss = model.minimised(made)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            Receiver(seen, [loss])

        loop(range(settings.steps), step)

    function = jit(program, options=model.options)
    function(**fixed)
    model.program = function.program
    model.values |= {name: p.numpy() for name, p in own.items()}
    return losses


class Pieces:
    """Rows of what is fed, `batch` at a time. `first`: the first piece by name."""

    def __init__(self, model: Model, batch: int, data: Mapping[str, Any]) -> None:
        self.first: dict[str, Array] = {}
        self.arrays: dict[str, Array] = {}
        self.batch = batch
        if not batch or not data:
            return
        rows: dict[int, str] = {}
        for name in data:
            if name in model.text.parameters:
                continue
            array = model.given(name, data)
            count = array.shape[0] if array.ndim else 0
            rows.setdefault(count, name)
            self.arrays[name] = array
        if len(rows) > 1:
            said = ", ".join(f"{name} has {count}" for count, name in rows.items())
            raise StateError(f"data of different numbers of rows: {said}", code="E559")
        self.rows = next(iter(rows), 0)
        if self.rows < batch:
            what = f"{self.rows} rows of data, and {batch} a step"
            raise StateError(what, help="a smaller batch", code="E559")
        self.first = {name: array[:batch] for name, array in self.arrays.items()}
        self.next = self.batches()

    def batches(self) -> Iterator[tuple[Array, ...]]:
        while True:
            for start in range(0, self.rows - self.batch + 1, self.batch):
                yield tuple(a[start : start + self.batch] for a in self.arrays.values())

    def fed(self) -> dict[str, Tensor]:
        """Tensors of the next piece, by name, in a trace."""
        if not self.first:
            return {}
        shapes = tuple(a.shape for a in self.first.values())
        kinds = tuple(str(a.dtype) for a in self.first.values())
        made = Feeder(lambda: next(self.next), shape=shapes, dtype=kinds)
        return dict(zip(self.first, made, strict=True))
