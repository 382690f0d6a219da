"""Factors of matrices, what is solved by them, and Fourier transforms: calls of PyTorch's libraries
inside a program.

``L, info = linalg_cholesky_ex(A)  ->  host linalg_cholesky_ex = linalg_cholesky_ex(A)``

Signs, pivots, numbers of failure and messages are those of eager PyTorch, because LAPACK is the
same. The program stays one: a call of the host stands between two of its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pullback.backends.host.system import array_at
from pullback.bridge.aten.table import COMPLEX, Rule, aten, rule
from pullback.bridge.complexes import beside, complex_of, pair, parts
from pullback.bridge.effects import EFFECTS
from pullback.bridge.private import NoModes
from pullback.bridge.programs import KINDS, TYPES
from pullback.errors import Origin, UnsupportedError
from pullback.linalg.operation import size
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.hosted import HostForm, HostFunction, Kind
from pullback.tensor.record.trace import current

LIBRARY = f"PyTorch {torch.__version__}"
CALLED = (
    aten._fft_c2c.default, aten._fft_c2r.default, aten._fft_r2c.default,
    aten._linalg_det.default, aten._linalg_eigh.default, aten._linalg_slogdet.default,
    aten.linalg_eig.default, aten.linalg_eigvals.default,
    aten._linalg_solve_ex.default, aten._linalg_svd.default, aten.cholesky.default,
    aten.cholesky_inverse.default, aten.cholesky_solve.default, aten.geqrf.default,
    aten.linalg_cholesky_ex.default, aten.linalg_householder_product.default,
    aten.linalg_inv_ex.default, aten.linalg_ldl_factor_ex.default, aten.linalg_ldl_solve.default,
    aten.linalg_lstsq.default, aten.linalg_lu.default, aten.linalg_lu_factor_ex.default,
    aten.linalg_lu_solve.default, aten.linalg_pinv.atol_rtol_tensor, aten.linalg_qr.default,
    aten.lu_unpack.default, aten.ormqr.default, aten.triangular_solve.default,
)  # fmt: skip


def _called(name: str, function: Callable[..., Any], given: Any) -> Any:
    """What PyTorch's `function` gives for tensors of a program, by a call of the host.

    Raises: UnsupportedError where the program calls no host, or along a symbolic axis.
    """
    trace = current()
    if trace is None or not trace.host:
        what = f"{name} by PyTorch, in a program that calls no host"
        raise UnsupportedError(what, origin=Origin.of_caller(), code="E356")
    leaves, shape = tree_flatten(given)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor | Complex)]

    def run(tensors: Sequence[Any]) -> list[Any]:
        own = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            leaf = leaves[place]
            own[place] = complex_of(tensor, leaf.shape) if isinstance(leaf, Complex) else tensor
        args, named = tree_unflatten(own, shape)
        made = function(*args, **named)
        return [made] if isinstance(made, torch.Tensor) else list(made)

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        own = map(_writeable, arrays)
        with torch.no_grad(), NoModes():  # else linalg.pinv is wrong in the first call of a graph
            return tuple([t.numpy() for t in parts(run([torch.from_numpy(a) for a in own]))])

    def outlines(of: Sequence[Kind]) -> list[Any]:
        with _disable_current_modes():
            try:
                return run([_outline(*kind) for kind in of])
            except NotImplementedError:  # PyTorch knows no shapes of it
                return run([torch.ones_like(_outline(*kind), device="cpu") for kind in of])

    def kinds(of: Sequence[Kind]) -> Sequence[Kind]:
        made = outlines(of)
        with _disable_current_modes():
            return [(tuple(t.shape), TYPES[t.dtype]) for t in parts(made)]

    host = HostFunction(name, LIBRARY, on_arrays, kinds, on_arrays)
    values = [beside(leaves[n]).value for n in places]
    form = HostForm(trace, host, values, strict=True, origin=Origin.of_caller())
    made = outlines([(v.shape, v.dtype) for v in values])
    tensors = map(Tensor, form.results)
    whole = [pair(t) if m.is_complex() else t for t, m in zip(tensors, made, strict=True)]
    return tuple(whole) if len(whole) > 1 else whole[0]


def _writeable(array: Any) -> Any:
    """The same memory, without a mark that nobody writes to it: PyTorch, which does not, warns."""
    if array.flags.c_contiguous:
        return array_at(array.ctypes.data, array.shape, array.dtype)
    return array.copy()


def _outline(shape: Sequence[Any], kind: Any) -> Any:
    """A tensor of no memory. Raises: UnsupportedError for a symbolic axis."""
    return torch.empty(tuple(map(size, shape)), dtype=KINDS[kind], device="meta")


def _of_any_size(*args: Any, **named: Any) -> str | None:
    tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
    known = all(isinstance(extent, int) for t in tensors for extent in t.shape)
    return None if known else "a call of the host along an axis of any size"


def _hosted(overload: Any) -> Rule:
    name = overload.overloadpacket.__name__

    def call(*args: Any, **named: Any) -> Any:
        return _called(name, overload, (args, named))

    return call


for _overload in CALLED:
    rule(_overload, refuses=_of_any_size)(_hosted(_overload))
for _overload in (  # of real matrices there are primitives
    aten.linalg_solve_triangular.default, aten.linalg_matrix_exp.default,
):  # fmt: skip
    COMPLEX[_overload] = _hosted(_overload)


# --- what says that a matrix has no factors -------------------------------------------------------


def _no_check(token: Any, operator: Any, *_: Any, **__: Any) -> str | None:
    del token
    known = operator == aten._linalg_check_errors.default
    return None if known else f"effects of {operator}"


@rule(EFFECTS, refuses=_no_check)
def checked(token: Any, operator: Any, info: Any, name: str, *, is_matrix: bool) -> Any:
    """PyTorch's error where a factorization failed; in order, by the token that is handed on."""

    def check(before: Any, numbers: Any) -> Any:
        if numbers.device.type != "meta":
            operator(numbers, name, is_matrix=is_matrix)
        return torch.empty_like(before)

    return _called("check_errors", check, ((token, info), {})), None
