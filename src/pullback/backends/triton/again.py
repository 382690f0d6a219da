"""Sums of what is computed again in blocks: derivatives of attention without a matrix in memory.

``e = exp(q k^T - top); de = g v^T; dq = ((de + d) e) k``: blocks of e and de are made where a sum
takes them, in a loop over its terms. What other loops took of them they make themselves.

Source: Dao et al., FlashAttention (arXiv:2205.14135), the backward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from pullback.backends.triton.attention import LONGEST, begun_sums, stream_of
from pullback.backends.triton.blocks import Group, Way, power, size
from pullback.backends.triton.product import Product, product_of
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Take, upper
from pullback.ir.graph import Definition, Map, Reduce, Value, Variable, replace_reads, with_places
from pullback.ir.kernel import Kernel, Stage, stage_reads

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """A sum over blocks: its `product` has what is made again on the left. `axes`: those of the
    sum by those of the blocks.
    """

    stage: Stage
    product: Product
    axes: Mapping[int, int]

    def parts(self) -> tuple[Axes, Axes, Axes]:
        """Axes of the blocks: of the batch, those that the sum keeps, those that it sums over."""
        p = self.product
        batch, rows, terms = (
            tuple(n for n in sorted(self.axes) if self.axes[n] in own)
            for own in (p.batch, p.rows, p.terms)
        )
        return batch, rows, terms


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """A loop: stages that are made again, block by block, those that are sums of products with
    their factors by rows and by terms, and the sums of them.
    """

    inner: tuple[Stage, ...]
    products: Mapping[Stage, Product]
    sums: tuple[Sum, ...]

    @property
    def parts(self) -> tuple[Axes, Axes, Axes]:
        """Axes of the blocks: of the batch, of rows, of terms."""
        return self.sums[0].parts()

    @property
    def stages(self) -> list[Stage]:
        return [*self.inner, *(s.stage for s in self.sums)]

    @property
    def guard(self) -> E.Less | None:
        """What all sums are 0 without, ``term < f(row)`` or ``row < term + 1`` of the blocks; None:
        not all are 0 by the same.
        """
        _, rows, terms = self.parts
        zeros: dict[Value, tuple[E.Less, ...]] = {}
        for stage in self.inner:
            if stage not in self.products:
                zeros[stage.target] = _zeros(stage.body, zeros)
        if len(rows) != 1 or len(terms) != 1:
            return None
        every = [_zeros(s.product.left, zeros) for s in self.sums]
        both = [guard for guard in every[0] if all(guard in own for own in every)]
        axes = self.inner[0].target.axes
        return next((g for g in both if _bounds_terms(g, axes[rows[0]], axes[terms[0]])), None)

    def count(self, axes: Axes) -> int:
        """Elements of blocks along some of their axes."""
        return size(self.inner[0], axes)

    def group(self) -> Group:
        """The loop as one launch."""
        batch, rows, _ = self.parts
        extents = tuple(self.inner[0].shape[a] for a in (*batch, *rows))
        return Group(Way.AGAIN, extents, self.stages, dict.fromkeys(self.stages, ()))


def _zeros(e: Expr, zeros: Mapping[Value, tuple[E.Less, ...]]) -> tuple[E.Less, ...]:
    """Conditions that a value is 0 without, in the axes of the blocks."""
    match e:
        case Take(source=source):
            return zeros.get(source, ())
        case E.Mul(left=left, right=right):
            return (*_zeros(left, zeros), *_zeros(right, zeros))
        case E.If(condition=condition, then=then, otherwise=E.Const() as c) if c.value == 0:
            return (*_parts(condition), *_zeros(then, zeros))
    return ()


def _parts(condition: Expr) -> tuple[E.Less, ...]:
    match condition:
        case E.Less():
            return (condition,)
        case E.And(left=left, right=right):
            return (*_parts(left), *_parts(right))
    return ()


def _bounds_terms(guard: E.Less, row: Axis, term: Axis) -> bool:
    """Whether a condition says where terms begin or end by their row alone."""
    left, right = guard.left, guard.right
    if list(E.takes([right])):
        return False
    if left is term:
        return term.number not in right.axes
    return left is row and right in (term, E.Add(term, E.index(1)))


def again_of(stages: Sequence[Stage]) -> Again | None:
    """The loop of some stages, all of them; None: they are none."""
    made = {s.target for s in stages}
    sums: list[Stage] = []
    inner: list[Stage] = []
    for stage in stages:
        takes = any(t.source in made for t in stage_reads(stage))
        (sums if takes and isinstance(stage.form, Reduce) else inner).append(stage)
    own = [_sum(stage, {s.target for s in inner}) for stage in sums]
    known = tuple(s for s in own if s is not None)
    if not (inner and known) or len(known) < len(own):
        return None
    parts, shape = known[0].parts(), inner[0].shape
    if any(s.parts() != parts for s in known) or any(s.shape != shape for s in inner):
        return None
    products = {}
    for stage in inner:
        if isinstance(stage.form, Map):
            continue
        product = _turned(product_of(stage), parts)
        if product is None or power(size(stage, product.terms)) > LONGEST:
            return None
        products[stage] = product
    return Again(tuple(inner), products, known) if products else None


def _turned(product: Product | None, parts: tuple[Axes, Axes, Axes]) -> Product | None:
    """A product whose rows and columns are the rows and terms of blocks."""
    if product is None or product.batch != parts[0]:
        return None
    p = product
    if (p.rows, p.columns) == parts[1:]:
        return p
    other = Product(p.right, p.left, p.scale, p.batch, p.columns, p.rows, p.terms)
    return other if (p.columns, p.rows) == parts[1:] else None


def _sum(stage: Stage, made: Collection[Value]) -> Sum | None:
    """A sum of products of blocks with columns of another factor."""
    product = product_of(stage)
    if product is None:
        return None
    p = product
    if _takes(p.right, made):
        p = Product(p.right, p.left, p.scale, p.batch, p.columns, p.rows, p.terms)
    if any(_takes(e, made) for e in (p.right, *p.scale)):
        return None
    if power(size(stage, p.columns)) > LONGEST:
        return None
    axes: dict[int, int] = {}
    for take in (t for t in stage_reads(stage) if t.source in made):
        for n, (index, extent) in enumerate(zip(take.indices, take.source.shape, strict=True)):
            if extent == 1:
                continue
            if not isinstance(index, Axis) or axes.setdefault(n, index.number) != index.number:
                return None
    own = list(axes.values())
    whole = sorted(own) == sorted((*p.batch, *p.rows, *p.terms))
    return Sum(stage, p, axes) if whole else None


def _takes(e: Expr, made: Collection[Value]) -> bool:
    return any(t.source in made for t in E.takes([e]))


# -- in a kernel


def apart(kernel: Kernel) -> tuple[Kernel, dict[Stage, Again]]:
    """A kernel whose sums make matrices again that lie nowhere, and these loops by the first stage
    of each. What is read by no other is not made on its own any more.
    """
    streams = {s for n in range(len(kernel.stages)) for s in begun_sums(kernel, n)}
    while True:
        made, loops = _apart(kernel, streams)
        whole = [stream_of(made, n) for n in range(len(made.stages))]
        kept = {s for stream in whole if stream is not None for s in stream.sums}
        if streams <= kept:
            return made, loops
        streams &= kept


def _apart(kernel: Kernel, streams: Collection[Stage]) -> tuple[Kernel, dict[Stage, Again]]:
    """The same, where some sums are of other loops."""
    stages = kernel.stages
    written = {s.store for s in kernel.every}
    loops: list[Again] = []
    for stage in (s for s in stages if s not in streams):
        loop = _loop(stages, stage)
        if loop is None or not written.isdisjoint(_variables(loop)):
            continue
        joint = again_of(_joined(loops[-1], loop)) if loops else None
        if joint is not None and _follows(stages, loops[-1], stage):
            loops[-1] = joint
        else:
            loops.append(loop)
    loops = [loop for loop in loops if _pays(loop)]
    if not loops:
        return kernel, {}
    return _rebuilt(kernel, loops)


def _loop(stages: Sequence[Stage], stage: Stage) -> Again | None:
    """The loop of one sum, with all that is made again for one of its factors."""
    product = product_of(stage)
    if product is None:
        return None
    for factor, own in ((product.left, product.rows), (product.right, product.columns)):
        wanted = _wanted(stages, stage, factor, own)
        loop = again_of([*wanted, stage]) if wanted else None
        if loop is not None and "float64" not in {s.body.dtype.name for s in loop.stages}:
            return loop
    return None


def _wanted(stages: Sequence[Stage], stage: Stage, factor: Expr, own: Axes) -> list[Stage]:
    """The matrices that a factor of a sum takes, and those that they take themselves. `own`: the
    axes of the sum that this factor alone has.
    """
    made: dict[Value, Stage] = {s.target: s for s in stages if s.store is None}
    wanted: set[Value] = set()
    grown = [(stage, list(E.takes([factor])))]
    while grown:
        reader, takes = grown.pop()
        for take in takes:
            source = made.get(take.source)
            if source is None or source.target in wanted or not _matrix(source, take, reader, own):
                continue
            wanted.add(source.target)
            if isinstance(source.form, Map):
                grown.append((source, list(stage_reads(source))))
    return [s for s in stages if s.target in wanted]


def _matrix(source: Stage, take: Take, reader: Stage, own: Axes) -> bool:
    """Whether a block of what is read is made where a block of the reader is."""
    if isinstance(reader.form, Map):
        axes, same = reader.target.axes, source.shape == reader.shape
        pairs = zip(take.indices, axes, reader.shape, strict=False)
        if not (same and all(at is axis or extent == 1 for at, axis, extent in pairs)):
            return False
    else:
        numbers = {at.number for at in take.indices if isinstance(at, Axis)}
        if numbers.isdisjoint(reader.over) or numbers.isdisjoint(own):
            return False
    return isinstance(source.form, Map) or product_of(source) is not None


def _variables(loop: Again) -> set[Variable | None]:
    """What the stages that are made again read of memory: it must be there still."""
    reads = (t.source for s in loop.inner for t in stage_reads(s))
    return {v for v in reads if isinstance(v, Variable)}


def _joined(one: Again, two: Again) -> list[Stage]:
    inner = dict.fromkeys((*one.inner, *two.inner))
    return [*inner, *(s.stage for s in (*one.sums, *two.sums))]


def _follows(stages: Sequence[Stage], loop: Again, stage: Stage) -> bool:
    """Whether a sum stands right behind those of a loop, and takes none of them."""
    own = [s.stage for s in loop.sums]
    taken = {s.target for s in own}
    number = stages.index(stage)
    return stages[number - 1] is own[-1] and all(t.source not in taken for t in stage_reads(stage))


def _pays(loop: Again) -> bool:
    """Whether matrices, written once and read once, are more bytes than what the loop moves."""
    wide = prod(upper(e) for e in loop.inner[0].shape)
    matrices = 2 * sum(wide * s.body.dtype.itemsize for s in loop.products)
    made = {s.target for s in loop.inner}
    reads = {t.source for s in loop.stages for t in stage_reads(s)} - made
    moved = [*reads, *(s.stage.target for s in loop.sums)]
    return matrices > sum(prod(upper(e) for e in v.shape) * v.dtype.itemsize for v in moved)


def _rebuilt(kernel: Kernel, loops: Sequence[Again]) -> tuple[Kernel, dict[Stage, Again]]:
    """The stages of a kernel, with copies of their own for each loop."""
    made: list[Stage] = []
    firsts: dict[Stage, Again] = {}
    first = {loop.sums[0].stage: loop for loop in loops}
    others = {s.stage for loop in loops for s in loop.sums}
    for stage in kernel.stages:
        if stage in first:
            copies = _copied(first[stage])
            firsts[copies.inner[0]] = copies
            made += copies.stages
        elif stage not in others:
            made.append(stage)
    kept = {s for loop in firsts.values() for s in loop.stages}
    for stage in reversed(list(made)):
        read = {t.source for s in (*made, *kernel.finish) for t in stage_reads(s)}
        if stage.store is None and stage not in kept and stage.target not in read:
            made.remove(stage)
    return replace(kernel, stages=tuple(made)), firsts


def _copied(loop: Again) -> Again:
    """A loop whose matrices are its own."""
    names: dict[Value, Definition] = {s.target: replace(s.target) for s in loop.inner}

    def change(take: Take) -> Expr | None:
        own = names.get(take.source)
        return None if own is None else take.of(own)

    stages = []
    for stage in loop.stages:
        target = names.get(stage.target, stage.target)
        form, body = with_places(stage.form, change), replace_reads(stage.body, change)
        stages.append(replace(stage, target=target, form=form, body=body))
    made = again_of(stages)
    assert made is not None, "copies are as what they are of"
    return made
