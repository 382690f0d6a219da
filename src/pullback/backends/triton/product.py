"""Sums of products: which axes are rows, which columns, which terms.

``sum over k of left(b, m, k) * right(b, k, n)``; any of b, m, n, k may be several axes
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, float16, is_short
from pullback.ir.expr import Expr, upper
from pullback.ir.graph import Map, Reduce
from pullback.ir.kernel import Stage, stage_reads
from pullback.simplify.rules import holds

# Types that tensor cores multiply: float64 with sums of its own, the others with sums in float32.
KINDS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Product:
    """Both factors, what the sum is multiplied by, and the axes: shared, of rows, of columns."""

    left: Expr
    right: Expr
    scale: tuple[Expr, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    terms: tuple[int, ...]


def product_of(stage: Stage) -> Product | None:
    """A stage as a sum of products of two factors; None: it is none, or one by a vector."""
    form, body = stage.form, stage.body
    if not (isinstance(form, Reduce) and form.combiner.name == "sum" and body.dtype.name in KINDS):
        return None
    over = {a for a in stage.over if stage.extents[a] != 1}
    factors = _factors(body)
    scale = tuple(f for f in factors if not f.axes & over)
    sides = _sides([f for f in factors if f.axes & over], len(stage.shape))
    if sides is None:
        return None
    (left, ours), (right, theirs) = sides
    long = {a for a in range(len(stage.shape)) if stage.extents[a] != 1}
    rows, columns = (tuple(sorted((a - b) & long)) for a, b in ((ours, theirs), (theirs, ours)))
    batch = tuple(sorted(long - {*rows, *columns}))
    if not (rows and columns and over and all(upper(stage.extents[a]) > 0 for a in over)):
        return None
    return Product(left, right, scale, batch, rows, columns, tuple(sorted(over)))


def _factors(e: Expr) -> list[Expr]:
    """``a * b * c``; what guards a product guards its first factor."""
    match e:
        case E.Mul():
            return _factors(e.left) + _factors(e.right)
        case E.If(condition, E.Mul() as then, E.Const(value)) if value == 0:
            first, *rest = sorted(_factors(then), key=lambda f: not condition.axes <= f.axes)
            return [E.If(condition, first, E.const(0, e.dtype)), *rest]
    return [e]


def _sides(factors: Iterable[Expr], rank: int) -> list[tuple[Expr, frozenset[int]]] | None:
    """Factors as two, each with the axes of the result that it has."""
    kept = frozenset(range(rank))
    sides: list[tuple[Expr, frozenset[int]]] = []
    for factor in sorted(factors, key=lambda f: -len(f.axes & kept)):
        own = factor.axes & kept
        for n, (side, axes) in enumerate(sides):
            if own <= axes:
                sides[n] = E.Mul(side, factor), axes
                break
        else:
            sides.append((factor, own))
    return sides if len(sides) == 2 else None


def kind_of(product: Product) -> DType | None:
    """The type of both factors as they are read, else the 16-bit float that holds both."""
    kinds = plain(product.left), plain(product.right)
    short = [k for k in kinds if k is not None and is_short(k)]
    if len(short) == 2:
        return next((w for w in (float16, bfloat16) if all(holds(w, k) for k in short)), None)
    return kinds[0] if kinds[0] is kinds[1] else None


def plain(e: Expr) -> DType | None:
    """The type of a factor that is read as it is, or widened."""
    match e:
        case E.Cast(E.Take() as take, to) if is_short(take.dtype) and to.name == "float32":
            return take.dtype
        case E.Take():
            return e.dtype
    return None


def elementwise(e: Stage, product: Stage) -> bool:
    """Whether a map is made in the tiles of a product: it reads that only where it lies itself."""
    if not isinstance(e.form, Map) or e.shape != product.shape:
        return False
    axes = product.target.axes
    return all(
        at is axis or extent == 1
        for take in stage_reads(e)
        if take.source is product.target
        for at, axis, extent in zip(take.indices, axes, product.shape, strict=False)
    )
