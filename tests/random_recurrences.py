"""Random tensors that read themselves, against loops over their cells; gradients by differences.

One or two tensors of one to three axes. A random order of nested loops, some axes backwards, says
which cells are older; reads go to such cells, under guards, through linear and other functions.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import pullback as pb

Array = np.ndarray[Any, Any]
STEP = 1e-6
OUTSIDE = 0.25  # what a read beyond the border is
SMOOTH: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda v: v, lambda v: v),
    (pb.sin, np.sin),
    (lambda v: 0.1 * v * v, lambda v: 0.1 * v * v),
    (pb.tanh, np.tanh),
]


@dataclass(frozen=True)
class Read:
    """``weight * function(tensor[cell - distance])``, for the cells of tensor `reader`."""

    reader: int
    source: int
    distance: tuple[int, ...]
    weight: float
    function: int


class Case:
    """A recurrence by its number."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        self.shape = tuple(int(n) for n in rng.integers(1, 6 if rank < 3 else 4, rank))
        self.tensors = int(rng.integers(1, 3))
        self.nested = [int(a) for a in rng.permutation(rank)]
        self.sign = [int(s) for s in rng.choice([-1, 1], rank)]
        self.reads = [r for m in range(self.tensors) for r in self.drawn(m, rng)]
        self.x = rng.normal(size=self.shape)
        self.scale = rng.normal(size=self.shape[0])
        self.along = [rng.normal(size=self.shape), rng.normal(size=self.shape[0])]

    def drawn(self, reader: int, rng: np.random.Generator) -> list[Read]:
        """Reads of older cells; the second tensor may read the first at the same one."""
        found = []
        for _ in range(int(rng.integers(1, 4))):
            distance = [0] * len(self.shape)
            first = int(rng.integers(0, len(self.shape)))
            for place, axis in enumerate(self.nested[first:]):
                some = int(rng.integers(-1, 2) * rng.integers(0, 3))
                distance[axis] = some if place else int(self.sign[axis] * rng.integers(1, 3))
            source, function = int(rng.integers(0, self.tensors)), int(rng.integers(0, len(SMOOTH)))
            weight = float(rng.uniform(-0.5, 0.5))
            found.append(Read(reader, source, tuple(distance), weight, function))
        if reader and rng.random() < 0.5:
            found.append(Read(reader, 0, (0,) * len(self.shape), 0.3, 0))
        return found

    # --- by pullback

    def tensors_of(self, x: Any, scale: Any) -> tuple[Any, ...]:
        rank = len(self.shape)

        def cells(*given: Any) -> tuple[Any, ...]:
            itself, place = given[: self.tensors], given[self.tensors :]
            return tuple(self.cell(m, itself, place, x, scale) for m in range(self.tensors))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [f"f{m}" for m in range(self.tensors)] + [f"i{n}" for n in range(rank)]
        cells.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        return tuple(_listed(pb.recurrence(self.shape, cells)))

    def cell(self, m: int, itself: Sequence[Any], place: Sequence[Any], x: Any, scale: Any) -> Any:
        total = x[tuple(place)] * (1 + m)
        for read in (r for r in self.reads if r.reader == m):
            at = tuple(i - d for i, d in zip(place, read.distance, strict=True))
            value = SMOOTH[read.function][0](itself[read.source][at]) * read.weight
            value = value * scale[place[0]] if read.function == 1 else value
            for i, d, extent in zip(place, read.distance, self.shape, strict=True):
                if d:
                    value = pb.where(i >= d if d > 0 else i - d < extent, value, OUTSIDE)
            total = total + value
        return total

    def loss(self, x: Any, scale: Any) -> Any:
        return sum(pb.sum(pb.sin(t) * (n + 1)) for n, t in enumerate(self.tensors_of(x, scale)))

    # --- by loops

    def by_cells(self, x: Array, scale: Array) -> list[Array]:
        found = [np.zeros(self.shape) for _ in range(self.tensors)]
        ranges = [range(self.shape[a])[:: self.sign[a]] for a in self.nested]
        for moved in itertools.product(*ranges):
            place = tuple(n for _, n in sorted(zip(self.nested, moved, strict=True)))
            for m in range(self.tensors):
                found[m][place] = self.number(m, found, place, x, scale)
        return found

    def number(
        self, m: int, found: Sequence[Array], place: tuple[int, ...], x: Array, scale: Array
    ) -> float:
        total = x[place] * (1 + m)
        for read in (r for r in self.reads if r.reader == m):
            at = tuple(i - d for i, d in zip(place, read.distance, strict=True))
            if all(0 <= i < n for i, n in zip(at, self.shape, strict=True)):
                value = SMOOTH[read.function][1](found[read.source][at]) * read.weight
                total += value * scale[place[0]] if read.function == 1 else value
            else:
                total += OUTSIDE
        return float(total)

    def moved(self, step: float) -> float:
        """The loss, inputs moved by so much."""
        given = [a + step * v for a, v in zip((self.x, self.scale), self.along, strict=True)]
        cells = self.by_cells(*given)
        return float(sum(np.sum(np.sin(t)) * (n + 1) for n, t in enumerate(cells)))


def check_recurrence(seed: int, backend: str = "llvm") -> bool:
    """Values and gradients, in a program and outside of one."""
    case = Case(seed)
    options = pb.Options(backend=backend)
    made = pb.jit(lambda x, s: [*case.tensors_of(x, s)], options=options)
    for found, wanted in zip(
        made(case.x, case.scale), case.by_cells(case.x, case.scale), strict=True
    ):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-10, atol=1e-10)
    derived = pb.jit(pb.grad(case.loss, argnums=(0, 1)), options=options)(case.x, case.scale)
    slope = (case.moved(STEP) - case.moved(-STEP)) / (2 * STEP)
    terms = [np.asarray(g) * v for g, v in zip(derived, case.along, strict=True)]
    scale = 1 + sum(float(np.abs(t).sum()) for t in terms)
    assert abs(slope - sum(float(t.sum()) for t in terms)) <= 1e-6 * scale
    if backend == "llvm" and seed % 4 == 0:
        eager = pb.grad(case.loss, argnums=(0, 1))(pb.tensor(case.x), pb.tensor(case.scale))
        for a, b in zip(eager, derived, strict=True):
            np.testing.assert_allclose(a.numpy(), np.asarray(b), rtol=1e-9, atol=1e-9)
    return True


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple | list) else (found,)
