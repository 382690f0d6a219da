"""Linear algebra of complex matrices: what factors one runs in NumPy, outside of programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pullback import linalg as L
from pullback.array_api.hosted import hosted
from pullback.errors import Origin, ShapeError, SingularError
from pullback.tensor.complex.pairs import FUNCTIONS, Complex
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.values.answers import P, R, answered

ROWS: dict[str, Callable[..., Any]] = {
    "eigh": L.Eigen,
    "qr": L.QR,
    "slogdet": L.SLogDet,
    "svd": L.SVD,
}
SINGLE = ("cholesky", "det", "eigvalsh", "inv", "matrix_rank", "pinv", "solve", "svdvals")


def both(function: Callable[P, R]) -> Callable[P, R]:
    """A function of real matrices that is asked for complex ones too."""
    return answered(function)


def _in_numpy(name: str, *given: Any, **settings: Any) -> Any:
    """NumPy's function of that name. Raises: SingularError, ShapeError for what it refuses."""
    values = {k: np.asarray(v) if isinstance(v, Tensor) else v for k, v in settings.items()}
    kept = {k: v for k, v in values.items() if v is not None}
    try:
        factors = hosted(f"linalg.{name}", partial(_plain, name, **kept), *given)
    except np.linalg.LinAlgError as problem:
        raise SingularError(f"linalg.{name}: {problem}", origin=Origin.of_caller()) from problem
    except ValueError as problem:
        what = f"linalg.{name}: {problem}"
        raise ShapeError(what, origin=Origin.of_caller(), code="E115") from problem
    return ROWS[name](*factors) if name in ROWS else factors[0]


def _plain(name: str, *arrays: Any, **settings: Any) -> Any:
    answer = getattr(np.linalg, name)(*arrays, **settings)
    return tuple(answer) if isinstance(answer, tuple) else answer


def _each(function: Callable[..., Tensor], z: Complex, **settings: Any) -> Complex:
    """What is linear, of each part."""
    return Complex(function(z.real, **settings), function(z.imag, **settings))


def _vector_norm(z: Complex, **settings: Any) -> Any:
    return L.vector_norm(M.abs(z), **settings)


def _matrix_norm(z: Complex, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    if ord not in (2, -2, "nuc"):
        return L.matrix_norm(M.abs(z), keepdims=keepdims, ord=ord)
    by = {2: O.max, -2: O.min, "nuc": O.sum}[ord]
    norm = by(_in_numpy("svdvals", z), axis=-1)
    return O.expand_dims(norm, (-2, -1)) if keepdims else norm


def _matrix_power(z: Complex, n: int) -> Any:
    base: Any = _in_numpy("inv", z) if n < 0 else z
    power: Any = Complex.of(L.matrix_power(z.real, 0))
    for _ in range(abs(n)):
        power = O.matmul(power, base)
    return power


def _trace(z: Complex, *, offset: int = 0, dtype: Any = None) -> Any:
    return O.sum(_each(L.diagonal, z, offset=offset), axis=-1, dtype=dtype)


FUNCTIONS |= {name: partial(_in_numpy, name) for name in (*ROWS, *SINGLE)}
FUNCTIONS |= {
    "vector_norm": _vector_norm,
    "matrix_norm": _matrix_norm,
    "matrix_power": _matrix_power,
    "diagonal": partial(_each, L.diagonal),
    "trace": _trace,
}
