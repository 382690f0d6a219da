"""The recipe of `pullback train`, as data that a checkpoint carries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pullback.errors import MALFORMED, StateError
from pullback.nn.sequence.gpt import GPTConfig
from pullback.optim import schedules
from pullback.optim.schedules import Schedule

WARMUP = 60  # steps, at most a tenth of all
BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.5  # of matrices; biases and norms are not decayed


class RunError(StateError):
    """What the command line was given does not fit the run it is to go on with."""

    placed = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run depends on, the text excepted."""

    steps: int = 700
    layers: int = 4
    dim: int = 128
    heads: int = 4
    context: int = 64
    batch: int = 16
    lr: float = 4e-3
    seed: int = 0

    def model(self, vocabulary: int) -> GPTConfig:
        """Sizes of the model."""
        return GPTConfig(vocabulary, self.context, self.layers, self.dim, self.heads)

    def schedule(self) -> Schedule:
        """A short warm-up, then a straight line to 0 at the last step."""
        warm = max(1, min(WARMUP, self.steps // 10))
        rest = max(1, self.steps - warm)
        return schedules.warmup(warm) + schedules.linear(1.0, 0.0, rest)

    def changed(self, **given: Any) -> Settings:
        """The same with other values; None is no change."""
        return replace(self, **{k: v for k, v in given.items() if v is not None})

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def parse(text: str) -> Settings:
    """The inverse of `dump`. Raises: RunError where it is not."""
    try:
        settings = json.loads(text)
        kinds = {f.name: type(getattr(Settings(), f.name)) for f in fields(Settings)}
        made = Settings(**{name: kinds[name](value) for name, value in settings.items()})
    except MALFORMED as error:
        raise RunError(f"the checkpoint's settings cannot be read: {error}", code="E336") from error
    for name, value in asdict(made).items():
        if value < (0 if name in ("lr", "seed") else 1):
            what = f"the checkpoint's settings cannot be read: {name} is {value}"
            raise RunError(what, code="E336")
    return made
