"""Complex tensors as pairs of real ones: composites, no element type and no primitive.

`pb.grad` of a real number by ``z = x + iy`` is ``df/dx + i df/dy``, PyTorch's convention: the
direction of steepest ascent, ``2 df/d(conj z)``. JAX gives its conjugate.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.errors import DTypeError, Origin
from pullback.tensor import maths as M
from pullback.tensor.creation import asarray
from pullback.tensor.ops import where
from pullback.tensor.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Complex:
    """``real + i imag``; both of one shape and element type. Trees of tensors may hold it."""

    real: Tensor
    imag: Tensor

    @classmethod
    def of(cls, array: Any) -> Complex:
        """An array of complex64 or complex128, a complex number, or a real tensor.

        Raises: DTypeError for float16, which NumPy has no complex type of, and for integers.
        """
        if isinstance(array, Complex):
            return array
        if isinstance(array, Tensor):
            if array.dtype.name not in ("float32", "float64"):
                raise DTypeError(f"no complex numbers of {array.dtype}", origin=Origin.of_caller())
            return cls(array, array * 0.0)
        data = np.asarray(array)
        data = data if np.iscomplexobj(data) else data.astype(np.complex128)
        return cls(asarray(data.real.copy()), asarray(data.imag.copy()))

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.real.shape

    def numpy(self) -> np.ndarray[Any, Any]:
        """The numbers, complex64 or complex128."""
        return np.asarray(self.real.numpy() + 1j * self.imag.numpy())

    def conj(self) -> Complex:
        """``x - iy``"""
        return Complex(self.real, -self.imag)

    def exp(self) -> Complex:
        """``e**x (cos y + i sin y)``"""
        size = M.exp(self.real)
        return Complex(size * M.cos(self.imag), size * M.sin(self.imag))

    def square(self) -> Tensor:
        """``x**2 + y**2``, a real tensor."""
        return self.real * self.real + self.imag * self.imag

    def __abs__(self) -> Tensor:
        """``sqrt(x**2 + y**2)``; its gradient at 0 is 0."""
        square = self.square()
        found: Tensor = where(square > 0.0, M.sqrt(square), square)
        return found

    def sum(self, axis: Any = None) -> Complex:
        return self._each(lambda part: part.sum(axis=axis))

    def reshape(self, shape: Any) -> Complex:
        return self._each(lambda part: part.reshape(shape))

    @property
    def T(self) -> Complex:
        """The transpose, not conjugated."""
        return self._each(lambda part: part.T)

    def __getitem__(self, place: Any) -> Complex:
        return self._each(lambda part: part[place])

    def _each(self, view: Callable[[Tensor], Tensor]) -> Complex:
        return Complex(view(self.real), view(self.imag))

    def __neg__(self) -> Complex:
        return self._each(lambda part: -part)

    def __add__(self, other: Any) -> Complex:
        if _real(other):
            return Complex(self.real + other, self.imag + (other * 0.0))
        o = self._like(other)
        return Complex(self.real + o.real, self.imag + o.imag)

    def __sub__(self, other: Any) -> Complex:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> Complex:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Complex:
        """``(a + ib)(c + id) = ac - bd + i(ad + bc)``"""
        if _real(other):
            return self._each(lambda part: part * other)
        a, b, o = self.real, self.imag, self._like(other)
        return Complex(a * o.real - b * o.imag, a * o.imag + b * o.real)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Complex:
        """``z / w = z conj(w) / |w|**2``"""
        if _real(other):
            return self._each(lambda part: part / other)
        o = self._like(other)
        return (self * o.conj()) / o.square()

    def __rtruediv__(self, other: Any) -> Complex:
        return self.conj().__mul__(other) / self.square()

    def __matmul__(self, other: Any) -> Complex:
        """``(a + ib) @ (c + id) = a@c - b@d + i(a@d + b@c)``"""
        a, b = self.real, self.imag
        if _real(other):
            return Complex(a @ other, b @ other)
        o = self._like(other)
        return Complex(a @ o.real - b @ o.imag, a @ o.imag + b @ o.real)

    def _like(self, other: Any) -> Complex:
        """`other` as complex; a Python number takes this one's element type."""
        if isinstance(other, builtins.complex):
            one = self.real * 0.0
            return Complex(one + other.real, one + other.imag)
        return Complex.of(other)


def _real(other: Any) -> bool:
    return isinstance(other, Tensor | int | float)
