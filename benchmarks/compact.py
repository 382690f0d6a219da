"""Products with weights of few bits, sparse matrices, beside float32, NumPy, SciPy and PyTorch.

`python benchmarks/compact.py quantised sparse`: processor time, one thread, in turn, least of 15.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb

OPTIONS = pb.Options(threads=1)
TURNS = 15


def least(runs: dict[str, Callable[[], Any]], turns: int = TURNS) -> dict[str, float]:
    """Milliseconds of processor time of each, run in turn."""
    for run in runs.values():
        run()
    found = dict.fromkeys(runs, float("inf"))
    for _ in range(turns):
        for name, run in runs.items():
            start = time.process_time()
            run()
            found[name] = min(found[name], (time.process_time() - start) * 1e3)
    return found


def compiled(function: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    program = pb.jit(function, options=OPTIONS)
    return lambda: program(*given).numpy()


def quantised(size: int) -> dict[str, float]:
    """A batch of one by `size` x `size` weights."""
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(size, size)).astype(np.float32)
    vector = rng.normal(size=size).astype(np.float32)
    W, x = pb.tensor(dense), pb.tensor(vector)
    runs = {"float32": compiled(lambda x, w: pb.einsum("k,nk->n", x, w), x, W)}
    for bits, group in ((8, None), (8, 128), (4, None), (4, 128)):
        w = pb.quantised.weights(W, bits, group)
        name = f"{bits} bits" + (f", groups of {group}" if group else "")
        runs[name] = compiled(pb.quantised.linear, x, w)
        if bits == 8 and group is None:
            linear8 = lambda x, w: pb.quantised.linear8(*pb.quantised.activations(x), w)  # noqa: E731
            runs["int8 by int8"] = compiled(linear8, x, w)
    try:
        import torch
    except ImportError:
        return least(runs)
    torch.set_num_threads(1)
    matrix, column = torch.from_numpy(dense), torch.from_numpy(vector)
    runs["PyTorch, float32"] = lambda: matrix @ column
    return least(runs)


def sparse(size: int, density: float, wide: int) -> dict[str, float]:
    """CSR by a vector and a matrix of `wide` columns, and the transpose; beside SciPy."""
    import scipy.sparse

    rng = np.random.default_rng(0)
    a = scipy.sparse.random(size, size, density, format="csr", dtype=np.float32, random_state=0)
    x = rng.normal(size=size).astype(np.float32)
    w = rng.normal(size=(size, wide)).astype(np.float32)
    own = [pb.tensor(v) for v in (a.data, a.indices, a.indptr)]

    def turned(*given: Any) -> Any:
        return pb.sparse.csr_transposed_matmul(*given, size)

    runs: dict[str, Callable[[], Any]] = {}
    for name, by in (("vector", x), ("matrix", w)):
        runs[name] = compiled(pb.sparse.csr_matmul, *own, pb.tensor(by))
        runs[f"{name}, SciPy"] = lambda by=by: a @ by
        runs[f"{name}, transposed"] = compiled(turned, *own, pb.tensor(by))
        runs[f"{name}, transposed, SciPy"] = lambda by=by, t=a.T: t @ by
    return {n: 1e3 * t for n, t in least(runs).items()}


def table(rows: dict[str, dict[str, float]], beside: str) -> None:
    names = list(next(iter(rows.values())))
    print("| | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for row, found in rows.items():
        cells = [f"{found[n]:.2f} ({found[beside] / found[n]:.2f}x)" for n in names]
        print(f"| {row} | " + " | ".join(cells) + " |")


def main() -> None:
    if "quantised" in sys.argv[1:]:
        table({f"{n} x {n}": quantised(n) for n in (4096, 8192, 12288)}, "float32")
    if "sparse" in sys.argv[1:]:
        sizes = ((2000, 0.005, 8), (2000, 0.01, 32), (2000, 0.05, 32), (2000, 0.2, 32))
        for given in (*sizes, (20000, 0.0005, 16)):
            found = sparse(*given)
            cells = [f"{found[n]:.0f} / {found[n + ', SciPy']:.0f}" for n in list(found)[::2]]
            print(
                f"| {given[0]}^2, {given[1]:.2%}, {given[2]} columns | " + " | ".join(cells) + " |"
            )


if __name__ == "__main__":
    main()
