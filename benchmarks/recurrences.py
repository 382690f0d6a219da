"""Soft-DTW of 8 x 256 x 256 with gradient, and a filter: one thread's processor time, best of 9.

`taskset -c 0 python benchmarks/recurrences.py`. Beside pullback: JAX's scan and a loop in PyTorch
over the same diagonals (gradients their own), C cell by cell (gcc -O3, the gradient as in Cuturi
and Blondel, 2017), SciPy's `lfilter`. What is not installed is left out.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb

BATCH, N, M, GAMMA, FAR = 8, 256, 256, 0.5, 1e8
ROUNDS = 9
ONE = pb.Options(threads=1)
C = r"""
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
static float D[8][256][256], R[257][257], E[258][258], G[8][256][256];
static float run(float g, int grad) {
  float s = 0;
  for (int b = 0; b < 8; b++) {
    for (int i = 0; i < 257; i++) for (int j = 0; j < 257; j++) if (!i || !j) R[i][j] = 1e8f;
    R[0][0] = 0;
    for (int i = 1; i < 257; i++) for (int j = 1; j < 257; j++) {
      float a = R[i-1][j-1], u = R[i-1][j], l = R[i][j-1], m = fminf(a, fminf(u, l));
      R[i][j] = D[b][i-1][j-1] + m - g * logf(expf((m-a)/g) + expf((m-u)/g) + expf((m-l)/g));
    }
    s += R[256][256];
    if (!grad) continue;
    memset(E, 0, sizeof E);
    for (int i = 256; i >= 1; i--) for (int j = 256; j >= 1; j--) {
      float e = i == 256 && j == 256;
      if (i < 256) e += E[i+1][j] * expf((R[i+1][j] - R[i][j] - D[b][i][j-1]) / g);
      if (j < 256) e += E[i][j+1] * expf((R[i][j+1] - R[i][j] - D[b][i-1][j]) / g);
      if (i < 256 && j < 256) e += E[i+1][j+1] * expf((R[i+1][j+1] - R[i][j] - D[b][i][j]) / g);
      G[b][i-1][j-1] = E[i][j] = e;
    }
  }
  return s;
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
int main(void) {
  for (unsigned i = 0; i < 8 * 256 * 256; i++) ((float *)D)[i] = (i * 7919u % 1000u) / 1000.0f;
  for (int grad = 0; grad < 2; grad++) {
    double best = 1e9; float s = 0;
    for (int k = 0; k < 9; k++) {
      double t = now();
      s += run(0.5f, grad);
      t = now() - t;
      best = t < best ? t : best;
    }
    printf("%.2f %f\n", best, s);
  }
}
"""


def best(function: Callable[[], Any]) -> float:
    """Milliseconds of processor time."""
    function()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def soft_dtw(d: Any) -> Any:
    def cell(r: Any, b: Any, i: Any, j: Any) -> Any:
        both = pb.where((i > 0) & (j > 0), r[b, i - 1, j - 1], pb.where(i + j > 0, FAR, 0.0))
        up, left = pb.where(i > 0, r[b, i - 1, j], FAR), pb.where(j > 0, r[b, i, j - 1], FAR)
        least = pb.minimum(both, pb.minimum(up, left))
        terms = [pb.exp((least - one) / GAMMA) for one in (both, up, left)]
        return d[b, i, j] + least - GAMMA * pb.log(terms[0] + terms[1] + terms[2])

    return pb.sum(pb.recurrence(d.shape, cell)[:, -1, -1])


def ours(d: np.ndarray) -> tuple[float, float]:
    value, both = pb.jit(soft_dtw, options=ONE), pb.jit(pb.value_and_grad(soft_dtw), options=ONE)
    return best(lambda: value(d)), best(lambda: both(d))


def by_c(_: np.ndarray) -> tuple[float, float]:
    folder = Path(tempfile.mkdtemp())
    (folder / "soft.c").write_text(C)
    made = ["gcc", "-O3", "-march=native", "-fno-math-errno", "soft.c", "-o", "soft", "-lm"]
    subprocess.run(made, cwd=folder, check=True)
    lines = subprocess.run([folder / "soft"], capture_output=True, text=True, check=True).stdout
    first, second = (float(line.split()[0]) for line in lines.splitlines())
    return first, second


def by_jax(d: np.ndarray) -> tuple[float, float]:
    import jax
    import jax.numpy as jnp

    j = jnp.arange(N + M - 1)[:, None] - jnp.arange(N)[None]
    inside = (j >= 0) & (j < M)

    def soft(d: Any) -> Any:
        rows = d[:, jnp.arange(N)[None], jnp.clip(j, 0, M - 1)].transpose(1, 0, 2)

        def step(carry: Any, x: Any) -> Any:
            older, old = carry
            row, here, first = x
            edge = jnp.full((BATCH, 1), FAR)
            both = jnp.concatenate([jnp.where(first, 0.0, edge), older[:, :-1]], 1)
            up = jnp.concatenate([edge, old[:, :-1]], 1)
            least = jnp.minimum(both, jnp.minimum(up, old))
            terms = [jnp.exp((least - one) / GAMMA) for one in (both, up, old)]
            new = jnp.where(here, row + least - GAMMA * jnp.log(sum(terms)), FAR)
            return (old, new), None

        start = jnp.full((BATCH, N), FAR)
        first = jnp.arange(N + M - 1) == 0
        return jax.lax.scan(step, (start, start), (rows, inside, first))[0][1][:, -1].sum()

    value, both = jax.jit(soft), jax.jit(jax.value_and_grad(soft))
    return (
        best(lambda: jax.block_until_ready(value(d))),
        best(lambda: jax.block_until_ready(both(d))),
    )


def by_torch(d: np.ndarray) -> tuple[float, float]:
    import torch

    torch.set_num_threads(1)
    j = torch.arange(N + M - 1)[:, None] - torch.arange(N)[None]
    inside = (j >= 0) & (j < M)

    def soft(d: Any) -> Any:
        rows = d[:, torch.arange(N)[None], j.clamp(0, M - 1)].transpose(0, 1)
        older = old = torch.full((BATCH, N), FAR)
        edge = torch.full((BATCH, 1), FAR)
        for t in range(N + M - 1):
            both = torch.cat([edge if t else edge * 0, older[:, :-1]], 1)
            up = torch.cat([edge, old[:, :-1]], 1)
            least = torch.minimum(both, torch.minimum(up, old))
            terms = [torch.exp((least - one) / GAMMA) for one in (both, up, old)]
            new = rows[t] + least - GAMMA * torch.log(terms[0] + terms[1] + terms[2])
            older, old = old, torch.where(inside[t], new, FAR)
        return old[:, -1].sum()

    x = torch.tensor(d)
    leaf = x.clone().requires_grad_()

    def both() -> None:
        leaf.grad = None
        soft(leaf).backward()

    return best(lambda: soft(x)), best(both)


def filters() -> dict[str, float]:
    """``y[n] = x[n] + 0.9 y[n-1] - 0.2 y[n-2]`` of 64 signals of 2000 samples, float64."""
    x = np.random.default_rng(0).normal(size=(64, 2000))

    def cell(y: Any, c: Any, n: Any, x: Any) -> Any:
        before = pb.where(n > 0, 0.9 * y[c, n - 1], 0.0)
        return x[c, n] + before - pb.where(n > 1, 0.2 * y[c, n - 2], 0.0)

    made = pb.jit(lambda x: pb.recurrence(x.shape, lambda y, c, n: cell(y, c, n, x)), options=ONE)
    found = {"pullback": best(lambda: made(x))}
    if importlib.util.find_spec("scipy"):
        from scipy.signal import lfilter

        np.testing.assert_allclose(made(x), lfilter([1.0], [1.0, -0.9, 0.2], x), rtol=1e-9)
        found["SciPy"] = best(lambda: lfilter([1.0], [1.0, -0.9, 0.2], x))
    return found


def main() -> None:
    d = np.random.default_rng(0).random((BATCH, N, M), dtype=np.float32)
    print("soft-DTW", "value ms", "with gradient ms", sep="\t")
    print("pullback", *(f"{t:.1f}" for t in ours(d)), sep="\t")
    if shutil.which("gcc"):
        print("C", *(f"{t:.1f}" for t in by_c(d)), sep="\t")
    for name, function in (("jax", by_jax), ("torch", by_torch)):
        if importlib.util.find_spec(name):
            print(name, *(f"{t:.1f}" for t in function(d)), sep="\t")
    print("filter", *(f"{k} {t:.2f} ms" for k, t in filters().items()), sep="\t")


if __name__ == "__main__":
    main()
