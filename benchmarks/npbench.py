"""Gradients of the 22 NPBench kernels without carried state, beside jax.jit.

`python benchmarks/npbench.py [PYTHON_FOR_JAX] [--only KERNEL]`

The program computes the sum of the output and its gradient by the named input, sizes S of NPBench,
float32. One text defines a kernel for both (convolutions excepted: each has its own). Each peer
runs in a process of its own at 1 and 2 threads; its better one is shown. Warm: median of 15 calls.
Source: NPBench, Ziogas et al., ICS 2021; the choice of inputs follows DaCe AD, arXiv 2509.02197.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
from sides import Side, best_runs, differs, measured, report

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Kernel:
    """`run(side, *inputs)`; the gradient is by input `wrt`."""

    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Any]
    wrt: int = 0


def transposed(x: Any) -> Any:
    return x.T


def gemm(s: Side, a: Any, b: Any, c: Any) -> Any:
    return 1.5 * (a @ b) + 1.2 * c


def two_mm(s: Side, a: Any, b: Any, c: Any, d: Any) -> Any:
    return 1.5 * ((a @ b) @ c) + 1.2 * d


def three_mm(s: Side, a: Any, b: Any, c: Any, d: Any) -> Any:
    return (a @ b) @ (c @ d)


def atax(s: Side, a: Any, x: Any) -> Any:
    return (a @ x) @ a


def bicg(s: Side, a: Any, p: Any, r: Any) -> Any:
    return s.sum(r @ a) + s.sum(a @ p)


def mvt(s: Side, a: Any, x1: Any, x2: Any, y1: Any, y2: Any) -> Any:
    return s.sum(x1 + a @ y1) + s.sum(x2 + y2 @ a)


def gemver(s: Side, a: Any, *vectors: Any) -> Any:
    u1, v1, u2, v2, x, y, z = vectors
    a = a + u1[:, None] * v1[None, :] + u2[:, None] * v2[None, :]
    x = x + 1.2 * (y @ a) + z
    return 1.5 * (a @ x)


def gesummv(s: Side, a: Any, b: Any, x: Any) -> Any:
    return 1.5 * (a @ x) + 1.2 * (b @ x)


def doitgen(s: Side, a: Any, c4: Any) -> Any:
    return a @ c4


def lower(s: Side, x: Any, strictly: bool = False) -> Any:
    n, m = x.shape
    rows, columns = s.arange(n)[:, None], s.arange(m)[None, :]
    return s.where(columns < rows if strictly else columns <= rows, x, 0.0)


def syrk(s: Side, a: Any, c: Any) -> Any:
    return lower(s, 1.5 * (a @ a.T)) + 1.2 * lower(s, c)


def syr2k(s: Side, a: Any, b: Any, c: Any) -> Any:
    return lower(s, 1.5 * (a @ b.T + b @ a.T)) + 1.2 * lower(s, c)


def symm(s: Side, a: Any, b: Any, c: Any) -> Any:
    below = lower(s, a, True)
    diagonal = s.diagonal(a)[:, None]
    return 1.2 * c + 1.5 * (below @ b + below.T @ b + diagonal * b)


def trmm(s: Side, a: Any, b: Any) -> Any:
    return 1.5 * (b + lower(s, a, True).T @ b)


def covariance(s: Side, data: Any) -> Any:
    centred = data - s.mean(data, 0)
    return (centred.T @ centred) / (data.shape[0] - 1.0)


def correlation(s: Side, data: Any) -> Any:
    centred = data - s.mean(data, 0)
    spread = s.sqrt(s.mean(centred * centred, 0))
    scaled = centred / (s.where(spread <= 0.1, 1.0, spread) * float(data.shape[0]) ** 0.5)
    return scaled.T @ scaled


def softmax(s: Side, x: Any) -> Any:
    powers = s.exp(x - s.max(x, -1))
    return powers / s.total(powers, -1)


def mlp(s: Side, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    x = s.relu(x @ w1 + b1)
    x = s.relu(x @ w2 + b2)
    return softmax(s, x @ w3 + b3)


def conv2d_bias(s: Side, x: Any, w: Any, b: Any) -> Any:
    return s.conv(x, w) + b


def lenet(s: Side, x: Any, *parameters: Any) -> Any:
    w1, b1, w2, b2, f1, c1, f2, c2, f3, c3 = parameters
    x = s.pool(s.relu(s.conv(x, w1) + b1))
    x = s.pool(s.relu(s.conv(x, w2) + b2))
    x = s.relu(x.reshape((x.shape[0], -1)) @ f1 + c1)
    x = s.relu(x @ f2 + c2)
    return x @ f3 + c3


def resnet(s: Side, x: Any, w1: Any, w2: Any, w3: Any) -> Any:
    def norm(t: Any) -> Any:
        centred = t - s.mean(t, 0)
        return centred / s.sqrt(s.sqrt(s.mean(centred * centred, 0)) + 1e-5)

    t = s.relu(norm(s.pad(s.conv(x, w1))))
    t = s.relu(norm(s.conv(t, w2)))
    return s.relu(norm(s.conv(t, w3)) + x)


def hdiff(s: Side, x: Any, coefficient: Any) -> Any:
    n, m, _ = coefficient.shape
    lap = 4.0 * x[1 : n + 3, 1 : m + 3] - (
        x[2 : n + 4, 1 : m + 3]
        + x[0 : n + 2, 1 : m + 3]
        + x[1 : n + 3, 2 : m + 4]
        + x[1 : n + 3, 0 : m + 2]
    )
    step = lap[1:, 1 : m + 1] - lap[:-1, 1 : m + 1]
    grows = step * (x[2 : n + 3, 2 : m + 2] - x[1 : n + 2, 2 : m + 2]) > 0
    flux = s.where(grows, 0.0, step)
    step = lap[1 : n + 1, 1:] - lap[1 : n + 1, :-1]
    grows = step * (x[2 : n + 2, 2 : m + 3] - x[2 : n + 2, 1 : m + 2]) > 0
    across = s.where(grows, 0.0, step)
    out = flux[1:] - flux[:-1] + across[:, 1:] - across[:, :-1]
    return x[2 : n + 2, 2 : m + 2] - coefficient * out


def go_fast(s: Side, a: Any) -> Any:
    return a + s.sum(s.tanh(s.diagonal(a)))


V = 1000
KERNELS = {
    "gemm": Kernel(((1000, 1200), (1200, 1100), (1000, 1100)), gemm),
    "2mm": Kernel(((800, 900), (900, 850), (850, 950), (800, 950)), two_mm),
    "3mm": Kernel(((800, 850), (850, 900), (900, 950), (950, 1000)), three_mm),
    "atax": Kernel(((4000, 5000), (5000,)), atax),
    "bicg": Kernel(((4000, 5000), (5000,), (4000,)), bicg),
    "mvt": Kernel(((5500, 5500), *[(5500,)] * 4), mvt),
    "gemver": Kernel(((V, V), *[(V,)] * 7), gemver),
    "gesummv": Kernel(((2000, 2000), (2000, 2000), (2000,)), gesummv),
    "doitgen": Kernel(((60, 60, 128), (128, 128)), doitgen),
    "syrk": Kernel(((70, 50), (70, 70)), syrk),
    "syr2k": Kernel(((50, 35), (50, 35), (50, 50)), syr2k),
    "symm": Kernel(((40, 40), (40, 50), (40, 50)), symm),
    "trmm": Kernel(((65, 65), (65, 80)), trmm),
    "covariance": Kernel(((600, 500),), covariance),
    "correlation": Kernel(((600, 500),), correlation),
    "softmax": Kernel(((16, 16, 128, 128),), softmax),
    "mlp": Kernel(
        ((8, 3), (3, 30000), (30000,), (30000, 2000), (2000,), (2000, 2000), (2000,)), mlp
    ),
    "conv2d_bias": Kernel(((8, 32, 32, 3), (2, 2, 3, 16), (16,)), conv2d_bias),
    "lenet": Kernel(
        (
            (4, 28, 28, 1), (5, 5, 1, 6), (6,), (5, 5, 6, 16), (16,),
            (256, 120), (120,), (120, 84), (84,), (84, 10), (10,),
        ),
        lenet,
    ),
    "resnet": Kernel(((8, 14, 14, 32), (1, 1, 32, 8), (3, 3, 8, 8), (1, 1, 8, 32)), resnet),
    "hdiff": Kernel(((68, 68, 60), (64, 64, 60)), hdiff),
    "go_fast": Kernel(((2000, 2000),), go_fast),
}  # fmt: skip


def data(kernel: Kernel) -> Arrays:
    """Inputs of moderate size, float32."""
    rng = np.random.default_rng(0)
    found = []
    for shape in kernel.shapes:
        scale = 1.0 if len(shape) < 2 else max(1.0, float(shape[-2])) ** -0.5
        found.append((rng.standard_normal(shape) * scale).astype(np.float32))
    return found


def one(peer: str, name: str, threads: int) -> dict[str, Any]:
    """Time and gradient of one kernel in this process."""
    kernel = KERNELS[name]
    side = Side.of(peer)

    def loss(*inputs: Any) -> Any:
        return side.sum(kernel.run(side, *inputs))

    return measured(side, loss, data(kernel), kernel.wrt)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jax_python", nargs="?", default=sys.executable)
    parser.add_argument("--only")
    parser.add_argument("--peer")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.peer:
        report(one(options.peer, options.only, options.threads))
        return
    pythons = {"pullback": sys.executable, "jax": options.jax_python}
    ratios = []
    print("| kernel | pullback, ms | jax.jit, ms | jax / pullback | cold: pullback, s | jax, s |")
    print("|---|---|---|---|---|---|")
    for name in [options.only] if options.only else KERNELS:
        mine, its = best_runs(__file__, name, pythons)
        ratio = its["warm"] / mine["warm"]
        ratios.append(ratio)
        shown = f"**{ratio:.2f}**" if ratio < 1 else f"{ratio:.2f}"
        wrong = " RESULT DIFFERS" if differs(mine, its) else ""
        times = f"{mine['warm'] * 1e3:.3f} | {its['warm'] * 1e3:.3f}"
        print(f"| {name} | {times} | {shown}{wrong} | {mine['cold']:.2f} | {its['cold']:.2f} |")
        sys.stdout.flush()
    mean = exp(sum(map(log, ratios)) / len(ratios))
    print(f"\ngeometric mean {mean:.2f}, smallest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
