"""Complex tensors as pairs of real ones: composites, no element type and no primitive.

`pb.grad` of a real number by ``z = x + iy`` is ``df/dx + i df/dy``, PyTorch's convention: the
direction of steepest ascent, ``2 df/d(conj z)``. JAX gives its conjugate. The functions of `pb`
take them too: ``pb.exp(z)``, ``pb.matmul(z, w)``, ``pb.concat([z, w])``.

One mechanism: a function that is given a `Complex`, a complex number or a complex type asks
`FUNCTIONS` for what it means (`answers.answered`), by its name. `complex_functions` fills it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.errors import DTypeError
from pullback.ir.dtype import DType, float32, float64
from pullback.tensor.complex import maths as P
from pullback.tensor.face.tensor import Tensor, check_device
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.record.trace import realize
from pullback.tensor.values.answers import BUILTIN, Answering
from pullback.tensor.values.rules import Arithmetic

Args = Sequence[Any]
Settings = Mapping[str, Any]


FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""What functions mean of complex numbers, by name."""


class Speaking(Answering):
    """What stands for complex numbers in a call, and has the call answered."""

    def answer(self, name: str, args: Args, settings: Settings) -> Any:
        """A function of `pb` by its name. Raises: DTypeError for those of real numbers alone."""
        if name in FUNCTIONS:
            return FUNCTIONS[name](*args, **settings)
        raise DTypeError(f"{name} is not defined for complex numbers", code="E149")


@dataclass(frozen=True, slots=True, eq=False)
class ComplexType(Speaking):
    """An element type of complex numbers: pairs of `part`."""

    name: str
    part: DType
    kind: str = "c"

    @property
    def bits(self) -> int:
        """Of both parts."""
        return 2 * self.part.bits

    @property
    def itemsize(self) -> int:
        """Bytes of both parts."""
        return 2 * self.part.itemsize

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's type of the same numbers."""
        return np.dtype(self.name)

    def __repr__(self) -> str:
        return self.name


complex64 = ComplexType("complex64", float32)
complex128 = ComplexType("complex128", float64)
TYPES = (complex64, complex128)


def complex_type(spec: Any) -> ComplexType | None:
    """The complex type that is meant, or None: by itself, its name, NumPy's or Python's type."""
    if isinstance(spec, ComplexType):
        return spec
    names = {"complex64": complex64, "complex128": complex128}
    if isinstance(spec, str):
        return names.get(spec)
    if spec is builtins.complex:
        return complex64
    named = getattr(spec, "name", getattr(spec, "__name__", None))
    return names.get(named) if isinstance(named, str) else None


@dataclass(frozen=True, eq=False, repr=False)
class Complex(Speaking, Arithmetic["Complex"]):
    """``real + i imag``; both of one shape and element type. Trees of tensors may hold it.

    Example:
        >>> pb.Complex(pb.ones(2), pb.zeros(2)) * 1j
        Complex(Tensor([0., 0.], dtype=float32), Tensor([1., 1.], dtype=float32))
    """

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
            return cls(array, C.zeros_like(array))
        data = np.asarray(array)
        data = data if np.iscomplexobj(data) else data.astype(np.complex128)
        return cls(C.asarray(data.real.copy()), C.asarray(data.imag.copy()))

    @classmethod
    def polar(cls, size: Tensor, angle: Tensor) -> Complex:
        """``size e**(i angle)``"""
        return cls(size * M.cos(angle), size * M.sin(angle))

    # --- facts

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents of the axes."""
        return self.real.shape

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def size(self) -> int | None:
        """How many elements; None where an extent is symbolic."""
        return self.real.size

    @property
    def dtype(self) -> ComplexType:
        """complex64 or complex128."""
        return complex128 if self.real.dtype == float64 else complex64

    @property
    def device(self) -> str:
        """Where it lives."""
        return "cpu"

    def to_device(self, device: object, /, *, stream: object = None) -> Complex:
        """Itself: there is only "cpu"."""
        check_device(device)
        return self

    @property
    def angle(self) -> Tensor:
        """``atan2(y, x)``, radians."""
        radians: Tensor = M.atan2(self.imag, self.real)
        return radians

    # --- looking at it

    def numpy(self) -> np.ndarray[Any, Any]:
        """The numbers, complex64 or complex128."""
        realize([self.real, self.imag])  # as one program: they share most of what they compute
        real = self.real.numpy()
        array = np.empty(real.shape, self.dtype.numpy)
        array.real, array.imag = real, self.imag.numpy()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.real.__array_namespace__(api_version=api_version)

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule of a copy. Raises: OptionError where a copy is not wanted."""
        self.real.__dlpack__(**options)
        return self.numpy().__dlpack__(max_version=options.get("max_version"))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self) -> builtins.complex:
        """The only element as a Python number. Raises: ShapeError for more than one."""
        realize([self.real, self.imag])
        return builtins.complex(self.real.item(), self.imag.item())

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self.numpy().tolist()

    def __complex__(self) -> builtins.complex:
        return self.item()

    def __bool__(self) -> bool:
        return self.item() != 0

    def __float__(self) -> float:
        raise DTypeError("a complex number is no float", help="z.real, abs(z)", code="E149")

    __int__ = __index__ = __float__

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[Complex]:
        return (self[n] for n in range(len(self)))

    def __repr__(self) -> str:
        return f"Complex({self.real!r}, {self.imag!r})"

    # --- functions that are methods too

    def _apply(self, name: str, *operands: Any) -> Any:
        if not all(isinstance(o, OPERANDS) for o in operands):
            return NotImplemented
        return self.answer(name, operands, {})

    def __matmul__(self, other: Any) -> Complex:
        """``(a + ib) @ (c + id) = a@c - b@d + i(a@d + b@c)``"""
        product: Complex = self.answer("matmul", (self, other), {})
        return product

    def __rmatmul__(self, other: Any) -> Complex:
        product: Complex = self.answer("matmul", (other, self), {})
        return product

    def __getitem__(self, place: Any) -> Complex:
        return self._each(lambda part: part[place])

    def __setitem__(self, place: Any, value: Any) -> None:
        real, imag = pair_of(value)
        self.real[place] = real
        self.imag[place] = imag

    def conj(self) -> Complex:
        """``x - iy``"""
        return Complex(self.real, -self.imag)

    def exp(self) -> Complex:
        """``e**x (cos y + i sin y)``"""
        return self._mapped(P.exp)

    def log(self) -> Complex:
        """``log|z| + i angle``"""
        return self._mapped(P.log)

    def sqrt(self) -> Complex:
        """The root whose angle is half of z's."""
        return self._mapped(P.sqrt)

    def square(self) -> Tensor:
        """``x**2 + y**2``, a real tensor."""
        return self.real * self.real + self.imag * self.imag

    def sum(self, axis: Any = None, keepdims: bool = False) -> Complex:
        """``s = sum[axis] z``"""
        return self._each(lambda part: part.sum(axis=axis, keepdims=keepdims))

    def reshape(self, *shape: Any) -> Complex:
        """The same elements in row-major order, in another shape."""
        return self._each(lambda part: part.reshape(*shape))

    def astype(self, dtype: Any, *, copy: bool = True) -> Complex:
        """Another complex type. Raises: DTypeError for a real one."""
        converted: Complex = self.answer("astype", (self, dtype), {"copy": copy})
        return converted

    @property
    def T(self) -> Complex:
        """The transpose, not conjugated."""
        return self._each(lambda part: part.T)

    @property
    def mT(self) -> Complex:
        """The last two axes swapped, not conjugated."""
        return self._each(lambda part: part.mT)

    def _each(self, view: Callable[[Tensor], Tensor]) -> Complex:
        return Complex(view(self.real), view(self.imag))

    def _mapped(self, function: P.Function) -> Complex:
        return Complex(*function(self.real, self.imag))


OPERANDS = (Complex, Tensor, bool, int, float, builtins.complex, np.generic, np.ndarray)
BUILTIN[builtins.complex] = complex64


def pair_of(x: Any) -> tuple[Any, Any]:
    """The parts of an operand: tensors, or Python numbers, which take the type they meet."""
    if isinstance(x, Complex):
        return x.real, x.imag
    if isinstance(x, np.ndarray | np.generic):
        return pair_of(C.asarray(np.asarray(x)))
    if isinstance(x, builtins.complex):
        return x.real, x.imag
    return x, 0.0
