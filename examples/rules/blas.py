"""Products of float32 by the OpenBLAS that NumPy brings along, through ctypes.

    y[i, j] = sum[k] x[i, k] * w[j, k]   ->   cblas_sgemm(x, w, transposed)

`python examples/rules/blas.py` times both ways; OPENBLAS_CORETYPE=SkylakeX asks for kernels with
AVX-512 where OpenBLAS does not know the processor.
"""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.ir.graph import Definition

TURNED = {
    "ac,cb->ab": (False, False),
    "ac,bc->ab": (False, True),
    "ca,cb->ab": (True, False),
    "ca,bc->ab": (True, True),
}
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
LEAST = 2**15  # multiplications; below, a call of the host costs more than the product


def library() -> ctypes.CDLL:
    """The OpenBLAS beside NumPy's own files: its wheels for Linux have one."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    return ctypes.CDLL(str(next(folder.glob("libscipy_openblas64_*"))))


BLAS = library()
SGEMM = BLAS.scipy_cblas_sgemm64_
SGEMM.argtypes = (
    *[ctypes.c_int] * 3, *[ctypes.c_int64] * 3, ctypes.c_float, ctypes.c_void_p, ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip
SGEMM.restype = None


def sgemm(turned: tuple[bool, bool], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``op(a) @ op(b)`` of contiguous matrices"""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    (m, k), n = (a.shape[::-1] if turned[0] else a.shape), b.shape[0 if turned[1] else 1]
    out = np.empty((m, n), np.float32)
    how = [TRANSPOSED if t else PLAIN for t in turned]
    SGEMM(
        ROW_MAJOR, *how, m, n, k, 1.0, a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1], 0.0,
        out.ctypes.data, n,
    )  # fmt: skip
    return out


@pb.rules.rewrite
def products_by_blas(definition: Definition) -> Any:
    product = pb.rules.product(definition)
    if product is None or definition.dtype != pb.float32:
        return None
    if not all(isinstance(e, int) for e in definition.extents):
        return None
    if product.spec[0] != "a" and product.spec[1] != "a":  # ``out`` begins with the other's axis
        product = product.swapped
    turned = TURNED.get(product.spec)
    if turned is None or np.prod(definition.extents) < LEAST:
        return None

    def call(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return sgemm(turned, a, b)

    return pb.rules.on_host(call, product.left, product.right, library=f"OpenBLAS {turned}")


def timed(run: Callable[..., object], *given: pb.Tensor, rounds: int = 9) -> float:
    """Milliseconds of processor time, the least of some rounds."""
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        run(*given)
        spent.append(time.process_time() - start)
    return min(spent) * 1e3


def main() -> None:
    BLAS.scipy_openblas_set_num_threads64_(1)
    one = pb.Options(threads=1)

    def product(x, w):
        return x @ w

    def layer(x, w):
        y = pb.maximum(x @ w, 0.0)
        return y, pb.grad(pb.sum(y * y), [x, w])

    print("processor time, ms, one thread: pullback, by the BLAS")
    for f, name in ((product, "product"), (layer, "layer and its gradients")):
        for n in (64, 256, 1024):
            x, w = (pb.tensor(np.random.rand(n, n).astype(np.float32)) for _ in range(2))
            ours, blas = pb.jit(f, options=one), pb.jit(f, options=one, rules=[products_by_blas])
            ours(x, w), blas(x, w)
            print(f"{name} {n}: {timed(ours, x, w):.3f} {timed(blas, x, w):.3f}")


if __name__ == "__main__":
    main()
