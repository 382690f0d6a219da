"""Operands of a contraction: read where they lie, or evaluated and packed into scratch first."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from pullback.algebra.linear import Linear, linear, row_major
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bool_, int64
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.kernel import Stage
from pullback.ir.nest import (
    Array,
    Check,
    Load,
    Prefetch,
    Stmts,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import walk
from pullback.lower.bounds import Spans, guarded, narrowed, outer, over_loops, settled, spans
from pullback.lower.context import (
    Context,
    Coordinates,
    Nest,
    NestLoop,
    accumulator,
    along,
    cast,
    nest,
    rest_of,
    swept,
    unrolled,
    vector,
)
from pullback.lower.guards import Values, moved, replaced
from pullback.lower.merge import merged, revalued, split
from pullback.lower.pieces import MOST_PIECES
from pullback.lower.sweep import Bodies, stage_values, written
from pullback.lower.translate import Translator
from pullback.schedule.regions import Region
from pullback.schedule.schedule import Product


@frozen
class Operand:
    """One side of a product over loop variables, with the checks its indices need."""

    value: Expr
    checks: tuple[Check, ...]

    @property
    def plain(self) -> bool:
        """Whether it is one load, used where it lies."""
        return isinstance(self.value, Load) and not self.checks

    def uses(self, var: Var) -> bool:
        """Whether the value changes with `var`."""
        return var in set(walk(self.value))

    def stride(self, var: Var) -> int | None:
        """Elements between neighbours along `var`; None where no stride describes it."""
        if not isinstance(self.value, Load) or self.checks:
            return None
        form = linear(self.value.offset)
        return None if form.hidden(var) else form.of(var)

    def at(self, values: Values) -> Operand:
        """The same with variables replaced."""
        checks = (replace(c, index=replaced(c.index, values)) for c in self.checks)
        return Operand(replaced(self.value, values), tuple(checks))


@frozen
class Side:
    """An operand with the loop over what its panels are cut from: rows of `left`, columns of
    `right`.
    """

    operand: Operand
    loop: NestLoop


@frozen
class Tail:
    """Maps that follow on each block: their values, and where those that live go."""

    stages: list[Stage]
    values: Bodies
    stores: list[Linear | None]


@frozen
class Words:
    """Elements of k that lie in one 32-bit word, counted by `var`; `terms` in all words.

    `rest`: the last word may be incomplete.
    """

    var: Var
    size: int
    terms: Expr
    rest: bool


@frozen
class Contraction:
    """A contraction in one tile. `shared`: loops that `right` has too; `rest`: those it lacks.

    `work`: outside it terms are zero, by `tests` over loops; `needed`: outside it nobody reads the
    sums. `word`: the last loop of `over` counts words.
    """

    stage: Stage
    left: Operand
    right: Operand
    scale: Operand | None
    row: NestLoop | None
    column: NestLoop | None
    shared: Nest
    rest: Nest
    over: Nest
    store: Linear | None
    tail: Tail
    work: Region
    tests: Values
    needed: Region
    word: Words | None = None

    @property
    def kind(self) -> DType:
        """The type of the sums."""
        return accumulator(self.stage.body.dtype)

    def at(
        self,
        first: Linear,
        i: Var,
        base: Linear,
        j: Expr,
    ) -> Values:
        """The row and column of one element of a block."""
        sides = (self.column, base, j), (self.row, first, i)
        return {o.var: start.plus(linear(v)).expr() for o, start, v in sides if o}

    def spans(
        self,
        first: Linear,
        rows: int,
        base: Linear,
        columns: Expr,
    ) -> Spans:
        """The values of row and column in a block."""
        sides = (self.column, base, linear(columns)), (self.row, first, Linear(rows))
        return {o.var: (start, start.plus(n).shifted(-1)) for o, start, n in sides if o}

    def terms(self, spans: Spans, step: Stmts, lanes: bool = False) -> Stmts:
        """`step` for every term that a block has."""
        loops = [b.loop for b in narrowed(self.over, self.work, spans)]
        body = swept(loops, step) if lanes else nest(loops, step)
        return guarded(outer(self.work, self.over), spans, body)

    def worked(self, inner: Spans, body: Stmts) -> Stmts:
        """`body` where any term over `inner` may count."""
        return guarded(self.work, {**spans(self.over), **inner}, body)

    def in_front(self, operand: Operand, around: Nest) -> tuple[Nest, Operand]:
        """The loops over terms in front of all rows and columns and the loops `around` them: where
        any of those has work, and an operand without the tests that hold there.

        ``k in 0..n: if(k < t, x[k], 0)  ->  k in 0..t: x[k]``
        """
        columns = [] if self.column is None else [self.column]
        inner = spans([*around, *self.rows, *columns])
        loops = [b.loop for b in narrowed(self.over, self.work, inner)]
        return loops, operand.at(self.holding(inner))

    def holding(self, inner: Spans) -> Values:
        """The tests of operands that hold in every term over `inner`. ``0 < i + k  ->  true``"""
        bounds = narrowed(self.over, self.work, inner)
        exact = tuple(bound for one in bounds for bound in one.exact)
        holding = settled(exact, [self.work]).items()
        return {self.tests[test]: E.const(value, bool_) for test, value in holding}

    def bare(self, column: NestLoop) -> Operand:
        """`left` in a tile, without the tests that hold in each of its terms.

        ``k in t..n: if(k < t, 0, x[k])  ->  k in t..n: x[k]``
        """
        return self.left.at(self.holding(spans([*self.rows, column])))

    @property
    def rows(self) -> Nest:
        """The loop over rows, if there is one."""
        return [] if self.row is None else [self.row]

    @property
    def height(self) -> int:
        """How many rows there are at most."""
        return prod(loop.most for loop in self.rows)


def problem(context: Context, product: Product, stages: list[Stage]) -> Contraction:
    """The operands of a contraction, and the maps after it, over merged loops."""
    stage, rest = stages[0], stages[1:]
    loops, axes = context.loops(stage)
    outputs = len(stage.shape)
    roots = [product.left, product.right]
    roots += [] if product.scale is None else [product.scale]
    registers = context.registers(stages)
    trial = Translator(context, axes)

    def written_out() -> list[Expr]:
        return [*map(trial, roots), *stage_values(context, rest, trial.axes, registers).bodies]

    bodies = written_out()
    loops, values = split(context, loops, bodies)
    if values:
        axes = trial.axes = revalued(axes, values)
        bodies = written_out()
    parts = [_part(loop.axes[0], product, outputs) for loop in loops]
    work, needed = context.regions.work, context.regions.needed
    regions = [r.get(stage.target, ()) for r in (work, needed)]
    bodies += [b.form.expr() for r in regions for b in over_loops(context, axes, r)]
    stores = [_stored(context, s, axes) for s in stages]
    loops, values = merged(context, loops, parts, bodies, [s for s in stores if s is not None])
    axes = revalued(axes, values)
    left, right = _operand(context, axes, product.left), _operand(context, axes, product.right)
    scale = None if product.scale is None else _operand(context, axes, product.scale)
    outs = [loop for loop in loops if loop.axes[0] < outputs]
    row = along(outs, product.row)
    column = along(outs, product.column)
    others = [loop for loop in outs if loop is not row and loop is not column]
    stores = [_stored(context, s, axes) for s in stages]
    translate = Translator(context, axes)
    tail = Tail(rest, stage_values(context, rest, axes, registers), stores[1:])
    return Contraction(
        stage,
        left,
        right,
        scale,
        row,
        column,
        [loop for loop in others if right.uses(loop.var)],
        [loop for loop in others if not right.uses(loop.var)],
        [loop for loop in loops if loop.axes[0] >= outputs],
        stores[0],
        tail,
        over_loops(context, axes, regions[0]),
        {test: translate(test) for bound in regions[0] for test, _ in bound.tests},
        over_loops(context, axes, regions[1]),
    )


def stores(context: Context, prob: Contraction, value: Expr, at: Values) -> Stmts:
    """A sum, which is scaled already, goes where it lives."""
    array = context.home(prob.stage).array
    offset, value = moved(prob.store or Linear(), at), cast(value, array.dtype)
    if prob.stage.partial:
        return [StoreCombine(array, offset, SUM, value)]
    return [Store(array, offset, value)]


def scaled(prob: Contraction, value: Expr, at: Values) -> tuple[Stmts, Expr]:
    """A sum with the factor that does not change along k, and the checks of that."""
    if prob.scale is None:
        return [], value
    scale = prob.scale.at(at)
    return [*scale.checks], E.Mul(value, cast(scale.value, prob.kind))


def _stored(context: Context, stage: Stage, axes: Coordinates) -> Linear | None:
    """Where a stage is stored, if it lives anywhere."""
    return written(context, stage, axes) if stage.target in context.homes else None


def _part(axis: int, product: Product, outputs: int) -> int:
    """A number that loops share if their axes play the same part."""
    sides = (axis in product.left.axes) + 2 * (axis in product.right.axes)
    chosen = 8 * (axis >= outputs)
    return sides + chosen


def _operand(context: Context, axes: Coordinates, value: Expr) -> Operand:
    translate = Translator(context, axes)
    operand = translate(value)
    return Operand(operand, tuple(translate.checks))


def evaluated(
    context: Context,
    operand: Operand,
    loops: Nest,
    kind: DType,
    rows: int | None = None,
    lasting: bool = False,
) -> tuple[Stmts, Operand]:
    """`operand` computed into scratch over `loops`, contiguous along its best loop; or along the
    last one, with `rows` elements from one row to the next. `lasting`: other steps do not share it.

    ``for r: for k in lanes: s[r, k] = f(x[r, k])  ->  s[r, k]``
    """
    lane = _best_lane(operand.value, loops) if rows is None else loops[-1]
    order = [loop for loop in loops if loop is not lane] + [lane]
    strides = row_major([*(loop.most for loop in order[:-1]), rows or lane.most])
    size = strides[0] * order[0].most
    array = (context.draft.panel if lasting else context.draft.local)("left", kind, size)
    offset = Linear(0, {o.var: s for o, s in zip(order, strides, strict=True)}).expr()
    made: Stmts = []
    for own, value in in_ranges(order[:-1], cast(operand.value, kind)):
        made += swept([*own, lane], [*operand.checks, Store(array, offset, value)])
    return made, Operand(Load(array, offset), ())


def in_ranges(loops: Nest, value: Expr) -> list[tuple[Nest, Expr]]:
    """Ranges of the first loop that conditions are about, and what a value is in each.

    ``k < 9: if(k < 3, a[k], if(k < 6, b[k], c[k]))  ->  3 of a[k], 3 of b[k], 3 of c[k]``

    Undecided, each vector has all three.
    """
    for number, loop in enumerate(loops):
        limits = _limits(loop, value) if loop.whole else {}
        ends = sorted({0, loop.most, *(limit for limit, _ in limits.values())})
        if not 2 < len(ends) <= MOST_PIECES + 1:
            continue
        made = []
        for a, b in pairwise(ends):
            own = replace(loop, first=index(a), extent=index(b))
            known: Values = {
                node: E.Const(below == (a < limit), bool_)
                for node, (limit, below) in limits.items()
            }
            made.append(([*loops[:number], own, *loops[number + 1 :]], replaced(value, known)))
        return made
    return [(loops, value)]


def _limits(loop: NestLoop, value: Expr) -> dict[Expr, tuple[int, bool]]:
    """Conditions on a loop's variable alone: the number from which on they have the other truth,
    and whether they hold below it. ``-1 < 2 - k  ->  (3, True)``
    """
    limits: dict[Expr, tuple[int, bool]] = {}
    for node in walk(value):
        if not isinstance(node, E.Less) or node.left.dtype != int64:
            continue
        form = linear(node.right).minus(linear(node.left))
        each = form.of(loop.var)
        if not each or form.without(loop.var).terms:
            continue
        limit = -(-form.const // -each) if each < 0 else -form.const // each + 1
        if 0 < limit < loop.most:
            limits[node] = limit, each < 0
    return limits


def _best_lane(value: Expr, loops: Nest) -> NestLoop:
    """The loop along which most loads are contiguous; of equals the longest, then the last."""

    def score(number: int) -> tuple[int, int, int]:
        var = loops[number].var
        forms = [linear(n.offset) for n in walk(value) if isinstance(n, Load)]
        whole = sum(f.of(var) == 1 and not f.hidden(var) for f in forms)
        single = sum(f.of(var) not in (0, 1) or f.hidden(var) for f in forms)
        return whole - single, min(loops[number].most, 64), number

    return loops[max(range(len(loops)), key=score)]


# Bytes of a page, at whose end processors stop to fetch ahead, and of a line. Panels of 512 x 512 x
# 3 x 3 weights are copied in blocks of 1152 bytes, 18 KB apart: 7 x 7 of 512 channels from the
# third-level cache 2.9 ms, with a page on its way 1.6, with one block 2.2, one Zen 5 core.
PAGE = 4096
LINE = 64


@frozen
class Panels:
    """A side in panels of `width` columns: ``array[outer, panel, k, column]``."""

    array: Array
    width: int
    strides: dict[Expr, int]
    panel: int

    def at(self, panel: Expr, column: Expr) -> Load:
        """Element `column` of `panel`, at the current values of the other loops."""
        form = Linear(0, self.strides).plus(linear(panel), self.panel).plus(linear(column))
        return Load(self.array, form.expr())


def kept(operand: Operand, kind: DType) -> DType:
    """The type of an operand's panels: as it lies where it is copied, else that of the sums."""
    return operand.value.dtype if operand.plain else kind


def panels(
    context: Context,
    kind: DType,
    width: int,
    count: int,
    around: Nest,
    over: Nest,
    lasting: bool = False,
    name: str = "panel",
) -> Panels:
    """An array for `count` panels, one set for each coordinate of `around`.

    `lasting`: filled before the step and kept.
    """
    order = [*around, None, *over]
    extents = [count if loop is None else loop.most for loop in order]
    strides = row_major([*extents, width])[:-1]
    named: dict[Expr, int] = {
        loop.var: s for loop, s in zip(order, strides, strict=True) if loop is not None
    }
    size = max(1, strides[0] * extents[0])
    array = (context.draft.panel if lasting else context.draft.local)(name, kind, size)
    return Panels(array, width, named, strides[len(around)] if count > 1 else 0)


def pack_panel(
    context: Context,
    side: Side,
    over: Nest,
    panel: Panels,
    number: Expr,
    source: Expr,
    around: Nest | None = None,
) -> Stmts:
    """Fill panel `number` with columns from panel `source` on; the last one may be narrower.

    So for all panels of the loops `around`, in the order of the source.
    """
    first = linear(source).times(panel.width)
    loop, value = side.loop, side.operand
    columns = rest_of(loop, first, panel.width)
    last = over[-1] if over else None
    step = value.stride(loop.var)
    if last is not None and value.stride(last.var) == 1 and step is not None:
        copies = _transposed(context, side, over, panel, number, first, columns, step)
        return nest(around or [], copies)
    j = context.var("j", panel.width)
    here = value.at({loop.var: first.plus(linear(j)).expr()})
    packed = cast(here.value, panel.array.dtype)
    store = Store(panel.array, panel.at(number, j).offset, packed)
    lane = NestLoop(loop.axes, j, columns, panel.width)
    loops = over
    if around:
        forms = [linear(n.offset) for n in walk(packed) if isinstance(n, Load)]
        farthest = {o: max(abs(f.of(o.var)) for f in forms) for o in (*around, *over)}
        loops = sorted([*around, *over], key=lambda loop: -farthest[loop])
    made: Stmts = []
    for own, part in in_ranges(loops, store.value):
        made += nest(own, [vector(lane, 1, [*here.checks, replace(store, value=part)])])
    return made


def _transposed(
    context: Context,
    side: Side,
    over: Nest,
    panel: Panels,
    number: Expr,
    first: Linear,
    columns: Expr,
    step: int,
) -> Stmts:
    """A panel copy: rows of the source are columns of the panel.

    What a later copy reads is on its way where processors do not see it coming: elsewhere.
    """
    value = side.operand.value
    assert isinstance(value, Load), "only a load has a stride"
    run, inner = 1, 1
    while run < len(over) and over[-run].whole and _continues(side.operand, over, run):
        inner *= over[-run].most
        run += 1
    start: Values = {loop.var: loop.first for loop in over[-run:]}
    target = moved(linear(panel.at(number, index(0)).offset), start)
    source = moved(linear(value.offset), {**start, side.loop.var: first.expr()})
    copy = Transpose(
        panel.array,
        target,
        panel.width,
        value.array,
        source,
        step,
        columns,
        linear(over[-run].extent).minus(linear(over[-run].first)).times(inner).expr(),
    )
    size = panel.array.dtype.itemsize
    apart = side.operand.stride(over[-run - 1].var) if run < len(over) else None
    blocks = PAGE // (panel.width * step * size)
    if not blocks or apart is None or abs(apart) <= panel.width * step:
        return nest(over[:-run], [copy])
    lines = -(-panel.width * step * size // LINE)
    line = context.var("l", lines)
    later = Linear(blocks * apart, {line: LINE // size}).plus(linear(source)).expr()
    return nest(over[:-run], [unrolled(line, lines, Prefetch(value.array, later)), copy])


def _continues(side: Operand, over: Nest, run: int) -> bool:
    """Whether the last `run` loops over a side lie in memory as one, and the loop before too."""
    return side.stride(over[-run - 1].var) == prod(loop.most for loop in over[-run:])
