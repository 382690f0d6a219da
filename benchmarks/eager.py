"""What one small eager operation costs, its result read: pullback, NumPy, PyTorch, JAX, all warm.

`python benchmarks/eager.py` prints a table of processor microseconds: the median of 15 rounds, the
libraries in turn, each round the mean of 200 calls. One thread.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import pullback as pb

ROUNDS, CALLS = 15, 200
X = np.linspace(0.1, 1.0, 100, dtype=np.float32)
A = np.ones((10, 10), np.float32)
Case = Callable[[Any, Any], Any]


def chain(x: Any, a: Any) -> Any:
    """500 operations, one after the other."""
    y = x
    for _ in range(250):
        y = (y + x) * 0.5
    return y


def numpy_softmax(x: Any, a: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


CASES: dict[str, dict[str, Case]] = {
    "`x + x`": dict.fromkeys(("pullback", "NumPy", "PyTorch", "JAX"), lambda x, a: x + x),
    "`exp(x)`": {
        "pullback": lambda x, a: pb.exp(x),
        "NumPy": lambda x, a: np.exp(x),
        "PyTorch": lambda x, a: torch.exp(x),
        "JAX": lambda x, a: jnp.exp(x),
    },
    "`x.sum()`": dict.fromkeys(("pullback", "NumPy", "PyTorch", "JAX"), lambda x, a: x.sum()),
    "`a @ a`, 10 x 10": dict.fromkeys(("pullback", "NumPy", "PyTorch", "JAX"), lambda x, a: a @ a),
    "`x[3]`": dict.fromkeys(("pullback", "NumPy", "PyTorch", "JAX"), lambda x, a: x[3]),
    "`softmax(x)`": {
        "pullback": lambda x, a: pb.softmax(x),
        "NumPy": numpy_softmax,
        "PyTorch": lambda x, a: torch.softmax(x, 0),
        "JAX": lambda x, a: jax.nn.softmax(x),
    },
    "500 operations": dict.fromkeys(("pullback", "NumPy", "PyTorch", "JAX"), chain),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "pullback": pb.tensor,
    "NumPy": np.copy,
    "PyTorch": torch.tensor,
    "JAX": jnp.asarray,
}


def cost(case: Case, x: Any, a: Any, calls: int) -> float:
    """Processor microseconds of a call whose result is read as an array."""
    start = time.process_time()
    for _ in range(calls):
        np.asarray(case(x, a))
    return (time.process_time() - start) / calls * 1e6


def main() -> None:
    torch.set_num_threads(1)
    pb.set_num_threads(1)
    given = {name: (make(X), make(A)) for name, make in MADE.items()}
    print("| | " + " | ".join(MADE) + " |\n|---|" + "---|" * len(MADE))
    for title, cases in CASES.items():
        calls = 1 if title.startswith("500") else CALLS
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(ROUNDS + 3):
            for name, case in cases.items():
                times[name].append(cost(case, *given[name], calls))
        shown = [f"{statistics.median(times[name][3:]):.1f}" for name in MADE]
        print(f"| {title} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
