"""What benchmarks that define an operation once for pullback and for JAX share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

CALLS = 15
ROUNDING = 1e-5  # largest element of a gradient that is zero
LONGEST = 3.0  # seconds of timing for one case


def medians(runs: dict[str, Callable[[], Any]], seconds: float = 1.0) -> dict[str, float]:
    """Milliseconds of processor time of each, in turn, so many seconds a side, three at least."""
    for run in runs.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < stop or len(times[next(iter(runs))]) < 3:
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append((time.process_time() - start) * 1e3)
    return {name: float(np.median(t)) for name, t in times.items()}


class Side:
    """The operations that kernels use, in pullback or in JAX."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    @classmethod
    def of(cls, peer: str, threads: int = 2, double: bool = False) -> Side:
        if peer == "pullback":
            return PullbackSide()
        return TorchSide(threads) if peer == "torch" else JaxSide(double)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def mean(self, x: Any, axis: int) -> Any:
        return self.module.mean(x, axis=axis, keepdims=True)

    def max(self, x: Any, axis: int) -> Any:
        return self.module.max(x, axis=axis, keepdims=True)

    def total(self, x: Any, axis: int) -> Any:
        return self.module.sum(x, axis=axis, keepdims=True)

    def min(self, x: Any, axis: int) -> Any:
        return self.module.min(x, axis=axis)

    def concat(self, parts: list[Any], axis: int) -> Any:
        return self.module.concatenate(parts, axis=axis)

    def powers(self, x: Any, count: int) -> Any:
        """``x[i] ** j``"""
        return x[:, None] ** self.module.arange(count)[None, :]

    def first(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of the first call, and what it gives."""
        start = time.perf_counter()
        found = self.wait(call())
        return time.perf_counter() - start, found

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

    def concat(self, parts: list[Any], axis: int) -> Any:
        return self.module.concat(parts, axis=axis)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.module.jit(function)

    def gradients(self, f: Callable[..., Any], inputs: Any, wrt: tuple[int, ...]) -> Any:
        return self.module.grad(f(*inputs), [inputs[n] for n in wrt])

    def newton(self, f: Callable[..., Any], inputs: Any) -> Any:
        """The gradient by the first input, and the Hessian times ones."""
        x, *rest = inputs
        pb = self.module
        slope = pb.grad(lambda c: f(c, *rest))
        return pb.jvp(slope, [x], [pb.ones_like(x)])

    def gradient(self, loss: Callable[..., Any], wrt: int) -> Callable[..., Any]:
        return self.module.jit(self.module.value_and_grad(loss, argnums=wrt))

    def array(self, x: np.ndarray) -> Any:
        return self.module.tensor(x)

    def wait(self, x: Any) -> Any:
        return x


class JaxSide(Side):
    def __init__(self, double: bool = False) -> None:
        import jax

        jax.config.update("jax_enable_x64", double)
        self.jax = jax
        super().__init__(jax.numpy)

    def conv(self, x: Any, w: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        return self.jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=names)

    def pool(self, x: Any) -> Any:
        window = (1, 2, 2, 1)
        lax = self.jax.lax
        return lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.jax.jit(function)

    def gradients(self, f: Callable[..., Any], inputs: Any, wrt: tuple[int, ...]) -> Any:
        return self.jax.grad(f, argnums=wrt)(*inputs)

    def newton(self, f: Callable[..., Any], inputs: Any) -> Any:
        x, *rest = inputs
        slope = self.jax.grad(lambda c: f(c, *rest))
        return self.jax.jvp(slope, (x,), (self.module.ones_like(x),))

    def gradient(self, loss: Callable[..., Any], wrt: int) -> Callable[..., Any]:
        return self.jax.jit(self.jax.value_and_grad(loss, argnums=wrt))

    def array(self, x: np.ndarray) -> Any:
        return self.module.asarray(x)

    def wait(self, x: Any) -> Any:
        return self.jax.block_until_ready(x)


class TorchSide(Side):
    """PyTorch, eager."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        super().__init__(torch)

    def max(self, x: Any, axis: int) -> Any:
        return x.amax(axis, keepdim=True)

    def min(self, x: Any, axis: int) -> Any:
        return x.min(axis).values

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def gradients(self, f: Callable[..., Any], inputs: Any, wrt: tuple[int, ...]) -> Any:
        inputs = [x.detach() for x in inputs]
        by = [inputs[n].requires_grad_() for n in wrt]
        return self.module.autograd.grad(f(*inputs), by)

    def newton(self, f: Callable[..., Any], inputs: Any) -> Any:
        x, *rest = inputs
        x = x.detach().requires_grad_()
        autograd = self.module.autograd
        (slope,) = autograd.grad(f(x, *rest), [x], create_graph=True)
        (curve,) = autograd.grad(slope.sum(), [x])
        return slope.detach(), curve

    def array(self, x: np.ndarray) -> Any:
        return self.module.from_numpy(x)

    def wait(self, x: Any) -> Any:
        return x


def measured(side: Side, loss: Callable[..., Any], data: list[Any], wrt: int) -> dict[str, Any]:
    """Seconds cold and warm of value and gradient, and numbers that tell results apart."""
    function = side.gradient(loss, wrt)
    inputs = [side.array(d) for d in data]
    start = time.perf_counter()
    value, gradient = side.wait(function(*inputs))
    cold = time.perf_counter() - start
    return {
        "cold": cold,
        "warm": median_call(lambda: side.wait(function(*inputs))),
        "value": float(np.asarray(value)),
        "sums": summary(np.asarray(gradient)),
    }


def median_call(call: Callable[[], Any]) -> float:
    """Seconds of a warm call."""
    for _ in range(2):
        call()
    times: list[float] = []
    while len(times) < CALLS and (sum(times) < LONGEST or len(times) < 3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def summary(g: np.ndarray) -> list[float]:
    """A few numbers that tell two gradients apart: the largest, a weighted sum and samples."""
    flat = g.astype(np.float64).ravel()
    scale = float(np.abs(flat).max()) or 1.0
    mixed = float(flat @ np.cos(np.arange(flat.size))) / scale / flat.size**0.5
    return [scale, mixed, *(flat[:: max(1, flat.size // 7)] / scale)]


def report(found: dict[str, Any]) -> None:
    print(json.dumps(found))


def best_runs(
    script: str, name: str, pythons: dict[str, str], keys: Sequence[str] = ("warm",)
) -> list[dict[str, Any]]:
    """The better of 1 and 2 threads for each peer, each in a process of its own: the smaller sum
    of the times called `keys`.
    """
    found = []
    for peer, python in pythons.items():
        command = [python, script, "--peer", peer, "--only", name, "--threads"]
        runs = [_run([*command, str(n)], n) for n in (1, 2)]
        found.append(min(runs, key=lambda r: sum(r[k] for k in keys)))
    return found


def _run(command: list[str], threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        own = {"XDG_CACHE_HOME": cache, "JAX_PLATFORMS": "cpu", "PULLBACK_THREADS": str(threads)}
        pinned = ["taskset", "-c", "0", *command] if threads == 1 else command
        done = subprocess.run(pinned, env=os.environ | own, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def close(a: list[list[float]], b: list[list[float]], tolerance: float) -> bool:
    """Whether summaries of several results agree, relative to their largest elements."""
    return all(np.allclose(x, y, rtol=tolerance, atol=tolerance) for x, y in zip(a, b, strict=True))


def differs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether values or gradients disagree beyond float32 sums. A gradient that is zero but for
    rounding (of the sum of a softmax) is zero.
    """
    x, y = a["sums"], b["sums"]
    if max(x[0], y[0]) < ROUNDING:
        return not np.isclose(a["value"], b["value"], rtol=1e-3, atol=1e-2)
    close = np.allclose(x[1:], y[1:], atol=1e-3) and np.isclose(x[0], y[0], rtol=1e-3)
    return not close or not np.isclose(a["value"], b["value"], rtol=1e-3, atol=1e-2)
