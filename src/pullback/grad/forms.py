"""Adjoints and tangents of every form: from a definition's to its body's, and back.

map              out[i] = b(i)                     db(i) = dout[i]
sum              out[i] = sum[k] b(i, k)           db(i, k) = dout[i]
max, min         out[i] = max[k] b(i, k)           db(i, k) = dout[i] where k wins first
prod             out[i] = prod[k] b(i, k)          db(i, k) = dout[i] * (product of the others)
scans            see `grad.scans`
accumulate       out[at(v)] += b(v)                db(v) = dout[at(v)]

Forward, what multiplies ``dout[i]`` above multiplies ``tb(i, k)``, and the products are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pullback.cost.facts import elements
from pullback.errors import UnsupportedError
from pullback.grad import fold, scans
from pullback.ir import expr as E
from pullback.ir.dtype import int32, int64
from pullback.ir.expr import Expr, Exprs, If
from pullback.ir.graph import (
    MIN,
    PROD,
    SUM,
    Accumulate,
    Definition,
    Map,
    Moves,
    Reduce,
    Scan,
    beside,
    read,
    substitute,
)

At = Callable[[Sequence[Expr]], Expr]
"""The adjoint of a definition, read at indices."""

NO_GRADIENT = ("any", "all")
PICKED = 4  # an accumulating write costs about as much as a gather of so many, in lanes


def body_adjoint(definition: Definition, at: At, first: bool = False) -> Expr | None:
    """The adjoint of the body over `definition.extents`; None where no gradient passes.

    `first`: of equal winners of a scan the first has it, as of a reduction.

    Raises: UnsupportedError for a form or combiner without a gradient.
    """
    form = definition.form
    if isinstance(form, Map):
        return at(definition.axes)
    if form.combiner.name in NO_GRADIENT:
        return None
    if isinstance(form, Scan):
        return scans.adjoint(definition, form, at, first)
    return _share(definition, at(_home(definition)))


def sums_nothing(definition: Definition) -> bool:
    """Whether this reduces, but is no sum, whose adjoint finds its triangles itself."""
    return isinstance(definition.form, Reduce) and definition.form.combiner is not SUM


def tangent_of(definition: Definition, body: Expr, first: bool = False) -> Definition:
    """The tangent of a definition from that of its body; `first`: see `body_adjoint`.

    Raises: UnsupportedError for a form or combiner without a derivative.
    """
    form = definition.form
    if isinstance(form, Scan):
        return scans.tangent(definition, form, body, first)
    if not isinstance(form, Map):
        body = _share(definition, body)
        form = replace(form, combiner=SUM)
    return beside(definition, f"t{definition.name}", body, form)


def picked(definition: Definition) -> Definition | None:
    """A large maximum as a map of its winners, where few of what it looks at can win.

    ``out[i] = max[k] b(i, k) -> out[i] = b(i, arg[i])``: adjoints accumulate once for each i.
    None where a gather, which compares every k with the winner, costs no more.
    """
    form = definition.form
    if not isinstance(form, Reduce) or form.combiner.name not in ("max", "min") or _single(form):
        return None
    if not all(isinstance(e, int) for e in definition.extents):
        return None
    cleared = sum(elements(s.shape) for s in definition.sources if s.dtype.is_float)
    if elements(definition.extents) <= cleared + PICKED * elements(definition.shape):
        return None
    rest = fold.cast(_winner(definition, form)[1], int64)
    # It lies inside, which no bound of data tells: guards on it fall away, checks too.
    last = E.index(elements(form.over) - 1)
    rest = E.minimum(E.maximum(rest, E.index(0)), last)
    places: Moves = {}
    rank = len(definition.shape)
    for number, extent in reversed(list(enumerate(form.over, rank))):
        size = E.extent_expr(extent)
        places[number] = rest if number == rank else E.Mod(rest, size)
        rest = E.FloorDiv(rest, size)
    return beside(definition, definition.name, substitute(definition.body, places), Map())


def _home(definition: Definition) -> Exprs:
    """Where in the result a point of the body goes."""
    form = definition.form
    if isinstance(form, Accumulate):
        return form.at
    return definition.axes[: len(definition.shape)]


def _share(definition: Definition, g: Expr) -> Expr:
    """``g`` times the derivative of the result by the body, at one point of the body.

    Raises: UnsupportedError by name.
    """
    form = definition.form
    if isinstance(form, Reduce | Accumulate):
        name = form.combiner.name
        if name == "sum" or _single(form):
            return g
        if name in ("max", "min"):
            place, best = _winner(definition, form)
            return If(E.Equal(place, best), g, fold.zero(g.dtype))
        if isinstance(form, Reduce) and name == "prod":
            return fold.scaled(g, _others(definition))
    raise scans.refusal(definition)


def _single(form: Reduce | Accumulate) -> bool:
    """Whether every result combines one value alone."""
    return isinstance(form, Reduce) and all(e == 1 for e in form.over)


def _combined(definition: Definition, form: Reduce | Accumulate) -> tuple[E.Axis, ...]:
    """The axes whose points are combined."""
    return definition.axes[len(definition.shape) if isinstance(form, Reduce) else 0 :]


def _position(definition: Definition, form: Reduce | Accumulate) -> Expr:
    """The combined axes as one row-major number: ``k * L + l``."""
    total: Expr = E.index(0)
    for axis in _combined(definition, form):
        total = fold.add(fold.mul(total, E.extent_expr(axis.extent)), axis)
    return total


def _winner(definition: Definition, form: Reduce | Accumulate) -> tuple[Expr, Expr]:
    """``k, arg[i]``: ``arg[i] = min[k](b(i, k) == out[i] ? k : last)``, NaN winning."""
    body = definition.body
    home = _home(definition)
    many = elements(a.extent for a in _combined(definition, form))
    kind = int32 if many < E.highest(int32).value else int64
    position = fold.cast(_position(definition, form), kind)
    wins: Expr = E.Equal(body, read(definition, *home))
    if body.dtype.is_float:
        wins = E.Or(wins, E.is_nan(body))
    place = If(wins, position, E.highest(kind))
    name = f"{definition.name}_arg"
    arg = beside(definition, name, place, replace(form, combiner=MIN))
    return position, read(arg, *home)


def _others(definition: Definition) -> Expr:
    """The product of all factors but one, without a division: exact at zeros, in every order.

    Along the last axis those before times those after; then the same of the products of rows.
    """
    name = definition.name
    rank = len(definition.shape)
    factor = definition.body
    product: Expr | None = None
    for number in reversed(range(rank, len(definition.extents))):
        shape = definition.extents[: number + 1]
        before, after = scans.products(definition, shape, factor, number)
        others = E.Mul(before, after)
        product = others if product is None else E.Mul(others, product)
        form = Reduce(PROD, shape[number:])
        rows = beside(definition, f"{name}_rows", factor, form, shape[:number])
        factor = read(rows, *definition.axes[:number])
    if product is None:
        raise UnsupportedError(
            f"a product over no axis ({name})", origin=definition.origin, code="E214"
        )
    return product
