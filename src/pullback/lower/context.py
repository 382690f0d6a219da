"""What lowering knows about one kernel: arrays, loop variables, where values live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from pullback.algebra.linear import Linear, linear, row_major
from pullback.config import Ints, frozen
from pullback.cost.facts import elements
from pullback.errors import InvalidIR, Origin
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Dim, Expr, Extent, Size, Take, extent_expr, index, upper
from pullback.ir.graph import Definition, Value, Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.nest import Array, For, LoopKind, Mark, Register, Stmt, Stmts, Var
from pullback.ir.node import walk
from pullback.lower.guards import Values
from pullback.lower.natives import with_natives
from pullback.schedule.regions import Regions, regions
from pullback.schedule.schedule import Place, Schedule
from pullback.schedule.slots import tile_counts, tile_shape

LETTERS = "ijklmnpqrs"


@frozen
class Home:
    """Where a value lies: ``array[base + sum((index - origin) * stride)]``."""

    array: Array
    strides: Ints
    origins: tuple[Linear, ...]
    base: Linear

    @staticmethod
    def whole(array: Array, shape: Iterable[int], base: Linear | None = None) -> Home:
        """A value of a shape that lies row by row from `base` on."""
        strides = row_major(shape)
        return Home(array, strides, (Linear(),) * len(strides), base or Linear())

    def offset(self, indices: tuple[Expr, ...]) -> Linear:
        """The offset of one element."""
        total = self.base
        for at, stride, origin in zip(indices, self.strides, self.origins, strict=True):
            total = total.plus(linear(at).minus(origin), stride)
        return total


@frozen
class NestLoop:
    """One loop to be: its variable runs over ``first..extent``; `axes` are the stage's axes."""

    axes: Ints
    var: Var
    extent: Expr
    most: int
    first: Expr = field(default_factory=lambda: index(0))

    @property
    def static(self) -> bool:
        """Whether the extent is a literal."""
        return isinstance(self.extent, E.Const)

    @property
    def whole(self) -> bool:
        """Whether it runs from the first coordinate to the last."""
        return self.first is index(0) and self.extent is index(self.most)


Nest = list[NestLoop]  # the first outermost
Coordinates = dict[int, Expr]  # the value of each axis


@dataclass(slots=True)
class Draft:
    """What lowering one kernel writes as it goes, and nothing else of it changes: numbers of fresh
    names, scratch, texts of checks, statements before loops.
    """

    scratch: list[Array]
    locals: list[Array] = field(default_factory=list)
    idle: list[Array] = field(default_factory=list)
    shared: list[Array] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    hoisted: dict[int, Stmts] = field(default_factory=dict)
    marked: Stmts = field(default_factory=list)
    natives: Values = field(default_factory=dict)
    count: int = 0

    def number(self) -> int:
        """A fresh number."""
        self.count += 1
        return self.count

    def native(self, root: Expr) -> Expr:
        """`root` with native functions; loops are tried several ways, each with the same bodies."""
        if root not in self.natives:
            self.natives[root] = with_natives(root)
        return self.natives[root]

    def panel(self, name: str, kind: DType, size: int) -> Array:
        """A fresh scratch array."""
        array = Array(f"{name}{self.number()}", kind, size, "scratch")
        self.scratch.append(array)
        return array

    def local(self, name: str, kind: DType, size: int) -> Array:
        """Scratch for one step: steps run one after the other and share it."""
        fitting = [a for a in self.idle if a.dtype == kind]
        if fitting:
            best = min(fitting, key=lambda a: (a.size < size, abs(a.size - size)))
            self.idle.remove(best)
            best.size = max(best.size, size)
            return best
        array = self.panel(name, kind, size)
        self.locals.append(array)
        return array

    def begin_step(self) -> None:
        """What the step before held is free."""
        self.idle = list(self.locals)

    def site(self, what: str, origin: Origin | None) -> int:
        """The number of a check described as `what`, and the user's expression below."""
        text = what if origin is None else f"{what}\n{origin.excerpt()}"
        if text not in self.sites:
            self.sites.append(text)
        return self.sites.index(text)

    def hoist(self, level: int, statements: Stmts) -> None:
        """Put statements before the loops inside `level` outer loops."""
        self.hoisted.setdefault(level, []).extend([*self.marked, *statements])


@frozen
class Context:
    """What lowering one kernel goes by, a function of it and its schedule: `homes` by value; first
    coordinates and extents of a tile, none after the tiles; `depths`: outer loops around a name.
    Names are numbered by the draft, so every variable is its own.
    """

    kernel: Kernel
    schedule: Schedule
    draft: Draft
    arrays: Mapping[Variable, Array]
    sizes: Mapping[Dim, Var]
    regions: Regions
    marks: bool = False
    far: int = 0
    starts: tuple[Linear, ...] = ()
    spans: tuple[Expr, ...] = ()
    depths: Mapping[Expr, int] = field(default_factory=dict)
    homes: Mapping[Definition, Home] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How many tiles a task has at most."""
        tiles = prod(tile_counts(self.kernel, self.schedule.tile))
        return rounded_up(tiles, self.schedule.tasks)

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in a vector."""
        return max(1, self.schedule.vector // itemsize)

    def var(self, name: str, most: int) -> Var:
        """A fresh loop variable ``0..most-1``."""
        return Var(f"{name}{self.draft.number()}", 0, max(0, most - 1))

    def register(self, name: str, kind: DType, shape: Ints = ()) -> Register:
        """A fresh register."""
        return Register(f"{name}{self.draft.number()}", kind, shape)

    def registers(self, stages: Iterable[Stage]) -> dict[Value, Register]:
        """A fresh register for the value of each stage."""
        return {s.target: self.register("v", s.body.dtype) for s in stages}

    def extent(self, extent: Extent) -> Expr:
        """An extent at run time."""
        sizes = self.sizes
        size = extent_expr(extent)
        return E.rewritten(size, lambda n: sizes[n.dim] if isinstance(n, Size) else None)

    def loops(self, stage: Stage) -> tuple[Nest, Coordinates]:
        """A loop for every axis of `stage` longer than one, and the values of all axes."""
        bound = stage.bound
        nested: Nest = []
        values: Coordinates = {}
        for axis, extent in enumerate(stage.extents):
            outer, most = bound.get(axis), self.longest(stage, axis)
            origin = Linear()
            span = self.extent(extent)
            if outer is not None and self.starts:
                origin = self.starts[outer]
                span = self.spans[outer]
            if most == 1 and isinstance(span, E.Const):
                values[axis] = origin.expr()
                continue
            var = self.var(LETTERS[axis % len(LETTERS)], most)
            nested.append(NestLoop((axis,), var, span, most))
            values[axis] = origin.plus(linear(var)).expr()
        return nested, values

    def longest(self, stage: Stage, axis: int) -> int:
        """The most coordinates of an axis in one tile."""
        most, outer = upper(stage.extents[axis]), stage.bound.get(axis)
        return min(most, self.schedule.tile[outer]) if outer is not None and self.starts else most

    def home(self, stage: Stage) -> Home:
        """Where the value of `stage` is written."""
        return self.homes[stage.target]

    def memory(self, variable: Variable) -> Home:
        """Where a variable lies: row-major over the upper bounds, or over `far` symbolic ones."""
        shape = variable.shape
        far = [(self.far if isinstance(e, Dim) else 0) or upper(e) for e in shape]
        return Home.whole(self.arrays[variable], far)

    def site(self, take: Take, place: int) -> int:
        """The number of the check of one data index."""
        source = take.source
        made = "" if source.origin is None else f" ({source.origin.place})"
        what = f"axis {place} of `{source}`{made}, which has {source.shape[place]} elements"
        return self.draft.site(what, take.origin)

    def mark(self, stages: Sequence[Stage]) -> Stmts:
        """Says which stages the statements that follow compute, where that is asked for."""
        if not self.marks:
            return []
        order = [s.target for s in self.kernel.every]
        self.draft.marked = [Mark(tuple(order.index(s.target) for s in stages))]
        return list(self.draft.marked)

    def depth(self, root: Expr) -> int:
        """How many outer loops `root` depends on (the deepest one counts)."""
        return max((self.depths.get(n, 0) for n in walk(root) if isinstance(n, Expr)), default=0)


def begin(kernel: Kernel, schedule: Schedule, marks: bool = False, far: int = 0) -> Context:
    """A context with the kernel's arrays and sizes, and an empty draft."""
    taken: dict[str, int] = {}
    arrays: dict[Variable, Array] = {}
    for variable in kernel.arguments:
        again = taken[variable.name] = taken.get(variable.name, 0) + 1
        name = variable.name if again == 1 else f"{variable.name}.{again}"
        arrays[variable] = Array(name, variable.dtype, elements(variable.shape))
    sizes = {dim: Var(dim.name, dim.lo, dim.hi) for dim in symbols(kernel)}
    slots = enumerate(schedule.slots)
    draft = Draft([Array(f"tile{n}", slot.dtype, slot.size, "scratch") for n, slot in slots])
    worked = regions(kernel.stages, kernel.finish)
    return Context(kernel, schedule, draft, arrays, sizes, worked, marks, far)


def symbols(kernel: Kernel) -> list[Dim]:
    """Every symbolic extent of a kernel, in order of appearance."""
    extents: list[Extent] = list(kernel.outer)
    for stage in kernel.every:
        extents.extend(stage.shape)
        extents.extend(stage.extents)
        for take in stage_reads(stage):
            extents.extend(take.source.shape)
        extents.extend(n.dim for n in walk(stage.body) if isinstance(n, Size))
    every = (n for e in extents for n in walk(extent_expr(e)))
    return list(dict.fromkeys(n.dim for n in every if isinstance(n, Size)))


def settled(
    context: Context,
    first: int,
    stages: Iterable[Stage],
) -> dict[Definition, Home]:
    """The homes of stages by their residences; `first`: the number of the first."""
    homes = ((s.target, _home(context, n, s)) for n, s in enumerate(stages, first))
    return {target: home for target, home in homes if home is not None}


def _home(context: Context, number: int, stage: Stage) -> Home | None:
    """Where a stage lives; None: in a register."""
    residence = context.schedule.residences[number]
    if residence.place is Place.MEMORY:
        host = stage if residence.host is None else context.kernel.stages[residence.host]
        if host.store is None:
            raise InvalidIR(f"{stage.target} lives in memory without a variable")
        return context.memory(host.store)
    if residence.place is Place.SHARED:
        shape = tile_shape(stage, None)
        size = prod(shape)
        name = f"partial{context.draft.number()}"
        kind = accumulator(stage.body.dtype)
        array = Array(name, kind, size * context.schedule.tasks, "shared")
        context.draft.shared.append(array)
        return Home.whole(array, shape, Linear(0, {task_var(context): size}))
    if residence.slot is None:
        return None
    slot = context.draft.scratch[residence.slot]
    return scratch_home(context, stage, slot, tile_extents(context, stage))


def tile_extents(context: Context, stage: Stage) -> Ints:
    """Extents of the part of a stage at hand: of a tile, or all of it after the tiles."""
    return tile_shape(stage, context.schedule.tile if context.starts else None)


def scratch_home(context: Context, stage: Stage, array: Array, shape: Ints) -> Home:
    """A place of `shape` in scratch: coordinates of outer axes count from the tile's start."""
    bound = stage.bound if context.starts else {}
    origins = tuple(context.starts[bound[n]] if n in bound else Linear() for n in range(len(shape)))
    return Home(array, row_major(shape), origins, Linear())


def task_var(context: Context) -> Var:
    """The number of the running task."""
    return Var("task", 0, context.schedule.tasks - 1)


def accumulator(kind: DType) -> DType:
    """The type in which values of `kind` are added up: 16-bit floats in float32."""
    return float32 if is_short(kind) else kind


def cast(value: Expr, to: DType) -> Expr:
    """`value` as `to`, unchanged where it is that already."""
    return value if value.dtype == to else E.Cast(value, to)


def name_value(var: Var, value: Expr, body: Stmts) -> Stmt:
    """``var = value; body``, as a loop of one iteration, so that `var` carries its bounds."""
    after = linear(value).shifted(1).expr()
    return For(var, value, after, tuple(body))


def nest(loops: Nest, body: Stmts) -> Stmts:
    """Sequential loops around `body`, the first outermost."""
    for loop in reversed(loops):
        body = [For(loop.var, loop.first, loop.extent, tuple(body))]
    return body


def swept(loops: Nest, body: Stmts) -> Stmts:
    """Loops around `body`, the last one in lanes."""
    return nest(loops[:-1], [vector(loops[-1], 1, body)]) if loops else body


def along(loops: Nest, axis: int | None) -> NestLoop | None:
    """The innermost of the loops over an axis, if there is one."""
    return next((loop for loop in reversed(loops) if axis in loop.axes), None)


def rest_of(loop: NestLoop, first: Linear, size: int) -> Expr:
    """How many iterations are in the block of at most `size` that begins at `first`."""
    if loop.static and loop.most % size == 0:
        return index(size)
    return smaller(index(size), linear(loop.extent).minus(first).expr())


def in_pieces(context: Context, loop: NestLoop, size: int, name: str) -> Nest:
    """A loop over pieces of a loop, and that over one piece.

    ``for i < n  ->  for g < ceil(n / 8): for i in 8 g .. min(8 g + 8, n)``
    """
    pieces = counted(context, loop, size, name)
    first = Linear(0, {pieces.var: size})
    end = first.plus(Linear(size)).expr()
    whole = loop.static and loop.most % size == 0
    end = end if whole else smaller(end, loop.extent)
    return [pieces, replace(loop, first=first.expr(), extent=end)]


def counted(context: Context, loop: NestLoop, size: int, name: str) -> NestLoop:
    """A loop that counts the blocks of `size` of a loop."""
    most = rounded_up(loop.most, size)
    return NestLoop((), context.var(name, most), ceil_div(loop.extent, size), most)


def rounded_up(extent: int, by: int) -> int:
    """How many blocks of `by` cover `extent`."""
    return -(-extent // by)


def vector(loop: NestLoop, unroll: int, body: Stmts) -> For:
    """A loop in lanes."""
    return For(loop.var, loop.first, loop.extent, tuple(body), LoopKind.VECTOR, 1, unroll)


def unrolled(var: Var, count: int, *body: Stmt) -> For:
    """A loop that is written out."""
    return For(var, index(0), index(count), body, LoopKind.UNROLL)


def smaller(left: Expr, right: Expr) -> Expr:
    """The smaller of two integers, folded where both are literals."""
    if isinstance(left, E.Const) and isinstance(right, E.Const):
        return index(min(int(left.value), int(right.value)))
    return E.If(E.Less(left, right), left, right)


def larger(left: Expr, right: Expr) -> Expr:
    """The larger of two integers, folded where both are literals."""
    if isinstance(left, E.Const) and isinstance(right, E.Const):
        return index(max(int(left.value), int(right.value)))
    return E.If(E.Less(left, right), right, left)


def ceil_div(extent: Expr, by: int) -> Expr:
    """``ceil(extent / by)``"""
    return floor_div(E.Add(extent, index(by - 1)), by)


def floor_div(extent: Expr, by: int) -> Expr:
    """``floor(extent / by)``"""
    return linear(E.FloorDiv(extent, index(by))).expr()
