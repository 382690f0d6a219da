"""What benchmarks that define an operation once for pullback and for JAX share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

CALLS = 15
LONGEST = 3.0  # seconds of timing for one case


class Side:
    """The operations that kernels use, in pullback or in JAX."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    @classmethod
    def of(cls, peer: str) -> Side:
        return PullbackSide() if peer == "pullback" else JaxSide()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def mean(self, x: Any, axis: int) -> Any:
        return self.module.mean(x, axis=axis, keepdims=True)

    def max(self, x: Any, axis: int) -> Any:
        return self.module.max(x, axis=axis, keepdims=True)

    def total(self, x: Any, axis: int) -> Any:
        return self.module.sum(x, axis=axis, keepdims=True)

    def relu(self, x: Any) -> Any:
        return self.module.maximum(x, 0.0)

    def pad(self, x: Any) -> Any:
        return self.module.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


class PullbackSide(Side):
    def __init__(self) -> None:
        import pullback

        super().__init__(pullback)

    def diagonal(self, x: Any) -> Any:
        return self.module.compute((x.shape[0],), lambda i: x[i, i])

    def conv(self, x: Any, w: Any) -> Any:
        """NHWC with HWIO, valid."""
        pb = self.module
        (n, h, v, _), (rows, columns, channels, kernels) = x.shape, w.shape
        a, b, c = pb.axis(rows), pb.axis(columns), pb.axis(channels)
        return pb.compute(
            (n, h - rows + 1, v - columns + 1, kernels),
            lambda m, i, j, f: pb.sum(x[m, i + a, j + b, c] * w[a, b, c, f], over=(a, b, c)),
        )

    def pool(self, x: Any) -> Any:
        pb = self.module
        n, h, w, c = x.shape
        a, b = pb.axis(2), pb.axis(2)
        return pb.compute(
            (n, h // 2, w // 2, c),
            lambda m, i, j, f: pb.max(x[m, 2 * i + a, 2 * j + b, f], over=(a, b)),
        )

    def gradient(self, loss: Callable[..., Any], wrt: int) -> Callable[..., Any]:
        return self.module.jit(self.module.value_and_grad(loss, argnums=wrt))

    def array(self, x: np.ndarray) -> Any:
        return self.module.tensor(x)

    def wait(self, x: Any) -> Any:
        return x


class JaxSide(Side):
    def __init__(self) -> None:
        import jax

        self.jax = jax
        super().__init__(jax.numpy)

    def conv(self, x: Any, w: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        return self.jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=names)

    def pool(self, x: Any) -> Any:
        window = (1, 2, 2, 1)
        lax = self.jax.lax
        return lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")

    def gradient(self, loss: Callable[..., Any], wrt: int) -> Callable[..., Any]:
        return self.jax.jit(self.jax.value_and_grad(loss, argnums=wrt))

    def array(self, x: np.ndarray) -> Any:
        return self.module.asarray(x)

    def wait(self, x: Any) -> Any:
        return self.jax.block_until_ready(x)


def measured(side: Side, loss: Callable[..., Any], data: list[Any], wrt: int) -> dict[str, Any]:
    """Seconds cold and warm of value and gradient, and numbers that tell results apart."""
    function = side.gradient(loss, wrt)
    inputs = [side.array(d) for d in data]
    start = time.perf_counter()
    value, gradient = side.wait(function(*inputs))
    cold = time.perf_counter() - start
    for _ in range(2):
        side.wait(function(*inputs))
    times: list[float] = []
    while len(times) < CALLS and (sum(times) < LONGEST or len(times) < 3):
        start = time.perf_counter()
        side.wait(function(*inputs))
        times.append(time.perf_counter() - start)
    return {
        "cold": cold,
        "warm": float(np.median(times)),
        "value": float(np.asarray(value)),
        "sums": summary(np.asarray(gradient)),
    }


def summary(g: np.ndarray) -> list[float]:
    """A few numbers that tell two gradients apart: the largest, a weighted sum and samples."""
    flat = g.astype(np.float64).ravel()
    scale = float(np.abs(flat).max()) or 1.0
    mixed = float(flat @ np.cos(np.arange(flat.size))) / scale / flat.size**0.5
    return [scale, mixed, *(flat[:: max(1, flat.size // 7)] / scale)]


def report(found: dict[str, Any]) -> None:
    print(json.dumps(found))


def best_runs(script: str, name: str, pythons: dict[str, str]) -> list[dict[str, Any]]:
    """The better of 1 and 2 threads for each peer, each in a process of its own."""
    found = []
    for peer, python in pythons.items():
        runs = [_run([python, script, "--peer", peer, "--only", name], n) for n in (1, 2)]
        found.append(min(runs, key=lambda r: r["warm"]))
    return found


def _run(command: list[str], threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        own = {"XDG_CACHE_HOME": cache, "JAX_PLATFORMS": "cpu", "PULLBACK_THREADS": str(threads)}
        pinned = ["taskset", "-c", "0", *command] if threads == 1 else command
        done = subprocess.run(pinned, env=os.environ | own, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def differs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether values or gradients disagree beyond float32 sums."""
    x, y = a["sums"], b["sums"]
    close = np.allclose(x[1:], y[1:], atol=1e-3) and np.isclose(x[0], y[0], rtol=1e-3)
    return not close or not np.isclose(a["value"], b["value"], rtol=1e-3, atol=1e-2)
