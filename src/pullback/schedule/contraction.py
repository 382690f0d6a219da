"""Contractions: recognised from the shape of a definition, never from a name.

``sum[k] scale * f1 * f2 * ...`` where some factors have an output axis that the others lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from math import inf, prod

from pullback.algebra.affine import factors
from pullback.algebra.linear import Linear, offset, row_major
from pullback.config import Legal, Pair
from pullback.cost.facts import EIGHTHS, WIDENING, elements
from pullback.cost.shares import of_columns
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, float16, float32, int8, int32, uint8
from pullback.ir.expr import Axis, Expr, Take, takes, upper
from pullback.ir.graph import SUM, Reduce
from pullback.ir.kernel import Stage
from pullback.ir.target import Target
from pullback.machine.machine import Machine
from pullback.schedule.schedule import Product

# Terms along the last reduced axis from which dot products are considered: two vectors of float32.
FEWEST_TERMS = 32

# Rows up to which a contraction with two operands contiguous along k runs without packing: a panel
# copy costs about as much as four rows of multiplications (probes/cpu/gemm.py, 2x255x255). From
# memory a copy reads at half the speed.
DOT_ROWS = 8
FAR_DOT_ROWS = 16

# Rows along an outer axis count as this many: a tile may leave few of them.
CUT_ROWS = 7

# What sums of products are taken in, of types that processors multiply as they are.
WIDER = {bfloat16: float32, int8: int32, uint8: int32}

# What else few rows read where it lies, and widen there.
WIDENED = {float16: float32, **EIGHTHS}

# What long sums of a register tile hold in registers: as many of each. That they are four decides
# which tiles are exact: a number, though the count of thresholds does not see names.
HELD = ("sums", "their parts", "what those lose", "operands")

# Terms beyond which a tile adds without a loss, where it has the registers.
LONG: Legal = 4096

# Bytes of a word, whose parts one instruction multiplies and adds.
WORD: Legal = 4


def exact_sums(vectors: int, width: int) -> int:
    """Sums of a register tile, lanes of whole vectors, that may be long without a loss."""
    return vectors // len(HELD) * width


def address(take: Take) -> Linear:
    """The offset of a read over the stage's axes; scratch is taken to be row-major as well."""
    strides = row_major(upper(e) for e in take.source.shape)
    return offset(take.indices, strides)


def can(stage: Stage) -> bool:
    """Whether a stage is a sum of products of floats, or of bytes in 32 bits."""
    if not (isinstance(stage.form, Reduce) and stage.form.combiner is SUM):
        return False
    body = stage.body
    if not isinstance(body, E.Mul):
        return False
    return body.dtype.is_float or all(narrowed(f) is not f for f in (body.left, body.right))


def narrowed(factor: Expr, wider: Mapping[DType, DType] = WIDER) -> Expr:
    """What a factor is a wider copy of: a bfloat16 as float32, a byte as int32."""
    if not isinstance(factor, E.Cast):
        return factor
    return factor.value if wider.get(factor.value.dtype) == factor.to else factor


def word_size(stage: Stage, target: Target) -> int:
    """Elements of a 32-bit word that one instruction multiplies and adds; 1: there is none."""
    if stage.partial or not isinstance(stage.body, E.Mul):
        return 1
    kinds = {narrowed(f).dtype for f in factors(stage.body)}
    if kinds == {bfloat16} and bfloat16.name in target.dots:
        return 2
    if kinds <= {int8, uint8} and int8.name in target.dots:
        return 4
    return 1


def recognise(stage: Stage, target: Target, column: int | None = None) -> Product | None:
    """The way to see `stage` as a contraction that may take least, with this `column` if one is
    given; None: there is none, or it is better left a plain sum.
    """
    if column is None:
        return next(iter(ways(stage, target)), None)
    product = products(stage).get(column)
    return None if product is None else _way(stage, product, target)


@lru_cache(maxsize=256)
def ways(stage: Stage, target: Target) -> tuple[Product, ...]:
    """The ways to see `stage` as a contraction, but for those that another is better than in all,
    in order of what they take at least. Each schedule of a kernel asks for them.
    """
    made = [_way(stage, p, target) for p in products(stage).values() if _pays(stage, p, target)]
    rated = sorted(((_rates(stage, p, target), p) for p in made), key=lambda pair: pair[0])
    return tuple(p for own, p in rated if not any(r != own and _below(r, own) for r, _ in rated))


def _rates(stage: Stage, product: Product, target: Target) -> tuple[float, ...]:
    """What ways differ by: the least, elements packed and between results, lanes that tasks cut."""
    column = product.column
    tasks = int(target.profile.rate("launch", "tasks")) if column in stage.bound else 1
    each = max(1, upper(stage.shape[column]) // tasks)
    cut = _whole(each, target.lanes(stage.body.dtype.itemsize))
    apart = _apart(stage, product.column)
    return least_ns(stage, product, target), _packed(stage, product), apart, cut


def _packed(stage: Stage, product: Product) -> int:
    """Elements of panels, each packed once."""
    return 0 if product.direct else volume(stage, product.right.axes)


def _apart(stage: Stage, axis: int) -> int:
    """How far results of neighbours along an axis lie apart."""
    return volume(stage, range(axis + 1, len(stage.shape)))


def _below(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def least_ns(stage: Stage, product: Product, target: Target) -> float:
    """Nanoseconds of a product at the least: its multiply-adds in lanes, the last vector filled up,
    each panel packed once, results scattered, or turned around in squares.
    """
    extents = [upper(e) for e in stage.extents]
    lanes = target.lanes(stage.body.dtype.itemsize)
    unit = target.profile.tables["unit"]
    across, more = _columns(stage, product, extents), 0.0
    if extents[product.row] <= product.dots:
        across = extents[stage.over[-1]]
    else:
        more = _packed(stage, product) * unit["pack"]
        more += prod(extents[: len(stage.shape)]) * _result_ns(stage, product, target)
    if narrowed(product.left, EIGHTHS) is not product.left:
        widest = max(target.profile.tiles, key=lambda t: t.share).vectors
        more += prod(extents) / (lanes * widest) * WIDENING * unit["plain"]
    vectors = prod(extents) / lanes * _whole(across, lanes) / product.word
    return vectors * unit["multiply_add"] + more


def _result_ns(stage: Stage, product: Product, target: Target) -> float:
    """Nanoseconds of a result that no vector stores, at the least: in a square, or alone."""
    unit = target.profile.tables["unit"]
    if _apart(stage, product.column) == 1:
        return 0.0
    if _apart(stage, product.row) > 1:
        return unit["scatter"]
    lanes = target.lanes(stage.body.dtype.itemsize)
    return min(unit["scatter"], unit["pack"] + unit["store"] / lanes)


def _pays(stage: Stage, product: Product, target: Target) -> bool:
    """Whether a plain sum takes longer than a register tile, with what that is to enter."""
    rates = target.profile.tables["product"]
    points = volume(stage, {product.row, product.column, *stage.over})
    each = rates["swept"] - target.profile.rate("whole", "multiply_add")
    return points * each >= rates["enter"]


def volume(stage: Stage, axes: Iterable[int]) -> int:
    """Points of a stage along some axes, at the upper bounds."""
    return prod(upper(stage.extents[axis]) for axis in axes)


@lru_cache(maxsize=256)
def products(stage: Stage) -> Mapping[int, Product]:
    """All ways to see `stage` as a contraction, whatever the processor, by their columns."""
    if not can(stage):
        return {}
    over = frozenset(stage.over)
    every = factors(stage.body)
    scale = [f for f in every if not f.axes & over]
    inner = [f for f in every if f.axes & over]
    wide = [n for n, extent in enumerate(stage.shape) if upper(extent) > 1]
    ways = [_product(stage, inner, scale, column) for column in wide]
    return {p.column: p for p in ways if p is not None}


def _product(stage: Stage, inner: list[Expr], scale: list[Expr], column: int) -> Product | None:
    right = [f for f in inner if column in f.axes]
    left = [f for f in inner if column not in f.axes]
    if not left or not right:
        return None
    lefts = {axis for f in left for axis in f.axes}
    rights = {axis for f in right for axis in f.axes}
    reduced = frozenset(stage.over)
    rows = sorted(lefts - rights - reduced)
    if not rows or not reduced <= lefts | rights:
        return None
    extents = [upper(e) for e in stage.extents]
    cut = stage.bound
    row = max(rows, key=lambda a: (min(extents[a], CUT_ROWS) if a in cut else extents[a], a))
    one, other = _side(left), _side(right)
    # 1024 x 1024 of e4m3fn, one Zen 4 core, read in place or from a panel of float32: 1 row 96 and
    # 147 us (rows of k 924), 16 rows 471 and 431, 64 rows 1850 and 1460; of float16 1 row 43 and
    # 126 us (rows of k 51 and 2450), 4 rows 91 and 163
    if extents[row] <= DOT_ROWS:
        other = narrowed(other, WIDENED)
    by = reduce(E.Mul, scale) if scale else None
    return Product(one, other, by, row, column, _unit(other, column, stage))


def _way(stage: Stage, product: Product, target: Target) -> Product:
    """A product with the words and the dot products that a processor has for it: words where their
    panels cost less than they save, or there would be panels anyway.
    """
    dots = 0 if product.direct else _dots(stage, product, target)
    word = _word(stage, product, target)
    rows = volume(stage, set(range(len(stage.shape))) - product.right.axes)
    saved = target.profile.rate("whole", "multiply_add") * (1 - 1 / word)
    packed = not product.direct and upper(stage.extents[product.row]) > dots
    if word > 1 and (packed or rows * saved >= target.profile.rate("product", "words")):
        return replace(product, direct=False, word=word)
    return replace(product, dots=dots)


def _side(parts: list[Expr]) -> Expr:
    return narrowed(parts[0]) if len(parts) == 1 else reduce(E.Mul, parts)


def _word(stage: Stage, product: Product, target: Target) -> int:
    """The size of words that operands can be packed in, where words are easily made.

    Those of `right` are neighbours already, or parts of rows that lie side by side.
    """
    left, right = product.left, product.right
    word = word_size(stage, target)
    last = stage.over[-1]
    terms = stage.extents[last]
    wide = any(side.dtype.itemsize * word != WORD for side in (left, right))
    if word == 1 or wide or not isinstance(terms, int) or terms < 2 * word:
        return 1
    whole = terms % word == 0 and _unit(right, last, stage)
    if whole or _in_rows(right, product.column, stage):
        return word
    return 1


def _in_rows(operand: Expr, axis: int, stage: Stage) -> bool:
    """Whether all reads of an operand, computed or not, are contiguous or the same along `axis`."""
    at = Axis(axis, stage.extents[axis])
    forms = list(map(address, takes(operand)))
    return all(f.of(at) in (0, 1) and not f.hidden(at) for f in forms)


def _unit(operand: Expr, axis: int, stage: Stage) -> bool:
    """Whether an operand is one read, contiguous along `axis`."""
    if not isinstance(operand, Take):
        return False
    form = address(operand)
    at = Axis(axis, stage.extents[axis])
    return form.of(at) == 1 and not form.hidden(at)


def _whole(extent: int, lanes: int) -> float:
    """How many times as many elements as there are, the last vector filled up."""
    return -(-extent // lanes) * lanes / extent


def _columns(stage: Stage, product: Product, extents: list[int]) -> int:
    """Columns of a direct operand, with those of the axes before that continue them in memory."""
    columns = extents[product.column]
    if not isinstance(product.right, Take) or not product.direct:
        return columns
    form = address(product.right)
    for axis in reversed(range(product.column)):
        if form.of(Axis(axis, stage.extents[axis])) != columns:
            break
        columns *= extents[axis]
    return columns


def _dots(stage: Stage, product: Product, target: Target) -> int:
    """The rows up to which dot products are better than panels of `right`; 0: it has no use.

    `left` is read where it lies, or evaluated first. What both sides share is a batch: only one
    part of `right` is read at a time. A panel of whole vectors serves all axes that `right` lacks:
    a 3x3 weight's gradient has 9 places a row (16 x 32 of 2x64x64: 780 us by dot products, 540).
    """
    left, right, last = product.left, product.right, stage.over[-1]
    if upper(stage.extents[last]) < FEWEST_TERMS or not _unit(right, last, stage):
        return 0
    assert isinstance(right, Take)
    size = stage.body.dtype.itemsize
    batch = left.axes & right.axes - frozenset(stage.over)
    once = min(elements(right.source.shape), volume(stage, right.axes - batch))
    rows = FAR_DOT_ROWS if size * once > target.l2 else DOT_ROWS
    near = rows * volume(stage, stage.over) * size <= target.l2 // 2
    wide = of_columns(target.profile, upper(stage.extents[product.column]), target.lanes(size))
    if wide > target.profile.rate("block", "dots"):
        beside = set(range(len(stage.shape))) - right.axes - stage.bound.keys() - {product.row}
        rows //= volume(stage, beside)
    return rows if near or _unit(left, last, stage) else 0


def register_tile(
    rows: int,
    columns: int,
    lanes: int,
    machine: Machine,
    most: int | None = None,
    wanted: int | None = None,
) -> Pair:
    """Rows and vectors (at most `most`) of the register tile for a block of `rows` x `columns`.

    `wanted`: as many vectors in a row as there are, up to it.
    Example: ``16 x 128`` f32 -> 6 or 8 rows of 3 or 4 vectors
    """
    across = -(-columns // lanes)
    rates = machine.tables["product"]
    limit = min(across, wanted or most or across)
    fitting = sorted((t for t in machine.tiles if t.vectors <= limit), key=lambda t: t.vectors)
    best = (-inf, 1, 1)
    for tile in fitting[-1:] if wanted else fitting:
        height = block_rows(rows, tile.rows, tile.vectors, int(rates["fewest"]))
        full, rest = divmod(across, tile.vectors)
        time = full * tile.vectors / min(1.0, height * tile.vectors / rates["sums"])
        if rest:
            time = (time + rest / min(1.0, height * rest / rates["sums"])) * rates["second"]
        best = max(best, (-time / tile.share, height, tile.vectors))
    return best[1:]


def block_rows(rows: int, limit: int, width: int, fewest: int) -> int:
    """Rows of a register tile: a divisor with enough sums in flight, else balanced blocks.

    Example: ``rows=64, limit=14, width=2, fewest=14 -> 8``: no second kernel for a remainder
    """
    for height in range(min(limit, rows), 0, -1):
        if height * width < fewest:
            break
        if rows % height == 0:
            return height
    return balanced(rows, limit)


def balanced(extent: int, limit: int) -> int:
    """The size of equal blocks of at most `limit`. ``16, 14 -> 8``"""
    blocks = -(-extent // limit)
    return -(-extent // blocks)
