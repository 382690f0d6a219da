"""Products with weights of few bits, sparse matrices, beside float32, NumPy, SciPy and PyTorch.

`python benchmarks/compact.py quantised sparse`: processor time, one thread, in turn, least of 15;
`scipy`: medians of 201 calls in turn, which return tensors here and arrays there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
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


def by_activations(x: Any, w: Any) -> Any:
    return pb.quantised.linear8(*pb.quantised.activations(x), w)


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
            runs["int8 by int8"] = compiled(by_activations, x, w)
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


def beside_scipy(size: int, a_row: int, wide: int | None, matrices: int = 1) -> dict[str, float]:
    """SciPy's median by ours, in turn: products, and both gradients of one (NumPy's gathers).

    Of one matrix a processor learns where each row ends; of several in turn it does not.
    """
    import scipy.sparse

    rng = np.random.default_rng(0)
    shape = (size,) if wide is None else (size, wide)
    x, g = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    X, G = pb.tensor(x), pb.tensor(g)

    def loss(v: Any, columns: Any, starts: Any, x: Any, g: Any) -> Any:
        return pb.sum(pb.sparse.csr_matmul(v, columns, starts, x) * g)

    def slopes(c: Any, back: Any) -> Any:
        terms = g[c.row] * x[c.col]
        return terms if wide is None else terms.sum(1), back @ g

    csr = pb.jit(pb.sparse.csr_matmul, options=OPTIONS)
    turned = pb.jit(lambda *t: pb.sparse.csr_transposed_matmul(*t, size), options=OPTIONS)
    coo = pb.jit(lambda *t: pb.sparse.coo_matmul(*t, size), options=OPTIONS)
    grad = pb.jit(pb.grad(loss, argnums=(0, 3)), options=OPTIONS)
    runs: dict[str, list[tuple[Callable[[], Any], Callable[[], Any]]]] = {
        name: [] for name in ("CSR", "transposed", "COO", "both gradients")
    }
    for n in range(matrices):
        a = scipy.sparse.random(size, size, a_row / size, "csr", np.float32, n)
        c, t, back = a.tocoo(), a.T, a.T.tocsr()
        own = [pb.tensor(v) for v in (a.data, a.indices, a.indptr)]
        places = [pb.tensor(v) for v in (c.data, c.row, c.col)]
        runs["CSR"].append((partial(csr, *own, X), partial(a.__matmul__, x)))
        runs["transposed"].append((partial(turned, *own, X), partial(t.__matmul__, x)))
        runs["COO"].append((partial(coo, *places, X), partial(c.__matmul__, x)))
        runs["both gradients"].append((partial(grad, *own, X, G), partial(slopes, c, back)))
    return {name: medians(*map(in_turn, zip(*pairs, strict=True))) for name, pairs in runs.items()}


def in_turn(runs: Iterable[Callable[[], Any]]) -> Callable[[], Any]:
    """A call of the next one, and of the first after the last."""
    following = cycle(runs)
    return lambda: next(following)()


def medians(ours: Callable[[], Any], theirs: Callable[[], Any], turns: int = 201) -> float:
    """The median time of `theirs` by that of `ours`, warm, in turn."""
    times: tuple[list[float], list[float]] = [], []
    for turn in range(turns + 3):
        for own, run in zip(times, (ours, theirs), strict=True):
            start = time.perf_counter()
            run()
            if turn > 2:
                own.append(time.perf_counter() - start)
    return float(np.median(times[1]) / np.median(times[0]))


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
    if "scipy" in sys.argv[1:]:
        names = ("CSR", "transposed", "COO", "both gradients")
        print("| | columns | " + " | ".join(names) + " |\n|" + "---|" * 6)
        for size, a_row in ((2000, 10), (2000, 20), (2000, 100), (2000, 400), (20000, 10)):
            several = size * a_row < 10**5  # rows that a processor learns
            for wide, matrices in ((None, 1), *([(None, 20)] * several), (8, 1), (64, 1)):
                shares = beside_scipy(size, a_row, wide, matrices)
                cells = " | ".join(f"{shares[n]:.2f}" for n in names)
                by = f"{wide or 'a vector'}{f', {matrices} matrices' * (matrices > 1)}"
                print(f"| {size}^2, {a_row} a row | {by} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
