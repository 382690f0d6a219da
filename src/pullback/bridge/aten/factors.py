"""Factors of matrices, and what is solved by them: calls of PyTorch's LAPACK inside a program.

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

from pullback.bridge.aten.table import aten, rule
from pullback.bridge.effects import EFFECTS
from pullback.bridge.programs import KINDS, TYPES
from pullback.errors import Origin, UnsupportedError
from pullback.linalg.operation import size
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.hosted import HostForm, HostFunction, Kind
from pullback.tensor.record.trace import current

LIBRARY = f"PyTorch {torch.__version__}"
CALLED = (
    aten._linalg_det.default, aten._linalg_eigh.default, aten._linalg_slogdet.default,
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
        what = f"{name} by LAPACK, in a program that calls no host"
        raise UnsupportedError(what, origin=Origin.of_caller(), code="E356")
    leaves, shape = tree_flatten(given)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(tensors: Sequence[Any]) -> list[Any]:
        own = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            own[place] = tensor
        args, named = tree_unflatten(own, shape)
        made = function(*args, **named)
        return [made] if isinstance(made, torch.Tensor) else list(made)

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        own = [a if a.flags.writeable else a.copy() for a in arrays]  # PyTorch warns of others
        with torch.no_grad():
            return tuple([t.numpy() for t in run([torch.from_numpy(a) for a in own])])

    def kinds(of: Sequence[Kind]) -> Sequence[Kind]:
        with _disable_current_modes():
            try:
                made = run([_outline(*kind) for kind in of])
            except NotImplementedError:  # PyTorch knows no shapes of it
                made = run([torch.ones_like(_outline(*kind), device="cpu") for kind in of])
        return [(tuple(t.shape), TYPES[t.dtype]) for t in made]

    host = HostFunction(name, LIBRARY, on_arrays, kinds, on_arrays)
    values = [leaves[n].value for n in places]
    form = HostForm(trace, host, values, strict=True, origin=Origin.of_caller())
    whole = tuple(map(Tensor, form.results))
    return whole if len(whole) > 1 else whole[0]


def _outline(shape: Sequence[Any], kind: Any) -> Any:
    """A tensor of no memory. Raises: UnsupportedError for a symbolic axis."""
    return torch.empty(tuple(map(size, shape)), dtype=KINDS[kind], device="meta")


def _of_any_size(*args: Any, **named: Any) -> str | None:
    tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
    known = all(isinstance(extent, int) for t in tensors for extent in t.shape)
    return None if known else "linear algebra along an axis of any size"


def _hosted(overload: Any) -> None:
    name = overload.overloadpacket.__name__

    def call(*args: Any, **named: Any) -> Any:
        return _called(name, overload, (args, named))

    rule(overload, refuses=_of_any_size)(call)


for _overload in CALLED:
    _hosted(_overload)


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
