"""Complex tensors of PyTorch in programs: pairs of real ones, which lie side by side in memory.

``z of (2, 3), complex64  ->  x of (2, 3, 2), float32;  pb.Complex(x[.., 0], x[.., 1])``
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pullback.bridge.programs import TYPES
from pullback.ir.dtype import DType
from pullback.tensor.complex.pairs import Complex, ComplexType, complex64, complex128
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import reshape, stack

PAIRS: dict[Any, ComplexType] = {torch.complex64: complex64, torch.complex128: complex128}
ELEMENTS: dict[Any, DType | ComplexType] = {**TYPES, **PAIRS}
"""What PyTorch's types of elements are here, of complex numbers too."""


def parts(given: Iterable[Any]) -> list[Any]:
    """Arguments as programs read them: complex tensors as pairs, where they lie."""
    return [
        torch.view_as_real(a.resolve_conj())
        if isinstance(a, torch.Tensor) and a.is_complex()
        else a
        for a in given
    ]


def pair(x: Tensor) -> Complex:
    """The complex numbers of a tensor of pairs: ``x (.., 2)``"""
    return Complex(x[..., 0], x[..., 1])


def beside(x: Tensor | Complex) -> Tensor:
    """Pairs of complex numbers side by side in rows, ``(.., n) -> (.., 2 n)``; else as it is.

    One axis of pairs has all lanes of a vector, an axis of two elements has two.
    """
    if isinstance(x, Tensor):
        return x
    *lead, last = x.shape or (1,)
    return reshape(stack([x.real, x.imag], axis=-1), (*lead, 2 * last))


def whole(result: Any, meta: Any, order: Sequence[int] | None) -> Any:
    """A result of a program, of rows of pairs where the graph promised complex numbers."""
    if meta.dtype not in PAIRS:
        return result
    shape = meta.shape if order is None else [meta.shape[n] for n in order]
    return complex_of(result, shape)


def complex_of(pairs: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Complex numbers over the memory of pairs, in rows."""
    if pairs.numel():
        return torch.view_as_complex(pairs.reshape(*shape, 2))
    return torch.complex(pairs.new_empty(shape), pairs.new_empty(shape))  # of no memory


def as_complex(value: Any, meta: Any) -> Complex:
    """A result of the complex type that the graph promised."""
    made = value if isinstance(value, Complex) else Complex.of(value)
    kind = PAIRS[meta.dtype]
    return made if made.dtype == kind else made.astype(kind)
