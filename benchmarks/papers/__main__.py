"""Operations from papers as a user writes them, beside PyTorch eager and `jax.jit`.

`python -m benchmarks.papers [NAME ..] [--threads 2] [--check]`: value and gradients, milliseconds,
processor time of one thread, wall-clock time of several; median of a run of 1 s in a process of its
own, float32; ratios are the peer's time by ours. `--check`: float64, largest relative error beside
PyTorch, at the small sizes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SYSTEMS = ("pullback", "torch", "jax")
BAR = dict.fromkeys(("trilinear", "bilinear", "bilateral", "deformable", "hashgrid", "window"), 1.3)
BAR |= dict.fromkeys(("message", "scattermax", "gat", "tensorproduct"), 1.3)
NAMES = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("__main__", "__init__", "draw"))


def given(module: Any, small: bool, kind: Any) -> list[np.ndarray]:
    return [a.astype(kind) if a.dtype.kind == "f" else a for a in module.args(small)]


def head_of(module: Any, arrays: list[np.ndarray]) -> np.ndarray:
    import torch

    with torch.no_grad():
        y = module.torch_op(*map(torch.from_numpy, arrays))
    kind = next(a.dtype for a in arrays if a.dtype.kind == "f")
    return np.asarray(np.random.default_rng(1).standard_normal(tuple(y.shape)), kind)


def built(
    system: str, module: Any, arrays: list[np.ndarray], head: np.ndarray
) -> Callable[[], Any]:
    """A call that gives the value and the gradients of the first inputs."""
    n = module.DIFF
    if system == "pullback":
        import pullback as pb

        def both(h: Any, *xs: Any) -> Any:
            y = module.pb_op(*xs)
            return [y, *pb.grad(y, list(xs[:n]), head=h)]

        program, own = pb.jit(both), [pb.tensor(a) for a in arrays]
        h = pb.tensor(head)
        return lambda: program(h, *own)
    if system == "torch":
        import torch

        own = [torch.from_numpy(a.copy()) for a in arrays]
        for x in own[:n]:
            x.requires_grad_()
        h = torch.from_numpy(head)

        def call() -> Any:
            y = module.torch_op(*own)
            return [y.detach(), *torch.autograd.grad(y, own[:n], h)]

        return call
    import jax

    own = [jax.numpy.asarray(a) for a in arrays]
    h = jax.numpy.asarray(head)

    @jax.jit
    def compiled(h: Any, *xs: Any) -> Any:
        y, pull = jax.vjp(lambda *d: module.jax_op(*d, *xs[n:]), *xs[:n])
        return [y, *pull(h)]

    return lambda: jax.block_until_ready(compiled(h, *own))


def worker(name: str, system: str, threads: int) -> None:
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    os.environ["PULLBACK_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    module = importlib.import_module(f"benchmarks.papers.{name}")
    arrays = given(module, False, np.float32)
    call = built(system, module, arrays, head_of(module, arrays))
    norms = [float(np.linalg.norm(np.asarray(o, np.float64))) for o in call()]
    call()
    # What several threads take together counts one that waits for another.
    clock = time.process_time if threads == 1 else time.perf_counter
    times, stop = [], time.perf_counter() + 1.0
    while len(times) < 5 or (time.perf_counter() < stop and len(times) < 300):
        start = clock()
        call()
        times.append((clock() - start) * 1e3)
    print(json.dumps({"ms": float(np.median(times)), "least": min(times), "norms": norms}))


def measured(name: str, system: str, threads: int) -> dict[str, Any]:
    run = [sys.executable, "-m", "benchmarks.papers", "--worker", name, system, str(threads)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"ms": math.nan, "error": done.stderr.strip().splitlines()[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def differs(a: list[float], b: list[float]) -> bool:
    return any(abs(x - y) > 2e-3 * max(abs(y), 1e-3) for x, y in zip(a, b, strict=True))


def table(names: list[str], threads: int) -> None:
    print(
        "| operation | pullback ms | eager | jit | of the better | bar |\n|---|---|---|---|---|---|"
    )
    ratios = []
    for name in names:
        rows = {s: measured(name, s, threads) for s in SYSTEMS}
        own, torch, jax = (rows[s]["ms"] for s in SYSTEMS)
        better = np.nanmin([torch, jax]) / own
        ratios.append(better)
        bar = BAR.get(name, 1.0)
        notes = [f"{s}: {r['error']}" for s, r in rows.items() if "error" in r]
        known = [rows[s]["norms"] for s in SYSTEMS if "norms" in rows[s]]
        notes += ["RESULTS DIFFER"] if any(differs(known[0], k) for k in known[1:]) else []
        mark = "" if better >= bar else " below"
        print(
            f"| {name} | {own:.2f} | {torch / own:.2f} | {jax / own:.2f} | {better:.2f} | "
            f"{bar}{mark} | {' '.join(notes)}",
            flush=True,
        )
    mean = math.exp(float(np.nanmean(np.log(ratios))))
    print(f"geometric mean {mean:.2f}, smallest {np.nanmin(ratios):.2f}, {threads} thread(s)")


def check(names: list[str]) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    for name in names:
        module = importlib.import_module(f"benchmarks.papers.{name}")
        arrays = given(module, True, np.float64)
        head = head_of(module, arrays)
        results = [[np.asarray(o) for o in built(s, module, arrays, head)()] for s in SYSTEMS]
        for system, other in zip(SYSTEMS[1:], results[1:], strict=True):
            pairs = zip(results[0], other, strict=True)
            worst = max(float(abs(a - b).max() / max(abs(b).max(), 1e-30)) for a, b in pairs)
            print(f"{name} beside {system}: {worst:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--worker", nargs=3)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker[0], given.worker[1], int(given.worker[2]))
    elif given.check:
        check(given.names)
    else:
        table(given.names, given.threads)


if __name__ == "__main__":
    main()
