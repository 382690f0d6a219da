"""`Tensor`: a lazy array under the array API's names. Operators build definitions.

``c = a * 2.5 + b[1:]``; nothing is computed until someone looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pullback.errors import DTypeError, GradientError, OptionError, ShapeError, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Definition, Value
from pullback.tensor.face import dialect, display, handles, leaves
from pullback.tensor.face import keys as K
from pullback.tensor.face.at import At
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.eager import eagerly, indexed, viewing
from pullback.tensor.face.extents import beside
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.protocols import protocols
from pullback.tensor.record import away
from pullback.tensor.record.away import CPU, Away, device_of, sent
from pullback.tensor.record.deferred import Deferred
from pullback.tensor.record.trace import (
    Array,
    Cell,
    Handle,
    array_of,
    bind,
    current,
    evaluate,
    held,
    known,
    realize,
    refuse_truth,
    settled,
    together,
)
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import linalg as L
from pullback.tensor.values import reduction as R
from pullback.tensor.values import views as V
from pullback.tensor.values.answers import Answering, answering
from pullback.tensor.values.elementwise import Scalar
from pullback.tensor.values.operands import operand as operand
from pullback.tensor.values.operands import value_of as value_of
from pullback.tensor.values.rules import RULES, Arithmetic, left_to, power_by

Axes = int | Sequence[int] | None


def check_device(device: object) -> None:
    """Raises: UnsupportedError for a device other than "cpu"."""
    if device is not None and str(device) != "cpu":
        help_ = 'make it on the processor, then copy it: x.to("cuda")'
        raise UnsupportedError(f"device {str(device)!r}", help=help_, code="E314")


class Tensor(Handle, Arithmetic["Tensor"]):
    """An array that is computed when it is looked at. Immutable.

    Example:
        >>> x = pb.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> (x @ x + 1).tolist()
        [[8.0, 11.0], [16.0, 23.0]]
    """

    __slots__ = ("_grad", "_requires_grad")
    _grad: Tensor | None
    _requires_grad: bool

    def __init__(self, value: Value, requires_grad: bool = False) -> None:
        super().__init__(value)
        self._grad = None
        self._requires_grad = False
        if requires_grad:
            self.requires_grad = True

    @classmethod
    def holding(cls, node: Value | Deferred) -> Tensor:
        """A tensor of what exists or waits, made where nothing is traced."""
        tensor = cls.__new__(cls)
        tensor._node = node
        tensor._grad = None
        tensor._requires_grad = False
        return tensor

    # --- facts

    @property
    def value(self) -> Value:
        """The definition or variable this stands for, as of now."""
        value = super().value
        if self._requires_grad:
            leaves.register(value, self)
        return value

    @property
    def waits(self) -> bool:
        """Whether calls with it as an operand may wait: it stands for one value, for good."""
        return not self._requires_grad

    def remembers(self) -> bool:
        """Whether the definition outlives its result, for a derivative asked for later."""
        value = self._value
        stops = isinstance(value, Definition) and value.stop
        return value.dtype.is_float and not stops and not isinstance(self, Cell)

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements; of a symbolic extent a number that the program knows."""
        return cast(int, math.prod(cast(Any, self.shape)))

    @property
    def device(self) -> str:
        """Where it lies: "cpu", or "cuda:0"."""
        node = self._node
        own = known(node)
        return own.resident.device if isinstance(own, Away) else CPU

    def to(self, device: object) -> Tensor:
        """The tensor on a device: itself where it lies there, else a copy.

        Raises: UnsupportedError inside `jit`, and for what is no device; DeviceError.

        Example:
            >>> pb.ones(3).to("cpu").device
            'cpu'
        """
        name = device_of(device)
        if name == self.device:
            return self
        if current() is not None:
            what, help_ = f"a copy to {name} inside a program", "copy before the call"
            raise UnsupportedError(what, help=help_, code="E314")
        if name == CPU:
            return Tensor(bind(self._array(), "copy"))
        return Tensor.holding(sent(held([self])[0], name))

    def to_device(self, device: object, /, *, stream: object = None) -> Tensor:
        """`to`, by the array API's name. Raises: UnsupportedError for a stream."""
        if stream is not None:
            raise UnsupportedError("copies on a stream of yours", help="leave it out", code="E314")
        return self if device is None else self.to(device)

    # --- operators

    def _apply(self, name: str, *operands: Any) -> Tensor:
        operands = beside(operands)
        if not all(isinstance(o, OPERANDS) for o in operands):
            speaker = answering(operands)
            if speaker is None:
                return cast(Tensor, left_to(name, self, operands))
            return cast(Tensor, speaker.answer(name, operands, {}))
        return tensor_apply(name, *operands)

    @eagerly
    def __matmul__(self, other: Any) -> Tensor:
        if isinstance(other, Answering):
            return cast(Tensor, NotImplemented)
        return Tensor(L.matmul(self.value, value_of(other)))

    def __rmatmul__(self, other: Any) -> Tensor:
        return Tensor(L.matmul(value_of(other), self.value))

    def __getitem__(self, key: Any) -> Any:
        element = indexed(self, key)
        if element is not None:
            return element
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(p, ScalarHandle) for p in parts):
            return handles.read_at(self.value, parts)
        return Tensor(K.chosen(self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Outside of programs: this tensor becomes ``x.at[key].set(value)``, for who holds it.

        Raises: UnsupportedError inside `jit`; GradientError for a leaf that asks for its gradient.
        """
        if current() is not None:
            raise UnsupportedError(
                "assignment to elements inside a program",
                help="x = x.at[index].set(value) gives the new tensor",
                code="E311",
            )
        if self._requires_grad:
            raise GradientError(
                "assignment to elements of a tensor that asks for its gradient",
                help="y = x.at[index].set(value) is another tensor, with a gradient by both",
                code="E346",
            )
        self.rebind(K.assigned(self, key, value))

    @property
    def at(self) -> At[Tensor]:
        """``x.at[index].set(v)``, `add`, `multiply`, ..: new tensors, here and in programs."""
        return At(self, Tensor)

    @property
    @viewing(np.transpose)
    def T(self) -> Tensor:
        """A matrix with its axes swapped. Raises: ShapeError for another rank."""
        if len(self.shape) != 2:
            raise V.fail(
                f".T of {W.show(self.shape)}", "use .mT for the last two axes", code="E111"
            )
        return Tensor(V.permute(self.value, (1, 0)))

    @property
    @viewing(np.matrix_transpose)
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        rank = len(self.shape)
        if rank < 2:
            raise V.fail(f".mT of {W.show(self.shape)}: two axes are needed", code="E111")
        return Tensor(V.permute(self.value, (*range(rank - 2), rank - 1, rank - 2)))

    # --- the same as functions of `pb`

    @eagerly
    @spelled
    def sum(self, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
        """Sum of elements."""
        return Tensor(R.total(self.value, axis, keepdims, optional_dtype(dtype)))

    @eagerly
    @spelled
    def prod(self, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
        """Product of elements."""
        return Tensor(R.product(self.value, axis, keepdims, optional_dtype(dtype)))

    @eagerly
    @spelled
    def mean(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Mean of elements."""
        return Tensor(R.mean(self.value, axis, keepdims))

    @eagerly
    @spelled
    def max(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """The largest element; NaN if any is."""
        return Tensor(R.extreme("max", self.value, axis, keepdims))

    @eagerly
    @spelled
    def min(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """The smallest element; NaN if any is."""
        return Tensor(R.extreme("min", self.value, axis, keepdims))

    @eagerly
    @spelled
    def any(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Whether any element is true."""
        return Tensor(R.truth("any", self.value, axis, keepdims))

    @eagerly
    @spelled
    def all(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Whether all elements are true."""
        return Tensor(R.truth("all", self.value, axis, keepdims))

    @eagerly
    @spelled
    def var(self, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """Variance of elements."""
        return Tensor(R.variance(self.value, axis, keepdims, correction))

    @eagerly
    @spelled
    def std(self, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """Standard deviation of elements."""
        return Tensor(R.deviation(self.value, axis, keepdims, correction))

    @eagerly
    @spelled
    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """The first place of the largest element."""
        return Tensor(R.arg_extreme("argmax", self.value, axis, keepdims))

    @eagerly
    @spelled
    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """The first place of the smallest element."""
        return Tensor(R.arg_extreme("argmin", self.value, axis, keepdims))

    @viewing(np.ndarray.reshape)
    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape."""
        return Tensor(V.reshape(self.value, shape_of(shape, -1)))

    @viewing(np.ravel)
    def flatten(self) -> Tensor:
        """The same elements along one axis."""
        return Tensor(V.reshape(self.value, (-1,)))

    @viewing(np.ndarray.transpose)
    def permute_dims(self, *axes: Any) -> Tensor:
        """Axis n of the result is axis ``axes[n]``."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        return Tensor(V.permute(self.value, order))

    @viewing(np.squeeze)
    def squeeze(self, axis: Axes = None) -> Tensor:
        """Axes of extent one removed."""
        return Tensor(V.squeeze(self.value, axis))

    @eagerly
    def astype(self, dtype: Any, *, copy: bool = True) -> Tensor:
        """Another element type."""
        if isinstance(dtype, Answering):
            return cast(Tensor, dtype.answer("astype", (self, dtype), {}))
        kind = D.dtype(dtype)
        return self if kind == self.dtype and not copy else Tensor(W.astype(self.value, kind))

    # --- gradients

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` leaves a gradient here."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted and not self.dtype.is_float:
            raise DTypeError(f"a tensor of {self.dtype} has no gradient", code="E148")
        self._requires_grad = bool(wanted)

    @property
    def grad(self) -> Tensor | None:
        """The gradients accumulated so far."""
        local = leaves.local_grad(self)
        return self._grad if local is None else local.grad

    @grad.setter
    def grad(self, new: Tensor | None) -> None:
        leaves.set_grad(self, new)

    def backward(self, gradient: Tensor | None = None) -> None:
        """Add the gradient of this scalar to `.grad` of every tensor that asks for one.

        Raises: GradientError for a non-scalar without `gradient`.
        """
        value = self.value
        head = None if gradient is None else gradient.value
        pairs = leaves.adjoints(value, head)
        for leaf, adjoint in pairs:
            _accumulate(leaf, Tensor(adjoint))
        grads = [leaf.grad.value for leaf, _ in pairs if leaf.grad is not None]
        together([value, *grads])

    def detach(self) -> Tensor:
        """The same values; no gradient passes."""
        return Tensor(W.copy(self.value, "detach", stop=True))

    # --- looking at it

    def numpy(self) -> Array:
        """A copy as a NumPy array; it never changes later."""
        node = self._node
        if type(node) is Deferred and node.call.host is not None and current() is None:
            leaf = known(node.args[0])
            if node.result is None and leaf is not None:  # a view: this copy is the only one
                return np.array(node.call.host(leaf.array), order="C")
        return np.array(self._array())

    def _array(self) -> Array:
        node = self._node
        if current() is None:
            if type(node) is Deferred and node.result is None:
                evaluate([node])
            if (ready := known(node)) is not None:
                return ready.array
        realize([self])
        return array_of(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if dtype is None and copy is None:
            return self.numpy()
        array = self._array()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                what = f"a view of {array.dtype} as {dtype} needs a copy"
                raise OptionError(what, code="E324")
            return array.astype(dtype)
        if copy is False:
            view = array.view()
            view.flags.writeable = False
            return view
        return np.array(array)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of a copy, as nobody may write to a tensor; what lies on a GPU is shared
        with `copy=False`, to be read.

        Raises: OptionError where a copy, or this device, is not wanted.
        """
        if dl_device not in (None, place := self.__dlpack_device__(), away.PROCESSOR):
            raise OptionError(f"device {dl_device}: the tensor is on {place}", code="E324")
        if away.PROCESSOR not in (place, dl_device):
            own = cast(Away, settled([self])[0])
            return away.handed(own, stream, max_version, copy is not False)
        if stream is not None:
            raise OptionError(f"stream {stream!r}: the processor has none", code="E324")
        if copy is False:
            raise OptionError("sharing of a tensor that nobody may write to", code="E324")
        if D.is_extended(self.dtype):
            what = f"{self.dtype} through DLPack"
            raise UnsupportedError(what, help="cast to float32 first", code="E318")
        return self.numpy().__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return away.place_of(self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where it lies on a GPU. Raises: AttributeError where it does not."""
        own = known(self._node)
        if not isinstance(own, Away):
            raise AttributeError(f"a tensor on {CPU}", name=away.INTERFACE, obj=self)
        return away.interface_of(own, self, isinstance(self, Cell))

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2024.12"):
            raise UnsupportedError(f"array API {api_version}", help="it is 2024.12 here")
        return protocols.room("array_api")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Any:
        return protocols.room("bridge.dispatch").of_ufunc(ufunc, method, inputs, given)

    def __array_function__(self, function: Any, types: Any, args: Any, given: Any) -> Any:
        return protocols.room("bridge.dispatch").of_function(function, args, given)

    def item(self) -> bool | int | float:
        """The only element as a Python number. Raises: ShapeError for more than one."""
        array = self._array()
        if array.size != 1:
            raise ShapeError(f"item() of a tensor of shape {W.show(self.shape)}", code="E131")
        scalar = array.reshape(()).astype(np.float64) if self.dtype.is_float else array.reshape(())
        number: bool | int | float = scalar.item()
        return number

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        array = self._array()
        return (array.astype(np.float32) if D.is_extended(self.dtype) else array).tolist()

    def __bool__(self) -> bool:
        refuse_truth()
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer or self.shape != ():
            raise DTypeError(
                f"a {self.dtype} tensor of shape {W.show(self.shape)} is no Python index",
                code="E153",
            )
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise V.fail("len() of a tensor without axes", code="E111")
        first = self.shape[0]
        if isinstance(first, Dim):
            raise V.fail(f"len() of the symbolic axis {first}", code="E120")
        return first

    def __iter__(self) -> Iterator[Tensor]:
        if self.waits and current() is None and known(self._node) is None:
            realize([self])  # each element would compute it otherwise
        return (self[n] for n in range(len(self)))

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __repr__(self) -> str:
        if current() is not None:
            return display.symbolic(self.shape, self.dtype)
        return display.array(self._array(), self.dtype)

    def _repr_html_(self) -> str:
        return display.html(repr(self), self.shape, self.dtype)

    def __dir__(self) -> list[str]:
        return dialect.public(type(self), INTERNAL)

    if not TYPE_CHECKING:  # to a type checker, what is not there is not there

        def __getattr__(self, name: str) -> Any:
            known = () if name[:2] == "__" else (n for n in dir(self) if n[0] != "_")
            raise dialect.unknown("Tensor", name, known)


class State(Tensor, Cell):
    """A tensor that may be given another value; a read binds the version of that moment.

    Example:
        >>> x = pb.State(pb.zeros(2))
        >>> x.assign(pb.ones(2))
        >>> x.tolist()
        [1.0, 1.0]
    """

    __slots__ = ()
    waits = False

    def __init__(self, value: Any, requires_grad: bool = False) -> None:
        super().__init__(value if isinstance(value, Value) else value_of(value), requires_grad)

    def assign(self, value: Any) -> None:
        super().assign(value if isinstance(value, Value) else value_of(value))


INTERNAL = {"holding", "outside", "rebind", "remembers", "value", "waits"}
OPERANDS = (Tensor, Handle, bool, int, float, np.generic, np.ndarray)


def _accumulate(leaf: Tensor, gradient: Tensor) -> None:
    """``leaf.grad += gradient``"""
    known = leaves.local_grad(leaf)
    if known is not None:
        total = gradient if known.grad is None else known.grad + gradient
        leaves.set_grad(leaf, total)
        return
    if current() is None:
        if isinstance(before := leaf._grad, State):
            before.assign(before + gradient)
            return
        leaf._grad = gradient if before is None else before + gradient
        return
    leaves.check_frame(leaf)
    if not isinstance(leaf._grad, State):
        start = W.full(leaf.shape, 0, leaf.dtype) if leaf._grad is None else leaf._grad.value
        leaf._grad = State(start)
    leaf._grad.assign(leaf._grad + gradient)


def optional_dtype(spec: Any) -> DType | None:
    """A type, or None for none."""
    return None if spec is None else D.dtype(spec)


def shape_of(spec: Any, least: int = 0) -> tuple[Extent, ...]:
    """A shape given as one extent, a sequence, or several arguments; numbers from `least` on.

    Raises: ShapeError for what is no extent.
    """
    if isinstance(spec, tuple) and len(spec) == 1 and isinstance(spec[0], list | tuple):
        spec = spec[0]
    if not isinstance(spec, Iterable):
        spec = (spec,)
    if isinstance(spec, str | bytes | bytearray):
        raise V.fail(f"{spec!r} is no shape", "extents are integers or pb.dim(..)", code="E119")
    listed = list(spec)
    for extent in listed:
        if isinstance(extent, bool) or not isinstance(extent, int | np.integer | Dim):
            raise V.fail(
                f"{extent!r} is no extent", "extents are integers or pb.dim(..)", code="E119"
            )
        if not isinstance(extent, Dim) and extent < least:
            raise V.fail(
                f"an extent of {extent} in {tuple(listed)}", f"{least} is the least", code="E119"
            )
        if not isinstance(extent, Dim):
            V.whole(extent, "an extent")
    return tuple(e if isinstance(e, Dim) else int(e) for e in listed)


def from_array(leaf: Any) -> Any:
    """A NumPy array as a tensor, anything else as it is. Raises: CapturedArrayError in `jit`."""
    return Tensor(value_of(leaf)) if isinstance(leaf, np.ndarray | np.generic) else leaf


def apply(name: str, *operands: Any) -> Any:
    """An element-wise operation on tensors, or on scalars inside a definition."""
    if (speaker := answering(operands)) is not None:
        return speaker.answer(name, operands, {})
    operands = beside(operands)
    if any(isinstance(o, ScalarHandle | Dim) for o in operands):
        return handles.combine(name, *operands)
    return tensor_apply(name, *operands)


@eagerly
def tensor_apply(name: str, *operands: Any) -> Tensor:
    """An element-wise operation on tensors."""
    args = [operand(o) for o in operands]
    rule = RULES[name]
    if name == "pow" and isinstance(args[1], Scalar) and not isinstance(args[0], Scalar):
        rule, args = power_by(args[1], args[0].dtype), args[:1]
    return Tensor(W.elementwise(rule.name, rule.body, args, rule.dtype(args)))
