"""Elements written where indices say: one core for assignment, `x.at[..]` and `scatter`.

    out = x;  for d in domain: out[at(d)] = reduce(out[at(d)], values(d))

Places that are known when a program is made are inverted, so that an update is a map. Others are
accumulating writes; of several values for one place `set` takes the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pullback.errors import DTypeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Expr, FloorDiv, If, Less, Mod, Mul
from pullback.ir.graph import (
    MAX,
    MIN,
    PROD,
    SUM,
    Accumulate,
    Combiner,
    Definition,
    Rule,
    Value,
    read,
)
from pullback.tensor.values import indexing as X
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import (
    Operand,
    Scalar,
    Shape,
    axes_of,
    broadcast_read,
    broadcast_shapes,
    cast,
    copy,
    elementwise,
    full,
    literal,
    make,
    show,
    weak_dtype,
)
from pullback.tensor.values.rules import RULES

# What `reduce` may be, the name of the operation for each. `set` takes the value itself.
OPERATIONS = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "power": "pow", "max": "maximum", "min": "minimum",
}  # fmt: skip
_COMBINERS = {"add": SUM, "subtract": SUM, "max": MAX, "min": MIN}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the elements of a box `domain` go in a tensor of shape `target`.

    `at`: an index for each axis of the target, over axes 0, 1, .. of the domain.
    """

    target: Shape
    domain: Shape
    at: tuple[Expr, ...]


def update(x: Value, parts: Sequence[X.Part], values: Operand, reduce: str = "set") -> Definition:
    """`x` with ``x[parts] = reduce(x[parts], values)``; `values` broadcast to ``x[parts]``.

    Raises: as `indexing.index`; ShapeError where the values do not fit, DTypeError for their kind.
    """
    region = X.region(x.shape, parts)
    checked = suited(x, values, region.shape)
    if region.fixed:
        return _inverted(x, region, checked, reduce)
    return scatter(x, Places(x.shape, region.shape, tuple(region.places())), checked, reduce)


def suited(x: Value, values: Operand, shape: Shape) -> Value:
    """`values` of the type of `x`. Raises: DTypeError, ShapeError where they do not fit."""
    kind = weak_dtype(values) if isinstance(values, Scalar) else values.dtype
    rank = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
    if rank[kind.kind] > rank[x.dtype.kind]:
        raise DTypeError(
            f"elements of {x.dtype} are given values of {kind}",
            help=f"cast them: values.astype({x.dtype.name!r}); or the tensor",
            code="E190",
        )
    if isinstance(values, Scalar):
        return full((), values, x.dtype)
    wide = len(values.shape) - len(shape)
    if wide > 0 and values.shape[:wide] == (1,) * wide:  # as NumPy: extents of 1 in front
        values = V.reshape(values, values.shape[wide:])
    if len(values.shape) > len(shape) or broadcast_shapes([values.shape, shape]) != shape:
        raise V.fail(
            f"values of shape {show(values.shape)} for a part of shape {show(shape)}", code="E110"
        )
    return values if values.dtype == x.dtype else elementwise("values", _same, [values], x.dtype)


def _same(value: Expr) -> Expr:
    return value


def _combined(reduce: str, old: Expr, new: Expr) -> Expr:
    return new if reduce == "set" else RULES[OPERATIONS[reduce]].body(old, new)


def _known(x: Value, reduce: str) -> None:
    """Raises: DTypeError where elements of this type have no such operation."""
    whole = reduce == "divide" and not x.dtype.is_float
    if whole or (reduce != "set" and x.dtype.is_bool):
        raise DTypeError(f"{reduce} at places of a tensor of {x.dtype}", code="E190")


# --- places that are known -----------------------------------------------------------------------


def _inverted(x: Value, region: X.Region, values: Value, reduce: str) -> Definition:
    """``out[i] = reduce(x[i], values[j]) if i is at(j) else x[i]``"""
    _known(x, reduce)
    out = axes_of(x.shape)
    inner: list[Expr] = [E.index(0)] * len(region.shape)
    guards: list[Expr] = []
    for axis, slot, extent in zip(out, region.slots, x.shape, strict=True):
        assert isinstance(slot, tuple), "places that are data are not inverted"
        target, start, step = slot
        if target < 0:
            guards.append(E.Equal(axis, E.index(start)))
            continue
        count = region.shape[target]
        if (start, step, count) == (0, 1, extent):
            inner[target] = axis
            continue
        if count == 0:
            guards.append(literal(False, D.bool_))
            continue
        inner[target] = _behind(axis, start, step, E.extent_expr(count), guards)
    old = read(x, *out)
    body = _combined(reduce, old, broadcast_read(values, region.shape, inner))
    if guards:
        body = If(V.conjunction(guards), body, old)
    return make(_name(reduce), x.shape, body)


def _behind(axis: Expr, start: int, step: int, count: Expr, guards: list[Expr]) -> Expr:
    """The j of ``axis == start + step * j``; `guards` gets the conditions that there is one."""
    away = V.affine(axis, -start, 1)
    if step < 0:
        away = E.subtract(E.index(start), axis)
    if start or step < 0:
        guards.append(E.logical_not(Less(away, E.index(0))))
    stride = E.index(abs(step))
    guards.append(Less(away, V.product([count, stride])))
    if abs(step) == 1:
        return away
    guards.append(E.Equal(Mod(away, stride), E.index(0)))
    return FloorDiv(away, stride)


def _name(reduce: str) -> str:
    return "set" if reduce == "set" else f"at_{reduce}"


# --- places that are data ------------------------------------------------------------------------


def scatter(x: Value, places: Places, values: Value, reduce: str = "set") -> Definition:
    """``out = x; for d in domain: out[at(d)] = reduce(out[at(d)], values(d))``, in order.

    `values` broadcasts to the domain and has the type of `x`. `reduce`: set, add, subtract,
    multiply, divide, power, max or min; ``divide`` and ``power`` by the product of the values.
    """
    _known(x, reduce)
    if 0 in places.domain:
        return elementwise(_name(reduce), _same, [x])
    if reduce == "set":
        return _last(x, places, values)
    one = broadcast_read(values, places.domain, axes_of(places.domain))
    combiner = _COMBINERS.get(reduce)
    if combiner is None:
        whole = product_at(places, one)
    else:
        whole = accumulated(places, one, combiner)
    out = axes_of(x.shape)
    return make(_name(reduce), x.shape, _combined(reduce, read(x, *out), read(whole, *out)))


def accumulated(
    places: Places, body: Expr, combiner: Combiner, name: str = "written"
) -> Definition:
    """``out = identity; for d in domain: out[at(d)] = combine(out[at(d)], body(d))``"""
    form = Accumulate(combiner, places.domain, places.at)
    return make(name, places.target, body, form, stop=not body.dtype.is_float)


def _last(x: Value, places: Places, values: Value) -> Definition:
    """The last value for a place is the one that stays, as if written one after the other."""
    axes = axes_of(places.domain)
    turn = V.linear(list(zip(axes, places.domain, strict=True)))
    winner = accumulated(places, turn, MAX, "last")
    out = axes_of(x.shape)
    won = read(winner, *out)
    back: list[Expr] = []
    stride: Expr = E.index(1)
    for extent in reversed(places.domain):
        size = E.extent_expr(extent)
        back.append(Mod(FloorDiv(won, stride), size))
        stride = V.product([stride, size])
    new = broadcast_read(values, places.domain, back[::-1])
    hit = E.logical_not(Less(won, E.index(0)))
    return make("set", x.shape, If(hit, new, read(x, *out)))


def product_at(places: Places, body: Expr) -> Definition:
    """The product of what is written to each place, 1 where nothing is; with its derivative.

    ``dv[d] = dout[at(d)] * (product of the other values for that place)``: without a division
    where one of them is 0. Second derivatives by two values of one place are those of values that
    are not 0.
    """
    values = make("values", places.domain, body)
    one = read(values, *axes_of(places.domain))
    plain = accumulated(places, one, PROD, "product")
    if not body.dtype.is_float:
        return plain
    differentiable = copy(plain, "product")

    def others() -> tuple[Definition, Definition]:
        """The product of values that are not 0, and how many are 0, at each place."""
        zero = E.Equal(one, literal(0, body.dtype))
        rest = product_at(places, If(zero, literal(1, body.dtype), one))
        return rest, accumulated(places, cast(zero, D.int64), SUM, "zeros")

    def slope(rest: Definition, zeros: Definition) -> Expr:
        rest_here, zeros_here = read(rest, *places.at), read(zeros, *places.at)
        zero = E.Equal(one, literal(0, body.dtype))
        alone = E.Equal(zeros_here, cast(zero, D.int64))
        share = If(zero, rest_here, E.Div(rest_here, If(zero, literal(1, body.dtype), one)))
        return If(alone, share, literal(0, body.dtype))

    def pull(adjoints: Sequence[Value]) -> Sequence[Value | None]:
        term = Mul(read(adjoints[0], *places.at), slope(*others()))
        return (make("d_values", places.domain, term),)

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        term = Mul(read(tangents[0], *axes_of(places.domain)), slope(*others()))
        return (accumulated(places, term, SUM, "d_product"),)

    differentiable.rule = Rule("product_at", (differentiable,), (values,), pull, push)
    return differentiable


def scatter_add(x: Value, indices: Value, values: Value, axis: int) -> Definition:
    """``out = x; for a, i, b: out[a, indices[i], b] += values[a, i, b]``; or ``indices[a, i, b]``.

    Raises: ShapeError where the three do not fit.
    """
    X.integer(indices.dtype)
    axis = V.normal_axis(axis, len(x.shape))
    count = values.shape[axis : axis + 1]
    whole = (*x.shape[:axis], *count, *x.shape[axis + 1 :])
    if values.shape != whole or indices.shape not in (count, whole):
        raise V.fail(
            f"scatter_add to {show(x.shape)} at {show(indices.shape)} of {show(values.shape)}"
        )
    axes = axes_of(whole)
    place = read(indices, *(axes if indices.shape == whole else axes[axis : axis + 1]))
    spot = X.wrapped(indices, place, x.shape[axis])
    at = (*axes[:axis], spot, *axes[axis + 1 :])
    body = cast(read(values, *axes), x.dtype)
    added = accumulated(Places(x.shape, whole, at), body, SUM, "added")
    out = axes_of(x.shape)
    return make("scatter_add", x.shape, E.Add(read(x, *out), read(added, *out)))
