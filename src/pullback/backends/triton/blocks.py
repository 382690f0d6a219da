"""How a kernel is cut into launches.

``stages -> groups``: the stages of a group live in registers side by side, a row each of what
the kernel's outer axes are; what does not fit beside others is a launch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from pullback.backends.triton.language import JOINS, SCANS
from pullback.backends.triton.product import elementwise, product_of
from pullback.ir.expr import Axis, Shape, Take, upper
from pullback.ir.graph import Accumulate, Map, Reduce, Scan, Value, Variable
from pullback.ir.kernel import Kernel, Stage, plain_places, stage_reads

WHOLE = 4096  # elements of a block of rows: 32 registers of each of 128 threads


class Way(Enum):
    """How the stages of a launch are computed."""

    BLOCK = "block"  # whole rows in registers
    LOOP = "loop"  # one reduction, in blocks of its terms
    SCAN = "scan"  # one scan, whole rows in registers
    SEQUENCE = "sequence"  # term by term: longer scans, combiners of the user's
    PRODUCT = "product"  # a sum of products, in tiles on tensor cores
    STREAM = "stream"  # scores, their maximum and sums, in one loop over blocks of keys
    AGAIN = "again"  # sums over blocks of matrices that are made where they are taken
    SCATTER = "scatter"  # an accumulating write: each program owns what it writes


@dataclass(slots=True)
class Group:
    """One launch: its stages, the axes of each that are its rows."""

    way: Way
    extents: Shape
    stages: list[Stage]
    rows: dict[Stage, tuple[int, ...]] = field(default_factory=dict)


def power(count: int) -> int:
    """The next power of two: blocks have no other sizes."""
    return 1 << max(0, count - 1).bit_length()


def columns(stage: Stage, rows: Sequence[int]) -> tuple[int, ...]:
    """Axes of the result that are no rows, but for those of one element."""
    kept = range(len(stage.shape))
    return tuple(a for a in kept if a not in rows and stage.extents[a] != 1)


def terms(stage: Stage) -> tuple[int, ...]:
    """The reduced axes, but for those of one element."""
    return tuple(a for a in stage.over if stage.extents[a] != 1)


def size(stage: Stage, axes: Sequence[int]) -> int:
    """Elements along axes, at most."""
    return prod(upper(stage.extents[a]) for a in axes)


def width(stage: Stage, rows: Sequence[int]) -> int:
    """Elements of a row's block."""
    return power(size(stage, columns(stage, rows))) * power(size(stage, terms(stage)))


Loop = Callable[[Kernel, int], "Group | None"]
Pays = Callable[[Group, Group, Group], bool]


def groups(kernel: Kernel, loop: Loop | None = None, pays: Pays | None = None) -> list[Group]:
    """The launches of a kernel, in order. `loop`: several stages from one on that are one loop.
    `pays`: whether a stage joins those of a launch, by these, itself alone, and all in one.
    """
    made: list[Group] = []
    stages = (*kernel.stages, *kernel.finish)
    taken = 0
    for number, stage in enumerate(stages):
        if number < taken:
            continue
        one = None if loop is None else loop(kernel, number)
        if one is not None:
            made.append(one)
            taken = number + len(one.stages)
            continue
        way, rows = _way(kernel, stage, stages[number + 1 :])
        alone = Group(way, tuple(stage.extents[a] for a in rows), [stage], {stage: rows})
        both = _joined(kernel, made[-1], stage) if made else None
        if both is not None and (pays is None or pays(made[-1], alone, both)):
            made[-1] = both
        else:
            made.append(alone)
    return made


def _joined(kernel: Kernel, group: Group, stage: Stage) -> Group | None:
    """A stage beside those of a group, with the kernel's rows or its first axes, where it fits."""
    if group.way is Way.PRODUCT:
        return _beside(group, stage, range(len(stage.shape))) if _after(group, stage) else None
    if group.way is not Way.BLOCK or _alone(stage) is not None:
        return None
    first = tuple(range(len(group.extents)))
    for rows in dict.fromkeys([_bound(kernel, stage) or first, first]):
        same = tuple(stage.shape[a] for a in rows if a < len(stage.shape)) == group.extents
        if same and width(stage, rows) <= WHOLE and fits(group, stage, rows):
            return _beside(group, stage, rows)
    return None


def _beside(group: Group, stage: Stage, rows: Sequence[int]) -> Group:
    every = group.rows | {stage: tuple(rows)}
    return Group(group.way, group.extents, [*group.stages, stage], every)


def _after(group: Group, stage: Stage) -> bool:
    """Whether a map goes into the launch of a product, tile by tile."""
    stored = {s.store for s in group.stages}
    apart = any(take.source in stored for take in stage_reads(stage))
    return not apart and all(elementwise(stage, before) for before in group.stages)


def _bound(kernel: Kernel, stage: Stage) -> tuple[int, ...]:
    """The axes that are the kernel's; none where it does not have them all."""
    bound = tuple(a for a in stage.outer if a is not None)
    return bound if len(bound) == len(kernel.outer) and not stage.partial else ()


def _alone(stage: Stage) -> tuple[Way, tuple[int, ...]] | None:
    """How a stage is computed that shares no launch, and the axes that are its rows."""
    every = tuple(range(len(stage.shape)))
    form = stage.form
    if isinstance(form, Accumulate):
        return Way.SCATTER, tuple(sorted(plain_places(form, stage.shape)))
    if isinstance(form, Scan):
        rows = tuple(a for a in every if a != form.axis)
        whole = form.combiner.name in SCANS and 1 < width(stage, rows) <= WHOLE
        return (Way.SCAN if whole else Way.SEQUENCE), rows
    if isinstance(form, Reduce) and form.combiner.name not in JOINS:
        return Way.SEQUENCE, every
    return None if product_of(stage) is None else (Way.PRODUCT, every)


def _way(kernel: Kernel, stage: Stage, later: Sequence[Stage]) -> tuple[Way, tuple[int, ...]]:
    """How a stage that begins a launch is computed, and the axes that are rows: the kernel's, or
    those that a reduction leaves.
    """
    alone = _alone(stage)
    if alone is not None:
        return alone
    every = tuple(range(len(stage.shape)))
    rows = _bound(kernel, stage) or every
    if isinstance(stage.form, Map) and rows == every:
        rows = _ahead(stage, later)
    if width(stage, rows) <= WHOLE:
        return Way.BLOCK, rows
    return (Way.BLOCK if isinstance(stage.form, Map) else Way.LOOP), every


def _ahead(stage: Stage, later: Sequence[Stage]) -> tuple[int, ...]:
    """The rows of a map: those of the reduction of its rows that comes next."""
    for reader in later:
        if not isinstance(reader.form, Reduce) or _alone(reader) is not None:
            continue
        if any(t.source is stage.target for t in stage_reads(reader)):
            rows = tuple(range(len(reader.shape)))
            if stage.shape[: len(rows)] == reader.shape and width(reader, rows) <= WHOLE:
                return rows
    return tuple(range(len(stage.shape)))


def fits(group: Group, stage: Stage, rows: tuple[int, ...]) -> bool:
    """Whether what a stage reads of a group is in the registers where it is wanted."""
    own: dict[Value, Stage] = {s.target: s for s in group.stages}
    stored = {s.store for s in group.stages}
    for take in stage_reads(stage):
        if take.source in stored:
            return False
        source = own.get(take.source)
        if source is not None and place(take, source, group.rows[source], stage, rows) is None:
            return False
    return True


def place(
    take: Take, source: Stage, theirs: tuple[int, ...], stage: Stage, rows: tuple[int, ...]
) -> int | None:
    """Along which axis of the reader's block the columns of a stage run (0: it has none); None:
    it is read elsewhere than where it lies.
    """
    for a, b in zip(theirs, rows, strict=True):
        at = take.indices[a]
        one = source.extents[a] == 1
        if not one and not (isinstance(at, Axis) and at.number == b):
            return None
    numbers = []
    for a in columns(source, theirs):
        at = take.indices[a]
        if not isinstance(at, Axis) or at.extent != source.extents[a]:
            return None
        numbers.append(at.number)
    if not numbers:
        return 0
    own = columns(stage, rows)
    if tuple(numbers) == own:
        return 1
    return 1 + bool(own) if tuple(numbers) == terms(stage) else None


def identity_reads(stage: Stage, variable: Variable) -> bool:
    """Whether a stage reads a variable only where it stores: element by element."""
    reads = [t for t in stage_reads(stage) if t.source is variable]
    own = tuple(stage.target.axes[: len(stage.shape)])
    return isinstance(stage.form, Map) and all(t.indices == own for t in reads)


def hazard(group: Group, stage: Stage) -> bool:
    """Whether what a stage writes over is read elsewhere in its launch: it is stored after it."""
    variable = stage.store
    if variable is None:
        return False
    readers = [s for s in group.stages if any(t.source is variable for t in stage_reads(s))]
    return any(
        s.shape != variable.shape or group.way is not Way.BLOCK or not identity_reads(s, variable)
        for s in readers
    )


def later_reads(made: Sequence[Group], number: int) -> Iterator[Value]:
    """What launches after one read."""
    for group in made[number + 1 :]:
        for stage in group.stages:
            yield from (t.source for t in stage_reads(stage))
