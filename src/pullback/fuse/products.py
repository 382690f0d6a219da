"""Products among definitions: their rows, columns and terms, and which are worth their own way."""

from __future__ import annotations

from pullback.config import Ints, frozen
from pullback.cost.facts import BodyFacts, elements, reduced_axes
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Expr, Shape
from pullback.ir.graph import SUM, Definition, Form, Reduce, Value, Variable
from pullback.machine.machine import Machine

# From so many multiplications on, and so many rows, columns and terms, a product is bound by
# arithmetic alone: 256 terms take 5 ns, an element written and read again half a nanosecond.
HUGE_POINTS = 1 << 26
HUGE_SIDE = 256

# A product with so many times as many terms as rows or columns, and so many multiplications (0.3 ms
# on one thread) is cut along its terms: then whole rows of both operands are read once, in order
# (8 x 30000 x 2000: 40 ms in strips of columns, 15 in this way).
TALL_RATIO = 8
TALL_POINTS = 1 << 24


@frozen
class ProductAxes:
    """A sum of products. `rows`, `columns`: output axes private to each of two reads.

    `whole`: no join is worth one of its output axes. `tall`: it is cut along its terms.
    """

    rows: Ints
    columns: Ints
    whole: bool
    tall: bool


def contraction(
    definition: Definition, form: Form, facts: BodyFacts, machine: Machine
) -> ProductAxes | None:
    """What a definition is as a product.

    ``y[i, n] = sum[k] x[i, k] * w[n, k]  ->  rows (1,), columns (0,)``
    """
    if not isinstance(form, Reduce) or form.combiner is not SUM:
        return None
    rank = len(definition.shape)
    extents = (*definition.shape, *form.over)
    over = frozenset(reduced_axes(definition, form))
    reads = [a for a in facts.accesses if a.axes & over]
    reads.sort(key=lambda a: -elements(extents[n] for n in a.axes))
    if not isinstance(_summed(definition.body, facts), E.Mul):
        return None  # |a[i, k] - b[j, k]|
    for right in reads[1:]:
        rows = tuple(sorted(a for a in reads[0].axes - right.axes if a < rank))
        columns = tuple(sorted(a for a in right.axes - reads[0].axes if a < rank))
        if rows and columns:
            return _measured(extents, rank, reads[0].source, rows, columns, machine)
    return None


def _summed(body: Expr, facts: BodyFacts) -> Expr:
    """What is summed where it is not left out, in the place of what is inlined."""
    kept = {access.source for access in facts.accesses}
    while True:
        match body:
            case E.Cast():
                body = body.value
            case E.If(then=E.Const()):
                body = body.otherwise
            case E.If(otherwise=E.Const()):
                body = body.then
            case E.Take(source=Definition() as inner) if inner not in kept:
                body = inner.body
            case _:
                return body


def _measured(
    extents: Shape,
    rank: int,
    larger: Value,
    rows: Ints,
    columns: Ints,
    machine: Machine,
) -> ProductAxes:
    """Far: its larger operand lies beyond L2, and takes as long to read again for each tile of rows
    as the product or longer. Tall: the sums of all tasks fit half of L2.
    """
    high, wide = (elements(extents[a] for a in axes) for axes in (rows, columns))
    size = elements(extents[:rank])
    terms = elements(extents[rank:])
    huge = size * terms >= HUGE_POINTS and min(high, wide, terms) >= HUGE_SIDE
    rates = machine.tables["whole"]
    near = machine.memories[1].bytes
    word = float32.itemsize
    again = 2 * high * terms * word / rates["memory_sweep"]
    far = isinstance(larger, Variable) and elements(larger.shape) * word > near
    far = far and again >= size * terms * rates["multiply_add"]
    few = len(extents) == rank + 1 and size == high * wide
    few = few and size * word * machine.rate("launch", "partial_tasks") <= near / 2
    tall = few and size * terms >= TALL_POINTS and terms >= TALL_RATIO * max(high, wide)
    return ProductAxes(rows, columns, huge or far, tall)
