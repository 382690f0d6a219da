"""Gradients of single operations: forward, all gradients for a head, and both, beside peers.

`python benchmarks/gradients.py [PYTHON_FOR_JAX] [--only CASE]`

The backward is the program that computes every gradient from the inputs and the head, so that it
repeats of the forward what it needs; PyTorch's is its backward alone, on a saved forward. What
training pays is the third figure, both: one program that gives the output and every gradient
(PyTorch: a forward that saves, then its backward; JAX: value and vjp under one jit). Each peer runs
in a process of its own at 1 and at 2 threads; its better one for the sum of the three is shown.
Warm: median of 15 calls. Gradients are compared with PyTorch's, relative to the largest element.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sides import best_runs, median_call, report, summary

FIGURES = ("forward", "backward", "both")
PEERS = ("pullback", "torch", "jax")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    """`shapes` of the inputs and the options of the operation `kind`.

    Gradients are by the inputs from number `first` on.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    first: int = 0


DENSE = "dense"
CASES = {
    "dense 32x1000x1000": Case(DENSE, ((32, 1000), (1000, 1000), (1000,))),
    "conv 3x3, 17 to 19": Case("conv", ((32, 17, 28, 28), (19, 17, 3, 3))),
    "conv 5x5, stride 3, pad 1": Case("conv", ((32, 17, 58, 58), (19, 17, 5, 5)), 3, 1),
    "conv 3x3, 32 to 32, pad 1": Case("conv", ((32, 32, 28, 28), (32, 32, 3, 3)), 1, 1),
    "conv 3x3, dilation 2": Case("conv", ((32, 17, 28, 28), (19, 17, 3, 3)), 1, 0, 2),
    "average pool 2x2": Case("average", ((32, 17, 280, 280),)),
    "max pool 2x2": Case("max", ((32, 64, 100, 100),)),
    "softmax of dense": Case("softmax", ((60, 100), (1000, 100))),
    "flatten": Case("flatten", ((32, 100, 20, 25),)),
    "ConvNet, weights": Case(
        "network",
        (
            *((32, 1, 28, 28), (32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,)),
            *((128, 9216), (128,), (10, 128), (10,)),
        ),
        first=1,
    ),
}


def data(case: Case) -> list[np.ndarray]:
    """The inputs, float32; weights of a network are small."""
    rng = np.random.default_rng(0)
    found = [rng.standard_normal(s, dtype=np.float32) for s in case.shapes]
    return [f * np.float32(0.05) if n and case.first else f for n, f in enumerate(found)]


def network(x: Any, parameters: Any, conv: Any, relu: Any, pool: Any, dense: Any) -> Any:
    """Two convolutions, a pooling and two dense layers; logits."""
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    x = relu(conv(x, w1, b1))
    x = pool(relu(conv(x, w2, b2)))
    return dense(relu(dense(x.reshape((x.shape[0], -1)), w3, b3)), w4, b4)


def convolution(case: Case) -> Callable[..., Any]:
    import pullback as pb

    step, pad, spread = case.stride, case.pad, case.dilation
    (images, channels, height, width), (kernels, _, rows, columns) = case.shapes
    high, wide = (
        (n + 2 * pad - spread * (k - 1) - 1) // step + 1
        for n, k in ((height, rows), (width, columns))
    )

    def run(x: Any, w: Any) -> Any:
        if pad:
            x = pb.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        c, a, b = pb.axis(channels), pb.axis(rows), pb.axis(columns)

        def at(n: Any, f: Any, i: Any, j: Any) -> Any:
            patch = x[n, c, i * step + a * spread, j * step + b * spread]
            return pb.sum(patch * w[f, c, a, b], over=(c, a, b))

        return pb.compute((images, kernels, high, wide), at)

    return run


def pooling(case: Case) -> Callable[..., Any]:
    import pullback as pb

    images, channels, height, width = case.shapes[0]

    def run(x: Any) -> Any:
        a, b = pb.axis(2), pb.axis(2)

        def at(n: Any, c: Any, i: Any, j: Any) -> Any:
            patch = x[n, c, 2 * i + a, 2 * j + b]
            if case.kind == "max":
                return pb.max(patch, over=(a, b))
            return pb.sum(patch, over=(a, b)) * 0.25

        return pb.compute((images, channels, height // 2, width // 2), at)

    return run


def ours(case: Case) -> Callable[..., Any]:
    """The operation as definitions."""
    from pullback.nn import functional as F

    if case.kind == DENSE:
        return F.linear
    if case.kind == "conv":
        return convolution(case)
    if case.kind == "network":
        return lambda x, *p: network(x, p, F.conv2d, F.relu, lambda t: F.max_pool2d(t, 2), F.linear)
    if case.kind == "softmax":
        return lambda x, w: F.softmax(F.linear(x, w), dim=-1)
    if case.kind == "flatten":
        return lambda x: x.reshape((x.shape[0], -1)) * 1.0
    return pooling(case)


def run_pullback(case: Case, threads: int) -> dict[str, Any]:
    import pullback as pb

    operation = ours(case)
    forward = pb.jit(operation)
    backward = pb.jit(lambda head, *xs: pb.grad(operation(*xs), xs[case.first :], head=head))

    def outcome(head: Any, *xs: Any) -> Any:
        y = operation(*xs)
        return [y, *pb.grad(y, xs[case.first :], head=head)]

    both = pb.jit(outcome)
    inputs = [pb.tensor(d) for d in data(case)]
    start = time.perf_counter()
    y = forward(*inputs)
    head = pb.tensor(head_of(y.shape))
    found = backward(head, *inputs)
    cold = time.perf_counter() - start
    return {
        "cold": cold,
        "forward": median_call(lambda: forward(*inputs)),
        "backward": median_call(lambda: backward(head, *inputs)),
        "both": median_call(lambda: both(head, *inputs)),
        "sums": [summary(np.asarray(g)) for g in found],
    }


def torch_operation(case: Case) -> Callable[..., Any]:
    import torch.nn.functional as F

    return {
        DENSE: F.linear,
        "conv": lambda x, w: F.conv2d(x, w, None, case.stride, case.pad, case.dilation),
        "average": lambda x: F.avg_pool2d(x, 2),
        "max": lambda x: F.max_pool2d(x, 2),
        "softmax": lambda x, w: F.softmax(F.linear(x, w), -1),
        "flatten": lambda x: x.flatten(1) * 1.0,
        "network": lambda x, *p: network(
            x, p, F.conv2d, F.relu, lambda t: F.max_pool2d(t, 2), F.linear
        ),
    }[case.kind]


def run_torch(case: Case, threads: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    operation = torch_operation(case)
    inputs = [torch.from_numpy(d) for d in data(case)]
    for tensor in inputs[case.first :]:
        tensor.requires_grad_()
    start = time.perf_counter()
    y = operation(*inputs)
    head = torch.from_numpy(head_of(y.shape))

    def backward() -> Any:
        return torch.autograd.grad(y, inputs[case.first :], head, retain_graph=True)

    found = backward()
    cold = time.perf_counter() - start

    def forward() -> None:
        with torch.no_grad():
            operation(*inputs)

    def both() -> None:
        torch.autograd.grad(operation(*inputs), inputs[case.first :], head)

    return {
        "cold": cold,
        "forward": median_call(forward),
        "backward": median_call(backward),
        "both": median_call(both),
        "sums": [summary(g.numpy()) for g in found],
    }


def jax_operation(case: Case) -> Callable[..., Any]:
    import jax
    from jax import lax

    def conv(x: Any, w: Any) -> Any:
        pads = [(case.pad, case.pad)] * 2
        return lax.conv_general_dilated(
            x, w, (case.stride,) * 2, pads, rhs_dilation=(case.dilation,) * 2
        )

    def biased(x: Any, w: Any, b: Any) -> Any:
        return conv(x, w) + b[:, None, None]

    def largest(x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")

    def dense(x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    window = (1, 1, 2, 2)
    return {
        DENSE: dense,
        "conv": conv,
        "average": lambda x: lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") * 0.25,
        "max": largest,
        "softmax": lambda x, w: jax.nn.softmax(x @ w.T),
        "flatten": lambda x: x.reshape(x.shape[0], -1) * 1.0,
        "network": lambda x, *p: network(x, p, biased, jax.nn.relu, largest, dense),
    }[case.kind]


def run_jax(case: Case, threads: int) -> dict[str, Any]:
    import jax

    operation = jax_operation(case)
    forward = jax.jit(operation)

    def pulled(head: Any, *xs: Any) -> Any:
        fixed, free = xs[: case.first], xs[case.first :]
        return jax.vjp(lambda *ws: operation(*fixed, *ws), *free)[1](head)

    def outcome(head: Any, *xs: Any) -> Any:
        fixed, free = xs[: case.first], xs[case.first :]
        y, pull = jax.vjp(lambda *ws: operation(*fixed, *ws), *free)
        return y, pull(head)

    backward, both = jax.jit(pulled), jax.jit(outcome)
    inputs = [jax.numpy.asarray(d) for d in data(case)]
    start = time.perf_counter()
    y = jax.block_until_ready(forward(*inputs))
    head = jax.numpy.asarray(head_of(y.shape))
    found = jax.block_until_ready(backward(head, *inputs))
    cold = time.perf_counter() - start
    return {
        "cold": cold,
        "forward": median_call(lambda: jax.block_until_ready(forward(*inputs))),
        "backward": median_call(lambda: jax.block_until_ready(backward(head, *inputs))),
        "both": median_call(lambda: jax.block_until_ready(both(head, *inputs))),
        "sums": [summary(np.asarray(g)) for g in found],
    }


def head_of(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(tuple(shape), dtype=np.float32)


def differs(a: list[list[float]], b: list[list[float]]) -> bool:
    return any(
        not np.allclose(x[1:], y[1:], atol=TOLERANCE) or not np.isclose(x[0], y[0], rtol=1e-3)
        for x, y in zip(a, b, strict=True)
    )


def compare(name: str, pythons: dict[str, str]) -> None:
    """One row a peer; each at its better thread count for the sum of its figures."""
    runs = best_runs(__file__, name, pythons, FIGURES)
    mine = runs[0]
    for peer, run in zip(pythons, runs, strict=True):
        wrong = " RESULT DIFFERS" if differs(run["sums"], mine["sums"]) else ""
        cells = [f"{run[k] * 1e3:.2f}" for k in FIGURES]
        ratio = run["backward"] / run["forward"]
        times = [f"{run[k] / mine[k]:.2f}" for k in FIGURES]
        print(
            f"| {name} | {peer} | {' | '.join(cells)} | {ratio:.1f} | {' | '.join(times)}{wrong} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jax_python", nargs="?", default=sys.executable)
    parser.add_argument("--only")
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.peer:
        runner = {"pullback": run_pullback, "torch": run_torch, "jax": run_jax}[options.peer]
        report(runner(CASES[options.only], options.threads))
        return
    pythons = dict.fromkeys(PEERS, sys.executable) | {"jax": options.jax_python}
    print(
        "| operation | peer | forward, ms | backward, ms | both, ms | backward / forward ", end=""
    )
    print("| peer / pullback: forward | backward | both |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in [options.only] if options.only else CASES:
        compare(name, pythons)


if __name__ == "__main__":
    main()
