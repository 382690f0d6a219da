"""An operation that no library has, with its gradients: what a user compiles by himself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.workload import Arrays, Operation, normal


@dataclass(frozen=True)
class Bilateral(Operation):
    """``y[i, j] = sum[a] w[a] x[i, j+a] exp(-(x[i, j+a] - x[i, j+r])^2)``, 2 r + 1 taps."""

    title = "custom operation"
    ranges = {"rows": (64, 2048, 1), "columns": (64, 2048, 1)}
    wrt = (0, 1)
    rows: int = 256
    columns: int = 256
    reach: int = 4
    way: str = "both"

    def data(self, rng: np.random.Generator) -> Arrays:
        taps = 2 * self.reach + 1
        return [normal(rng, self.rows, self.columns + taps - 1), normal(rng, taps)]

    def pullback(self, s: Any, x: Any, w: Any) -> Any:
        pb, r = s.x, self.reach
        a = pb.axis(2 * r + 1)

        def at(i: Any, j: Any) -> Any:
            apart = x[i, j + a] - x[i, j + r]
            return pb.sum(w[a] * x[i, j + a] * pb.exp(-apart * apart), over=a)

        return pb.compute((self.rows, self.columns), at)

    def torch(self, s: Any, x: Any, w: Any) -> Any:
        """Windows as a view, so that nothing is copied."""
        windows = x.unfold(1, 2 * self.reach + 1, 1)
        apart = windows - x[:, self.reach : self.reach + self.columns, None]
        return (w * windows * s.x.exp(-apart * apart)).sum(-1)

    def jax(self, s: Any, x: Any, w: Any) -> Any:
        taps = range(2 * self.reach + 1)
        windows = s.x.stack([x[:, a : a + self.columns] for a in taps], -1)
        apart = windows - x[:, self.reach : self.reach + self.columns, None]
        return (w * windows * s.x.exp(-apart * apart)).sum(-1)


WORKLOADS = (Bilateral(),)
