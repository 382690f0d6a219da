"""GradBench's gmm, kmeans, lse, llsq and ba: derivative over primal, beside JAX and PyTorch.

`python benchmarks/gradbench.py [PYTHON_FOR_JAX] [--only CASE]`

float64. One text defines an objective for all three. The derivative of gmm, lse and llsq is the
gradient, of kmeans the gradient and the diagonal of the Hessian (a product with ones), of ba the
blocks of the sparse Jacobian, two rows of 15 numbers for each observation. Each peer runs in a
process of its own at 1 and 2 threads, its better one is shown: JAX jitted, PyTorch eager. Warm:
median of 15 calls; inputs are synthetic. Source: GradBench; ADBench, Srajer et al. 2018.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma, log, pi
from typing import Any

import numpy as np
from sides import Side, best_runs, close, median_call, report, summary

PEERS = ("pullback", "jax", "torch")
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    """`data(*sizes)` makes the inputs of the objective `run`; `derive`: what is asked of it."""

    data: Callable[..., Arrays]
    run: Callable[..., Any]
    sizes: tuple[int, ...]
    derive: str = "gradient"
    wrt: tuple[int, ...] = (0,)


def logsumexp(s: Side, x: Any) -> Any:
    """Over the last axis, which stays with extent 1."""
    most = s.max(x, -1)
    return s.log(s.total(s.exp(x - most), -1)) + most


# --- gmm -----------------------------------------------------------------------------------------

GAMMA, WISHART = 1.0, 0


def mixture_data(d: int, k: int, n: int) -> Arrays:
    rng = np.random.default_rng(0)
    packed = rng.standard_normal((k, d + d * (d - 1) // 2)) * 0.3
    means, x = rng.uniform(0, 1, (k, d)), rng.standard_normal((n, d))
    return [rng.standard_normal(k), means, packed, x, triangle(d), np.tri(d, k=-1)]


def triangle(d: int) -> np.ndarray:
    """Where entry (i, j) below the diagonal lies in a column-wise packed triangle; else 0."""
    rows, columns = np.indices((d, d))
    places = columns * (2 * d - columns - 1) // 2 + rows - columns - 1
    return np.where(rows > columns, places, 0)


def mixture(s: Side, alphas: Any, means: Any, packed: Any, x: Any, places: Any, ones: Any) -> Any:
    """The log posterior of a Gaussian mixture with a Wishart prior."""
    (k, d), n = means.shape, x.shape[0]
    logs, below = packed[:, :d], packed[:, d:]
    spread = s.exp(logs)
    diagonal = s.arange(d)[:, None] == s.arange(d)[None, :]
    factor = s.where(diagonal, spread[:, None, :], ones * below[:, places])
    scaled = s.einsum("kij,nkj->nki", factor, x[:, None, :] - means[None])
    inner = alphas + s.sum(logs, axis=1) - 0.5 * s.sum(scaled * scaled, axis=2)
    fit = s.sum(logsumexp(s, inner)) - n * s.sum(logsumexp(s, alphas))
    return fit + wishart(s, logs, spread, below, d, k) - n * d * 0.5 * log(2 * pi)


def wishart(s: Side, logs: Any, spread: Any, below: Any, d: int, k: int) -> Any:
    freedom = d + WISHART + 1
    gammas = sum(lgamma(0.5 * (freedom - j)) for j in range(d)) + d * (d - 1) / 4 * log(pi)
    fixed = freedom * d * (log(GAMMA) - 0.5 * log(2.0)) - gammas
    size = s.sum(spread * spread) + s.sum(below * below)
    return 0.5 * GAMMA**2 * size - WISHART * s.sum(logs) - k * fixed


# --- kmeans, lse, llsq ---------------------------------------------------------------------------


def points_data(k: int, n: int, d: int) -> Arrays:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((k, d)), rng.standard_normal((n, d))]


def kmeans(s: Side, centres: Any, points: Any) -> Any:
    """Squared distances to the nearest centres."""
    away = points[:, None, :] - centres[None]
    return s.sum(s.min(s.sum(away * away, axis=2), 1))


def vector_data(n: int) -> Arrays:
    return [np.random.default_rng(0).standard_normal(n)]


def lse(s: Side, x: Any) -> Any:
    return s.sum(logsumexp(s, x))


def fit_data(n: int, m: int) -> Arrays:
    t = np.linspace(-1.0, 1.0, n)
    return [np.random.default_rng(0).standard_normal(m), t, np.sign(t)]


def llsq(s: Side, x: Any, t: Any, wanted: Any) -> Any:
    """Half the squared error of a polynomial."""
    powers = s.powers(t, x.shape[0])
    error = wanted - powers @ x
    return 0.5 * s.sum(error * error)


# --- ba ------------------------------------------------------------------------------------------


def bundle_data(n: int, m: int, p: int) -> Arrays:
    rng = np.random.default_rng(0)
    cameras = rng.standard_normal((n, 11)) * 0.1
    cameras[:, 5] -= 4.0
    cameras[:, 6] += 1.0
    points = rng.standard_normal((m, 3)) * 0.5
    seen = [rng.integers(0, n, p), rng.integers(0, m, p)]
    return [cameras[seen[0]], points[seen[1]], rng.uniform(0.5, 1, p), rng.standard_normal((p, 2))]


def rotated(s: Side, r: Any, x: Any) -> Any:
    """Rodrigues' formula."""
    square = s.total(r * r, 1)
    angle = s.sqrt(square)
    axis = r / angle
    a, b, c = axis[:, 0:1], axis[:, 1:2], axis[:, 2:3]
    u, v, w = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    cross = s.concat([b * w - c * v, c * u - a * w, a * v - b * u], 1)
    along = s.total(axis * x, 1)
    return x * s.cos(angle) + cross * s.sin(angle) + axis * (along * (1.0 - s.cos(angle)))


def bundle(s: Side, camera: Any, point: Any, weight: Any, feature: Any) -> Any:
    """Two reprojection errors of every observation, of its own camera and point: (p, 2)."""
    here = rotated(s, camera[:, 0:3], point - camera[:, 3:6])
    plane = here[:, 0:2] / here[:, 2:3]
    square = s.total(plane * plane, 1)
    bend = 1.0 + camera[:, 9:10] * square + camera[:, 10:11] * square * square
    projected = camera[:, 6:7] * plane * bend + camera[:, 7:9]
    return weight[:, None] * (projected - feature)


CASES = {
    "gmm d 2, k 5": Case(mixture_data, mixture, (2, 5, 1000), wrt=(0, 1, 2)),
    "gmm d 10, k 25": Case(mixture_data, mixture, (10, 25, 1000), wrt=(0, 1, 2)),
    "gmm d 32, k 25": Case(mixture_data, mixture, (32, 25, 1000), wrt=(0, 1, 2)),
    "gmm d 64, k 50": Case(mixture_data, mixture, (64, 50, 1000), wrt=(0, 1, 2)),
    "kmeans k 10, n 1000, d 8": Case(points_data, kmeans, (10, 1000, 8), "newton"),
    "kmeans k 100, n 10000, d 8": Case(points_data, kmeans, (100, 10000, 8), "newton"),
    "kmeans k 100, n 10000, d 16": Case(points_data, kmeans, (100, 10000, 16), "newton"),
    "lse 2500": Case(vector_data, lse, (2500,)),
    "lse 40000": Case(vector_data, lse, (40000,)),
    "lse 1280000": Case(vector_data, lse, (1280000,)),
    "llsq n 256, m 128": Case(fit_data, llsq, (256, 128)),
    "llsq n 16392, m 128": Case(fit_data, llsq, (16392, 128)),
    "ba p 31843": Case(bundle_data, bundle, (49, 7776, 31843), "rows", (0, 1, 2)),
    "ba p 85217": Case(bundle_data, bundle, (138, 19878, 85217), "rows", (0, 1, 2)),
}


def derivative(side: Side, case: Case) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled, where the peer compiles: the objective, and what is asked of it."""

    def objective(*inputs: Any) -> Any:
        return case.run(side, *inputs)

    def asked(*inputs: Any) -> Any:
        if case.derive == "newton":
            return side.newton(objective, inputs)
        if case.derive == "gradient":
            return side.gradients(objective, inputs, case.wrt)
        # a row of residuals depends on a row of the inputs alone: two sums give every block
        rows = [lambda *i, c=c: side.sum(objective(*i)[:, c]) for c in (0, 1)]
        return [g for row in rows for g in side.gradients(row, inputs, case.wrt)]

    return side.compiled(objective), side.compiled(asked)


def one(peer: str, name: str, threads: int) -> dict[str, Any]:
    """Times and results of one case in this process."""
    case = CASES[name]
    side = Side.of(peer, threads, double=True)
    primal, asked = derivative(side, case)
    inputs = [side.array(d) for d in case.data(*case.sizes)]
    cold, found = side.first(lambda: asked(*inputs))
    side.first(lambda: primal(*inputs))
    return {
        "cold": cold,
        "primal": median_call(lambda: side.wait(primal(*inputs))),
        "warm": median_call(lambda: side.wait(asked(*inputs))),
        "sums": [summary(np.asarray(g)) for g in found],
    }


def show(name: str, runs: dict[str, dict[str, Any]]) -> float:
    """One row of the table; the better peer's time over pullback's."""
    mine = runs["pullback"]
    cells = []
    for peer, run in runs.items():
        times = [f"{run[k] * 1e3:.3f}" for k in ("primal", "warm")]
        cells += [*times, f"{run['warm'] / run['primal']:.1f}"]
        if peer != "pullback":
            ratio = run["warm"] / mine["warm"]
            wrong = "" if close(run["sums"], mine["sums"], 1e-8) else " RESULT DIFFERS"
            cells.append((f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**") + wrong)
    colds = " / ".join(f"{r['cold']:.2f}" for r in runs.values())
    print(f"| {name} | {' | '.join(cells)} | {colds} |", flush=True)
    return min(runs[p]["warm"] for p in runs if p != "pullback") / float(mine["warm"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jax_python", nargs="?", default=sys.executable)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.peer:
        report(one(options.peer, options.only, options.threads))
        return
    pythons = dict.fromkeys(PEERS, sys.executable) | {"jax": options.jax_python}
    ours = "pullback: primal, ms | derivative | ratio"
    theirs = [f"{p}: primal | derivative | ratio | {p} / pullback" for p in PEERS[1:]]
    print(f"| case | {ours} | {' | '.join(theirs)} | cold, s |")
    print("|---" * 13 + "|")
    ratios = []
    for name in [options.only] if options.only else CASES:
        found = best_runs(__file__, name, pythons)
        ratios.append(show(name, dict(zip(PEERS, found, strict=True))))
    mean = exp(sum(map(log, ratios)) / len(ratios))
    print(f"\nbetter peer over pullback: geometric mean {mean:.2f}, smallest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
