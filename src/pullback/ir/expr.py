"""Scalar expressions: the bodies of definitions. Every class here is one primitive.

Index arithmetic is int64. Binary nodes take operands of one dtype; the surface inserts casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from pullback.config import entity, frozen
from pullback.errors import InvalidIR, Origin, ShapeError
from pullback.ir.dtype import DType, bool_, float8_e4m3fn, int64
from pullback.ir.node import Memo, Node, rebuild, walk

if TYPE_CHECKING:
    from pullback.ir.graph import Value


@frozen
class Dim:
    """A symbolic extent: one compiled program serves every value in `lo..hi`, both included.

    Example:
        >>> n = pb.dim("n", 1, 64)
        >>> n.lo, n.hi
        (1, 64)
    """

    name: str
    lo: int
    hi: int

    def __repr__(self) -> str:
        return self.name

    def _no_number(self, other: object) -> Any:
        """Raises: ShapeError; what is made of tensors has methods of its own for it."""
        if isinstance(other, Dim) or type(other).__module__ == "builtins":
            raise ShapeError(f"arithmetic of the symbolic extent {self}", code="E120")
        return NotImplemented

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _no_number
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _no_number
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = _no_number
    __lshift__ = __rshift__ = _no_number


@entity
class Pin(Dim):
    """A coordinate ``lo <= p <= hi`` that is fixed while a derivative is taken, and an axis after.

    Two pins are never equal; none is an extent.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__


Extent = int | Dim
Shape = tuple[Extent, ...]
Exprs = tuple["Expr", ...]


def upper(extent: Extent) -> int:
    """The largest value of an extent, elements."""
    return extent.hi if isinstance(extent, Dim) else extent


def lower(extent: Extent) -> int:
    """The smallest value of an extent, elements."""
    return extent.lo if isinstance(extent, Dim) else extent


@dataclass_transform(eq_default=False, frozen_default=True)
class Expr(Node, family=True):
    """A scalar expression. `axes` are the numbers of the axes that its value depends on."""

    __slots__ = ("axes", "dtype")
    dtype: DType
    axes: frozenset[int]

    def derive(self) -> None:
        kids: Any = self.children
        _put_dtype(self, self.typed(kids))
        _put_axes(self, _union(kids))

    def typed(self, kids: Exprs) -> DType:
        """The result type over operands `kids`. Raises: InvalidIR when they do not fit."""
        first = kids[0].dtype
        for kid in kids:
            # Element types are ten shared objects; equality is asked only where they differ.
            if kid.dtype is not first and kid.dtype != first:
                raise InvalidIR(f"{type(self).__name__} over {[k.dtype for k in kids]}")
        return first


_put_dtype = vars(Expr)["dtype"].__set__
_put_axes = vars(Expr)["axes"].__set__


def _union(kids: Exprs) -> frozenset[int]:
    if not kids:
        return frozenset()
    axes = kids[0].axes
    for kid in kids[1:]:
        if not kid.axes <= axes:
            axes |= kid.axes
    return axes


class Const(Expr):
    """A literal of type `kind`."""

    __slots__ = ("kind", "value")
    _literal: ClassVar[bool] = True
    value: int | float | bool
    kind: DType

    def typed(self, kids: Exprs) -> DType:
        if type(self.value) is not self.kind.python:
            raise InvalidIR(f"Const {self.value!r} of type {self.kind}")
        return self.kind


class Axis(Expr):
    """The value of axis `number` of the definition, ``0 <= axis < extent``; int64.

    Axes are numbered by position (outputs first, then reduced ones), so alpha-equal bodies
    are the same object.
    """

    __slots__ = ("extent", "number")
    number: int
    extent: Extent

    def derive(self) -> None:
        self._set(dtype=int64, axes=frozenset((self.number,)))


class Size(Expr):
    """The run-time value of a symbolic extent; int64. (An axis value: the bound of one.)"""

    __slots__ = ("dim",)
    dim: Dim

    def derive(self) -> None:
        self._set(dtype=int64, axes=frozenset())


class Take(Expr):
    """``source[indices]``: an indexed read; an index may itself be data.

    `origin` is where the user wrote it first, as far as that is known: it is no part of what the
    read is, and stays with it when passes rewrite it.
    """

    __slots__ = ("_origin", "indices", "source")
    source: Value
    indices: Exprs

    @property
    def origin(self) -> Origin | None:
        """The user's expression."""
        known: Origin | None = getattr(self, "_origin", None)
        return known

    def placed(self, origin: Origin | None) -> Self:
        """The same read; `origin` is remembered where none is known."""
        if origin is not None and self.origin is None:
            self._set(_origin=origin)
        return self

    def with_children(self, new: tuple[Node, ...]) -> Self:
        return super().with_children(new).placed(self.origin)

    def of(self, source: Value) -> Take:
        """The same read of something else."""
        return Take(source, self.indices).placed(self.origin)

    @property
    def places(self) -> Iterator[tuple[Expr, Extent]]:
        """Each index with the extent of the axis that it is on."""
        return zip(self.indices, self.source.shape, strict=True)

    @property
    def is_data(self) -> bool:
        """Whether an index is data, so that it is checked."""
        nested = [i for i in self.indices if type(i) is not Axis]
        return bool(nested) and any(map(is_data, walk(nested)))

    def typed(self, kids: Exprs) -> DType:
        if len(kids) != len(self.source.shape):
            raise InvalidIR(f"read of {self.source} with {len(kids)} indices")
        if any(k.dtype != int64 for k in kids):
            raise InvalidIR(f"index types {[k.dtype for k in kids]}, want int64")
        return self.source.dtype


class Unary(Expr):
    """An operation on one value, of its type."""

    __slots__ = ("value",)
    value: Expr


class Binary(Expr):
    """An operation on two values of one type."""

    __slots__ = ("left", "right")
    left: Expr
    right: Expr


class Add(Binary):
    """``left + right``; integers wrap."""

    __slots__ = ()


class Mul(Binary):
    """``left * right``; integers wrap."""

    __slots__ = ()


class Div(Binary):
    """``left / right`` of floats, IEEE 754."""

    __slots__ = ()

    def typed(self, kids: Exprs) -> DType:
        kind = super().typed(kids)
        if not kind.is_float:
            raise InvalidIR(f"Div of {kind}")
        return kind


class FloorDiv(Binary):
    """``floor(left / right)``; of integers exact, and 0 where `right` is 0."""

    __slots__ = ()


class Mod(Binary):
    """``left - floor(left / right) * right``; of integers 0 where `right` is 0."""

    __slots__ = ()


class Comparison(Binary):
    """How two values of one type compare: a boolean, false where either is NaN."""

    __slots__ = ()

    def typed(self, kids: Exprs) -> DType:
        super().typed(kids)
        return bool_


class Less(Comparison):
    """``left < right``"""

    __slots__ = ()


class Equal(Comparison):
    """``left == right``"""

    __slots__ = ()


class And(Binary):
    """Bitwise and; of booleans the logical one."""

    __slots__ = ()


class Or(Binary):
    """Bitwise or; of booleans the logical one."""

    __slots__ = ()


class Xor(Binary):
    """Bitwise exclusive or; ``Xor(b, True)`` is not."""

    __slots__ = ()


class Exp(Unary):
    """``e ** value``."""

    __slots__ = ()


class Log(Unary):
    """Natural logarithm."""

    __slots__ = ()


class Sqrt(Unary):
    """Square root, correctly rounded."""

    __slots__ = ()


class Sin(Unary):
    """Sine, argument in radians."""

    __slots__ = ()


class If(Expr):
    """``then if condition else otherwise``; the untaken branch is never read."""

    __slots__ = ("condition", "otherwise", "then")
    condition: Expr
    then: Expr
    otherwise: Expr

    def typed(self, kids: Exprs) -> DType:
        if not kids[0].dtype.is_bool:
            raise InvalidIR(f"If on {kids[0].dtype}")
        return super().typed(kids[1:])


def evaluated(node: Node) -> tuple[Node, ...]:
    """The children that a node needs whatever conditions say."""
    return (node.condition,) if isinstance(node, If) else node.children


class Cast(Expr):
    """`value` as type `to`. Float to integer truncates and saturates, NaN gives 0."""

    __slots__ = ("to", "value")
    value: Expr
    to: DType

    def typed(self, kids: Exprs) -> DType:
        return self.to


def rewritten(root: Expr, change: Callable[[Node], Node | None], memo: Memo | None = None) -> Expr:
    """What `rebuild` makes of an expression. Raises: InvalidIR where that is none."""
    new = rebuild(root, change, {} if memo is None else memo)
    if not isinstance(new, Expr):
        raise InvalidIR(f"rewriting {root} gave {new}")
    return new


def takes(roots: Iterable[Node] | Node) -> Iterator[Take]:
    """Every read in expressions, once each, those in indices first."""
    return (n for n in walk(roots) if isinstance(n, Take))


def is_data(node: Node) -> bool:
    """Whether a node of an index is known in a run only: a read, or an integer made of a float."""
    return isinstance(node, Take) or (isinstance(node, Cast) and node.value.dtype.is_float)


SCALARS: tuple[type[Expr], ...] = (
    Const, Axis, Take, Add, Mul, Div, FloorDiv, Mod, Less, Equal, And, Or, Xor,
    Exp, Log, Sqrt, Sin, If, Cast,
)  # fmt: skip

# Of floats only, and dear: many multiplications each.
DEAR: tuple[type[Expr], ...] = (Div, Exp, Log, Sqrt, Sin)


def const(value: Any, kind: DType) -> Const:
    """A literal converted to `kind` exactly as a cast would."""
    if not kind.is_integer:
        return Const(kind.python(value), kind)
    lo, hi = kind.range()
    wrapped = (int(value) - lo) % (hi - lo + 1) + lo
    return Const(wrapped, kind)


def is_const(e: Expr, value: object) -> bool:
    """Whether `e` is the literal `value`."""
    return isinstance(e, Const) and e.value == value


@lru_cache(maxsize=1024, typed=True)
def index(value: int) -> Const:
    """An int64 literal."""
    return Const(value, int64)


@frozen
class Derived(Dim):
    """An extent that others decide: `of` them, as ``2*M``."""

    of: Expr
    __repr__ = Dim.__repr__


def extent_expr(extent: Extent) -> Expr:
    """An extent as a scalar expression, of those that nothing else decides."""
    if isinstance(extent, Derived):
        return extent.of
    return Size(extent) if isinstance(extent, Dim) else index(extent)


def axes(shape: Iterable[Extent], first: int = 0) -> tuple[Axis, ...]:
    """An axis for each extent, numbered from `first` on."""
    return tuple([Axis(n, e) for n, e in enumerate(shape, first)])


def divisor(e: object) -> int:
    """The positive literal by which an int64 is divided, or its remainder taken; else 0."""
    if not isinstance(e, FloorDiv | Mod) or e.dtype is not int64:
        return 0
    return max(0, int(e.right.value)) if isinstance(e.right, Const) else 0


def negate(value: Expr) -> Expr:
    """``-value`` in primitives."""
    return Mul(value, const(-1, value.dtype))


def subtract(left: Expr, right: Expr) -> Expr:
    """``left - right`` in primitives."""
    return Add(left, negate(right))


def logical_not(value: Expr) -> Expr:
    """``not value`` in primitives."""
    return Xor(value, Const(True, bool_))


def is_nan(value: Expr) -> Expr:
    """``value != value`` in primitives."""
    return logical_not(Equal(value, value))


def maximum(left: Expr, right: Expr) -> Expr:
    """The larger; NaN if either is."""
    return _either(left, right, Less(left, right))


def minimum(left: Expr, right: Expr) -> Expr:
    """The smaller; NaN if either is."""
    return _either(left, right, Less(right, left))


def _either(left: Expr, right: Expr, second: Expr) -> Expr:
    """`right` where `second` holds or it is NaN, else `left`."""
    return If(Or(second, is_nan(right)) if left.dtype.is_float else second, right, left)


def lowest(kind: DType) -> Const:
    """The identity of max; e4m3fn has no infinity."""
    if kind.is_float:
        return Const(-448.0 if kind == float8_e4m3fn else -math.inf, kind)
    return const(kind.range()[0], kind)


def highest(kind: DType) -> Const:
    """The identity of min."""
    if kind.is_float:
        return Const(448.0 if kind == float8_e4m3fn else math.inf, kind)
    return const(kind.range()[1], kind)
