"""Complex tensors as pairs of real ones: composites, no element type and no primitive.

`pb.grad` of a real number by ``z = x + iy`` is ``df/dx + i df/dy``, PyTorch's convention: the
direction of steepest ascent, ``2 df/d(conj z)``. JAX gives its conjugate. The functions of `pb`
take them too: ``pb.exp(z)``, ``pb.matmul(z, w)``, ``pb.concat([z, w])``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from pullback.errors import DTypeError
from pullback.tensor import maths as M
from pullback.tensor import ops
from pullback.tensor.answers import Answering
from pullback.tensor.creation import asarray
from pullback.tensor.ops import where
from pullback.tensor.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Complex(Answering):
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
                raise DTypeError(f"no complex numbers of {array.dtype}", code="E149")
            return cls(array, array * 0.0)
        data = np.asarray(array)
        data = data if np.iscomplexobj(data) else data.astype(np.complex128)
        return cls(asarray(data.real.copy()), asarray(data.imag.copy()))

    @classmethod
    def polar(cls, size: Tensor, angle: Tensor) -> Complex:
        """``size e**(i angle)``"""
        return cls(size * M.cos(angle), size * M.sin(angle))

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.real.shape

    @property
    def angle(self) -> Tensor:
        """``atan2(y, x)``, radians."""
        found: Tensor = M.atan2(self.imag, self.real)
        return found

    def numpy(self) -> np.ndarray[Any, Any]:
        """The numbers, complex64 or complex128."""
        return np.asarray(self.real.numpy() + 1j * self.imag.numpy())

    def answer(self, name: str, args: Sequence[Any], settings: Mapping[str, Any]) -> Any:
        """A function of `pb` by its name. Raises: DTypeError for those of real numbers alone."""
        if name in FUNCTIONS:
            return FUNCTIONS[name](*args, **settings)
        if name in LINEAR:
            return self._parts(getattr(ops, name), args, settings)
        if name in PRODUCTS:
            return self._product(getattr(ops, name), args, settings)
        raise DTypeError(f"{name} is not defined for complex numbers", code="E149")

    def _parts(
        self, function: Callable[..., Any], args: Sequence[Any], settings: Mapping[str, Any]
    ) -> Complex:
        """What is linear, of each part; real operands have an imaginary part of 0."""
        real, imag = ([_part(a, name) for a in args] for name in ("real", "imag"))
        return Complex(function(*real, **settings), function(*imag, **settings))

    def _product(
        self, function: Callable[..., Any], args: Sequence[Any], settings: Mapping[str, Any]
    ) -> Complex:
        """What is linear in two operands: ``ac - bd + i(ad + bc)``."""
        first, second = (n for n, a in enumerate(args) if not isinstance(a, str))

        def times(x: Tensor, y: Tensor) -> Any:
            given = [*args]
            given[first], given[second] = x, y
            return function(*given, **settings)

        z, w = args[first], args[second]
        if isinstance(w, Tensor):
            return Complex(times(z.real, w), times(z.imag, w))
        if isinstance(z, Tensor):
            return Complex(times(z, w.real), times(z, w.imag))
        a, b, c, d = z.real, z.imag, w.real, w.imag
        return Complex(times(a, c) - times(b, d), times(a, d) + times(b, c))

    def conj(self) -> Complex:
        """``x - iy``"""
        return Complex(self.real, -self.imag)

    def exp(self) -> Complex:
        """``e**x (cos y + i sin y)``"""
        return Complex.polar(M.exp(self.real), self.imag)

    def log(self) -> Complex:
        """``log|z| + i angle``"""
        return Complex(M.log(self.square()) * 0.5, self.angle)

    def sqrt(self) -> Complex:
        """The root whose angle is half of z's."""
        return Complex.polar(M.sqrt(abs(self)), self.angle * 0.5)

    def square(self) -> Tensor:
        """``x**2 + y**2``, a real tensor."""
        return self.real * self.real + self.imag * self.imag

    def __abs__(self) -> Tensor:
        """``sqrt(x**2 + y**2)``; its gradient at 0 is 0."""
        square = self.square()
        found: Tensor = where(square > 0.0, M.sqrt(square), square)
        return found

    def sum(self, axis: Any = None, keepdims: bool = False) -> Complex:
        return self._each(lambda part: part.sum(axis=axis, keepdims=keepdims))

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

    def __pow__(self, other: Any) -> Complex:
        """``z**n`` by products for small whole n, else ``e**(w log z)``"""
        times = builtins.abs(other) if isinstance(other, int) else 0
        if not 0 < times <= POWERS:
            exponent: Complex = self.log() * other
            return exponent.exp()
        found: Complex = reduce(mul, [self] * times)
        return found if times == other else found.__rtruediv__(1.0)

    def __matmul__(self, other: Any) -> Complex:
        """``(a + ib) @ (c + id) = a@c - b@d + i(a@d + b@c)``"""
        return self._product(ops.matmul, (self, other), {})

    def __rmatmul__(self, other: Any) -> Complex:
        return self._product(ops.matmul, (other, self), {})

    def _like(self, other: Any) -> Complex:
        """`other` as complex; a Python number takes this one's element type."""
        if isinstance(other, builtins.complex | int | float):
            one = self.real * 0.0
            return Complex(one + other.real, one + other.imag)
        return Complex.of(other)


def _real(other: Any) -> bool:
    return isinstance(other, Tensor | int | float)


def _part(given: Any, name: str) -> Any:
    """A part of what is complex, inside of lists too; of a real tensor ``x`` and ``0``."""
    if isinstance(given, Complex):
        return getattr(given, name)
    if isinstance(given, list | tuple):
        return [_part(g, name) for g in given]
    if isinstance(given, np.ndarray) and np.iscomplexobj(given):
        return getattr(Complex.of(given), name)
    real = isinstance(given, Tensor | np.ndarray) and str(given.dtype).startswith("float")
    return given * 0.0 if real and name == "imag" else given


# --- functions by name ---------------------------------------------------------------------------

POWERS = 8  # exponents up to here are products


def _sin(z: Complex) -> Complex:
    """``sin x cosh y + i cos x sinh y``"""
    x, y = z.real, z.imag
    return Complex(M.sin(x) * M.cosh(y), M.cos(x) * M.sinh(y))


def _cos(z: Complex) -> Complex:
    """``cos x cosh y - i sin x sinh y``"""
    x, y = z.real, z.imag
    return Complex(M.cos(x) * M.cosh(y), -(M.sin(x) * M.sinh(y)))


def _turned(function: Callable[[Complex], Complex]) -> Callable[[Complex], Complex]:
    """``-i f(i z)``: of sin sinh, of tan tanh, and back."""

    def call(z: Complex) -> Complex:
        found = function(Complex(-z.imag, z.real))
        return Complex(found.imag, -found.real)

    return call


def _tanh(z: Complex) -> Complex:
    """``(a + ib) / (1 + iab)`` with ``a = tanh x, b = tan y``: nothing overflows."""
    a, b = M.tanh(z.real), M.tan(z.imag)
    return Complex(a, b) / Complex(a * 0.0 + 1.0, a * b)


def _where(condition: Any, z: Any, w: Any) -> Complex:
    one, two = (w._like(z), w) if isinstance(w, Complex) else (z, z._like(w))
    return Complex(where(condition, one.real, two.real), where(condition, one.imag, two.imag))


def _equal(z: Any, w: Any) -> Tensor:
    one, two = Complex.of(z), Complex.of(w)
    found: Tensor = M.logical_and(one.real == two.real, one.imag == two.imag)
    return found


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "positive": lambda z: z, "negative": lambda z: -z, "abs": abs, "square": lambda z: z * z,
    "exp": Complex.exp, "log": Complex.log, "sqrt": Complex.sqrt, "sin": _sin, "cos": _cos,
    "sinh": _turned(_sin), "cosh": lambda z: _cos(Complex(-z.imag, z.real)),
    "tanh": _tanh, "tan": _turned(_tanh), "reciprocal": lambda z: 1.0 / z,
    "sigmoid": lambda z: 1.0 / ((-z).exp() + 1.0),
    "add": lambda z, w: z + w, "subtract": lambda z, w: z - w, "multiply": lambda z, w: z * w,
    "divide": lambda z, w: z / w, "pow": lambda z, w: Complex.of(z) ** w, "equal": _equal,
    "not_equal": lambda z, w: M.logical_not(_equal(z, w)),
    "where": _where,
    "vecdot": lambda z, w, axis=-1: (Complex.of(z).conj() * w).sum(axis),
}  # fmt: skip
LINEAR = {
    "sum", "mean", "cumulative_sum", "stop_gradient", "reshape", "permute_dims",
    "matrix_transpose", "moveaxis", "expand_dims", "squeeze", "broadcast_to", "flip", "roll",
    "concat", "stack", "tile", "repeat", "tril", "triu", "take", "take_along_axis",
}  # fmt: skip
PRODUCTS = {"matmul", "tensordot", "outer", "einsum"}
