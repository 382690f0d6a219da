"""What a workload is: data, the same maths once for each system, and how much work it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

Arrays = list[np.ndarray]
Range = tuple[int, int, int]  # least, most, multiple


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


@dataclass(frozen=True)
class Workload:
    """Sizes are the fields of a subclass; `ranges` are those that drawn sizes come from.

    Each system has a method of its name, with the system's own functions `s`.
    """

    title: ClassVar[str] = ""
    ranges: ClassVar[dict[str, Range]] = {}
    tolerance: ClassVar[float] = 1e-3

    @property
    def sizes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def name(self) -> str:
        """``softmax 4096x1024``; text among the sizes follows, without those that are empty."""
        numbers = [str(v) for v in self.sizes.values() if type(v) is int]
        words = [str(v) for v in self.sizes.values() if isinstance(v, str) and v]
        return " ".join([self.title, "x".join(numbers), *words]).replace("  ", " ")

    def drawn(self, rng: np.random.Generator) -> Workload:
        """The same with other sizes, evenly drawn by their logarithms."""
        return replace(self, **{k: _draw(rng, *v) for k, v in self.ranges.items()})

    def flops(self) -> float:
        """Operations that any algorithm of this kind does; 0: memory is the limit."""
        return 0.0


def _draw(rng: np.random.Generator, least: int, most: int, multiple: int) -> int:
    found = math.exp(rng.uniform(math.log(least), math.log(most)))
    return max(least, round(found / multiple) * multiple)


@dataclass(frozen=True)
class Operation(Workload):
    """A function of arrays. `part`: "" for the function, "both" for its value and its gradients by
    the inputs `wrt` for a given head, "gradients" for these alone (of functions linear in each).
    """

    wrt: ClassVar[tuple[int, ...]] = (0,)
    dtype: ClassVar[str] = "float32"

    @property
    def part(self) -> str:
        return str(self.sizes.get("way", ""))

    @property
    def by(self) -> tuple[int, ...]:
        """The inputs that gradients are asked of."""
        return self.wrt

    def data(self, rng: np.random.Generator) -> Arrays:
        raise NotImplementedError


@dataclass(frozen=True)
class Training(Workload):
    """Steps of an optimiser from the same weights on the same batch.

    `model(s)` and `loss(s, model, *batch)` are one text for pullback and PyTorch, whose modules
    have the same names; `jax(s, p, *batch)` is the loss with the weights `p` under these names.
    """

    optimiser: ClassVar[str] = "sgd"
    rate: ClassVar[float] = 0.01
    random: ClassVar[bool] = False  # losses agree only roughly: dropout

    @property
    def steps(self) -> int:
        """Steps of one measured call."""
        return 1

    @property
    def moments(self) -> int:
        """Arrays of the size of the weights that outlive a step, the weights among them."""
        return 3 if self.optimiser == "adamw" else 1

    def batch(self, rng: np.random.Generator) -> Arrays:
        raise NotImplementedError

    def model(self, s: Any) -> Any:
        raise NotImplementedError

    def loss(self, s: Any, model: Any, *batch: Any) -> Any:
        raise NotImplementedError


def weights(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """The weights that all start from: norms near 1, matrices of a variance that keeps scales."""
    rng = np.random.default_rng(7)
    found = {}
    for name in sorted(shapes):
        shape = shapes[name]
        values = normal(rng, *shape)
        if len(shape) > 1:
            found[name] = values / np.float32(math.sqrt(math.prod(shape[1:])))
        else:
            found[name] = values * np.float32(0.05) + np.float32(name.endswith("weight"))
    return found
