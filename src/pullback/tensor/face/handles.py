"""Scalars inside a definition: what the function given to `pb.compute` works with.

``a[i, k] * b[k, j]``. Handles overload operators; the nodes they hold never do. Axes have numbers
of their own until `compute` closes the definition. A reduction stays a `Fold` until then.

What is made of axes, extents and Python numbers alone has no float type of its own:
``sin(i * 0.1)`` takes that of what it meets, as 0.1 does; alone it is float32. An integer or a
truth made of such a float (``floor(i / 2)`` as an index, ``i * 0.1 < 0.5``) is decided in float64.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping, Sequence
from itertools import count
from typing import Any, cast

import numpy as np

from pullback.errors import DTypeError, Origin, ShapeError, TruthError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, bool_, float32, float64, int64, is_short
from pullback.ir.expr import Axis, Expr, Extent, If, Take
from pullback.ir.graph import COMBINERS, Value, read
from pullback.ir.node import walk
from pullback.tensor.face.dialect import public
from pullback.tensor.record.trace import Handle
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.elementwise import Scalar
from pullback.tensor.values.functions import TESTS, UNARY, UNARY_ANY
from pullback.tensor.values.indexing import checked_place
from pullback.tensor.values.rules import RULES, Arithmetic, Rule, left_to, power_by

FIRST_FREE = 1 << 32  # numbers of axes that no definition has bound yet


class Inner(Expr):
    """A reduction inside an expression; `compute` makes it a definition of its own."""

    __slots__ = ()

    @property
    def inside(self) -> tuple[Expr, ...]:
        """What it looks at for every place of the reduced axes."""
        raise NotImplementedError


class Fold(Inner):
    """A reduction by one of the combiners."""

    __slots__ = ("body", "combiner", "over")
    body: Expr
    combiner: str
    over: tuple[Axis, ...]

    def derive(self) -> None:
        bound = frozenset(a.number for a in self.over)
        self._set(dtype=self.body.dtype, axes=self.body.axes - bound)

    @property
    def inside(self) -> tuple[Expr, ...]:
        return (self.body,)


class _Names:
    """What is known about axes and reads for the sake of messages."""

    def __init__(self) -> None:
        self.numbers = count(FIRST_FREE)
        self.names: MutableMapping[Expr, str] = weakref.WeakKeyDictionary()
        self.origins: MutableMapping[Expr, Origin] = weakref.WeakKeyDictionary()


_known = _Names()


class Weak:
    """An expression whose float type is open: what it is as each float type."""

    __slots__ = ("known", "make")

    def __init__(self, make: Callable[[DType], Expr]) -> None:
        self.make = make
        self.known: dict[DType, Expr] = {}

    def __call__(self, kind: DType) -> Expr:
        if kind not in self.known:
            self.known[kind] = self.make(kind)
        return self.known[kind]


class ScalarHandle(Arithmetic["ScalarHandle"]):
    """A scalar expression that is not computed yet. `weak`: where its float type is open."""

    __slots__ = ("__weakref__", "expr", "name", "weak")
    __array_ufunc__ = None

    def __init__(self, expr: Expr, name: str = "", weak: Weak | None = None) -> None:
        self.expr = expr
        self.name = name
        self.weak = weak

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.expr.dtype

    def astype(self, dtype: Any) -> ScalarHandle:
        """The same as another type. Float to integer truncates and saturates."""
        return astype(self, D.dtype(dtype))

    def _apply(self, name: str, *operands: Any) -> ScalarHandle:
        beside = of_extents(self) and any(isinstance(o, Handle) for o in operands)
        if beside or not all(isinstance(o, SCALARS) for o in operands):
            return cast(ScalarHandle, left_to(name, self, operands))
        return combine(name, *operands)

    def __bool__(self) -> bool:
        raise TruthError(
            "a scalar expression has no truth value while a definition is being written",
            help="combine conditions with &, |, ~ (each in parentheses) and choose with pb.where; "
            "a chained 0 <= i < n is written (0 <= i) & (i < n)",
        )

    def _no_number(self) -> TruthError:
        return TruthError(
            "a scalar expression has no value while a definition is being written",
            help="it stays symbolic: use it in the expression, or look at the finished tensor",
            code="E151",
        )

    def __int__(self) -> int:
        raise self._no_number()

    def __float__(self) -> float:
        raise self._no_number()

    def __index__(self) -> int:
        raise self._no_number()

    def __getitem__(self, key: Any) -> ScalarHandle:
        raise ShapeError("a scalar expression has no axes to index", code="E111")

    def __dir__(self) -> list[str]:
        return public(type(self), {"expr", "name", "weak"})

    def __repr__(self) -> str:
        return self.name or repr(self.expr)


SCALARS = ScalarHandle | Scalar | Handle | E.Dim | np.generic


def new_axis(extent: Extent, name: str) -> ScalarHandle:
    """A fresh axis that a reduction or a definition is to bind."""
    number = next(_known.numbers)
    handle = settled(Axis(number, extent), name)
    _known.names[handle.expr] = name
    _known.origins[handle.expr] = Origin.of_caller()
    return handle


def axis_name(axis: Axis) -> str:
    """An axis for a message."""
    return _known.names.get(axis) or f"an axis of extent {axis.extent}"


def origin_of(expr: Expr) -> Origin | None:
    """Where the user wrote `expr`, if that is known."""
    return _known.origins.get(expr)


def locate(expr: Expr, origin: Origin) -> None:
    """Say where the user wrote `expr`."""
    if isinstance(expr, Take):
        expr.placed(origin)
    _known.origins[expr] = origin


def scalar_of(value: Any) -> Any:
    """A number as it is, an extent or a tensor without axes as a scalar expression."""
    if isinstance(value, ScalarHandle | Scalar):
        return value
    if isinstance(value, E.Dim):
        return settled(E.extent_expr(value), value.name)
    return ScalarHandle(as_expr(value))


def arity(name: str) -> int:
    """How many operands the operation `name` takes."""
    unary = (UNARY, UNARY_ANY, TESTS)
    single = ("negative", "positive", "bitwise_invert", "logical_not")
    return 1 if name in single or any(name in table for table in unary) else 2


def located(expr: Expr, weak: Weak | None = None) -> ScalarHandle:
    """A handle on `expr`, written where the caller is."""
    if expr not in _known.origins:
        locate(expr, Origin.of_caller())
    return ScalarHandle(expr, weak=weak)


def settled(expr: Expr, name: str = "") -> ScalarHandle:
    """An integer or a truth of axes alone: the same beside any float."""
    return ScalarHandle(expr, name, Weak(lambda kind: expr))


def _opened(make: Callable[[DType], Expr]) -> ScalarHandle:
    """What `make` gives for a float type, its own being open; what is no float, by float64."""
    weak = Weak(make)
    expr = weak(float32)
    if expr.dtype.is_float:
        return located(expr, weak)
    exact = weak(float64)
    return located(exact, Weak(lambda kind: exact))


def of_extents(operand: Any) -> bool:
    """Whether an operand is an extent, or made of extents and numbers alone."""
    if not isinstance(operand, ScalarHandle):
        return isinstance(operand, E.Dim)
    leaves = [n for n in walk(operand.expr) if not n.children]
    return operand.weak is not None and all(isinstance(n, E.Size | E.Const) for n in leaves)


def _open(operand: Any) -> bool:
    """Whether the float type of an operand is open: numbers, and what is made of them and axes."""
    if isinstance(operand, Scalar | E.Dim):
        return not isinstance(operand, np.generic)
    return getattr(operand, "weak", None) is not None


def _as(operand: Any, kind: DType) -> Expr | Scalar:
    """An open operand as it is where floats are `kind`; any other as it is."""
    weak = getattr(operand, "weak", None)
    return lift(operand) if weak is None else cast(Expr, weak(kind))


def _met(operand: Any) -> Expr | Scalar:
    """What an operand counts as where types meet: an open float like a Python float."""
    met = lift(operand)
    weak = isinstance(met, Expr) and met.dtype.is_float and _open(operand)
    return 0.0 if weak else met


def lift(operand: Any) -> Expr | Scalar:
    """A scalar operand: handles by their expression, tensors without axes by a read.

    Raises: ShapeError for a tensor with axes.
    """
    if isinstance(operand, ScalarHandle):
        return operand.expr
    if isinstance(operand, np.generic):  # as beside a tensor: of its own type
        return W.literal(operand.item(), D.dtype(operand.dtype))
    if isinstance(operand, Scalar | Expr):
        return operand
    if isinstance(operand, E.Dim):
        return E.extent_expr(operand)
    if not isinstance(operand, Handle):
        raise DTypeError(f"{operand!r} is no scalar expression", code="E143")
    if operand.shape:
        raise ShapeError(
            f"a tensor of shape {W.show(operand.shape)} stands where a scalar is wanted",
            help="read one element of it: give as many indices as it has axes",
            code="E131",
        )
    return read(operand.value)


def as_expr(operand: Any) -> Expr:
    """An operand as an expression; a Python number of its default type."""
    met = lift(operand)
    return W.literal(met, W.weak_dtype(met)) if isinstance(met, Scalar) else met


def typed(operand: Any, kind: DType) -> Expr:
    """A scalar operand as a type; what is open takes it, or is cast from float64."""
    met = _as(operand, kind if kind.is_float else float64)
    return W.literal(met, kind) if isinstance(met, Scalar) else W.cast(met, kind)


def combine(name: str, *operands: Any) -> ScalarHandle:
    """An element-wise operation on scalars, types promoted as for tensors."""
    if all(map(_open, operands)):
        return _opened(lambda kind: _combined(name, operands, kind))
    return located(_combined(name, operands, None))


def _combined(name: str, operands: Sequence[Any], open_kind: DType | None) -> Expr:
    """The operation, floats being `open_kind` where all operands are open."""
    met = [_met(o) if open_kind is None else _as(o, open_kind) for o in operands]
    rule: Rule = RULES[name]
    if name == "pow" and isinstance(operands[1], Scalar) and not isinstance(operands[0], Scalar):
        base = as_expr(operands[0]).dtype
        rule, operands, met = power_by(operands[1], base), operands[:1], met[:1]
    kind = rule.dtype(met)
    if open_kind is not None and kind.is_float:
        kind = open_kind
    return rule.body(*(typed(o, kind) for o in operands))


def where(condition: Any, then: Any, otherwise: Any) -> ScalarHandle:
    """``then if condition else otherwise``; the other is never read."""
    test = F.truth(as_expr(condition))
    branches = (then, otherwise)

    def chosen(open_kind: DType | None) -> Expr:
        kind = W.common_dtype(
            [_met(b) if open_kind is None else _as(b, open_kind) for b in branches]
        )
        if open_kind is not None and kind.is_float:
            kind = open_kind
        return If(test, typed(then, kind), typed(otherwise, kind))

    return _opened(chosen) if all(map(_open, branches)) else located(chosen(None))


def clip(x: Any, low: Any, high: Any) -> ScalarHandle:
    """``min(max(x, low), high)``"""
    raised = x if low is None else combine("maximum", x, low)
    return raised if high is None else combine("minimum", raised, high)


def astype(x: Any, kind: Any) -> ScalarHandle:
    """`x` as another type."""
    if isinstance(x, Scalar) and not kind.is_float:
        return located(W.cast(as_expr(x), kind))
    made = typed(x, kind)
    return located(made, Weak(lambda _: made) if _open(x) and not kind.is_float else None)


def read_at(tensor: Value, parts: Sequence[Any]) -> ScalarHandle:
    """``tensor[i, j]`` with a scalar for every axis.

    Raises: ShapeError for another number of indices, DTypeError for one that is no integer.
    """
    origin = Origin.of_caller()
    rank = len(tensor.shape)
    if len(parts) != rank:
        raise ShapeError(
            f"{len(parts)} indices read a tensor with {rank} axes, of shape {W.show(tensor.shape)}",
            origin=origin,
            help="inside a definition every axis gets one index; there are no partial reads",
            code="E130",
        )
    indices: list[Expr] = []
    for part, extent in zip(parts, tensor.shape, strict=True):
        if isinstance(part, slice) or part is None or part is Ellipsis:
            raise ShapeError("a slice inside a definition", origin=origin, code="E137")
        place = checked_place(as_expr(part), 0, extent)
        if not place.dtype.is_integer:
            raise DTypeError(f"an index of type {place.dtype}", origin=origin, code="E153")
        indices.append(W.cast(place, int64))
    return located(read(tensor, *indices))


def bound_axes(over: Any) -> tuple[Axis, ...]:
    """The axes that a reduction is over. Raises: DTypeError for what is no axis."""
    listed = tuple(over) if isinstance(over, list | tuple) else (over,)
    axes: list[Axis] = []
    for axis in listed:
        if not isinstance(axis, ScalarHandle) or not isinstance(axis.expr, Axis):
            raise DTypeError(
                f"over={axis!r} is no axis", help="make one with k = pb.axis(extent)", code="E154"
            )
        axes.append(axis.expr)
    return tuple(axes)


def fold(name: str, value: Any, over: Any) -> ScalarHandle:
    """``sum[k](value)``, and max, min, prod, any, all alike."""
    axes = bound_axes(over)

    def folded(operand: Expr | Scalar) -> Expr:
        body = as_expr(operand)
        if name in ("any", "all"):
            body = F.truth(body)
        elif name in ("sum", "prod"):
            body = W.cast(body, _sum_dtype(body))
        elif body.dtype == bool_:
            raise DTypeError(f"{name} of bool", help="use any or all")
        return Fold(body, COMBINERS[name].name, axes)

    if not _open(value):
        return located(folded(lift(value)))
    return _opened(lambda kind: folded(_opened_as(value, kind)))


def _opened_as(operand: Any, kind: DType) -> Expr | Scalar:
    """An open operand with its floats as `kind`, a Python float among them."""
    return W.literal(operand, kind) if isinstance(operand, float) else _as(operand, kind)


def _sum_dtype(body: Expr) -> Any:
    return int64 if body.dtype.is_bool or body.dtype.kind == "i" else body.dtype


def mean(value: Any, over: Any) -> ScalarHandle:
    """``sum[k](value) / n``"""
    number: Any = 1
    for axis in bound_axes(over):
        number = number * settled(E.extent_expr(axis.extent))
    kind = as_expr(value).dtype
    if not is_short(kind):
        return combine("divide", fold("sum", value, over), number)
    return astype(combine("divide", fold("sum", astype(value, float32), over), number), kind)


def arg_fold(name: str, value: Any, over: Any) -> ScalarHandle:
    """The first place of the largest (smallest) value, row-major over several axes."""
    axes = bound_axes(over)
    body = as_expr(_opened_as(value, float64) if _open(value) else value)
    best = Fold(body, name[3:], axes)
    hit: Expr = E.Equal(body, best)
    if body.dtype.is_float:
        hit = E.Or(hit, E.is_nan(body))
    place: Expr = E.index(0)
    size: Expr = E.index(1)
    for axis in axes:
        extent = E.extent_expr(axis.extent)
        place = E.Add(E.Mul(place, extent), axis)
        size = E.Mul(size, extent)
    last = E.Add(size, E.index(-1))
    return located(Fold(If(hit, place, last), "min", axes))
