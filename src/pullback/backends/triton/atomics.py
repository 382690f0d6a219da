"""Accumulating writes: owners take the terms of their places in order, or all add at once.

``owners: program -> (share, part, axes that domain and output share); atomics: -> (domain)``.
"""

from __future__ import annotations

from math import prod

from pullback.algebra.bounds import bounds
from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.language import JOINS, held, word
from pullback.backends.triton.schedule import BlockSchedule
from pullback.ir.expr import Axis, Expr, Shape, Take, upper
from pullback.ir.graph import Accumulate, Definition, Reduce, Variable, read
from pullback.ir.kernel import Stage, plain_places
from pullback.ir.node import walk

WORDS = {"sum": "additions", "max": "maxima", "min": "minima"}
WIDE = 32, 64  # bits of what a GPU adds to at once; 16-bit floats are added up in float32
NEAR = 32 << 20  # bytes of all parts: second caches keep 40 MB (A100) or more


def form_of(stage: Stage) -> Accumulate:
    """How a stage accumulates."""
    assert isinstance(stage.form, Accumulate), "others do not scatter"
    return stage.form


def refused(stage: Stage, deterministic: bool) -> str | None:
    """Why terms are not added at once; None: they may be."""
    form = form_of(stage)
    name, kind = form.combiner.name, stage.body.dtype
    if name not in WORDS:
        return f"a GPU has no atomic {name}"
    if not kind.is_float and (kind.is_bool or kind.bits not in WIDE):
        return f"a GPU has no atomic {WORDS[name]} of {kind}"
    if deterministic and name == "sum" and kind.is_float:
        return "sums of floats are the same bits every time (deterministic=True)"
    return None


def refusal(group: Group, schedule: BlockSchedule) -> str | None:
    """Why a launch cannot run by a schedule of somebody's; None: it can."""
    if group.way is not Way.SCATTER:
        own = schedule.atomic or schedule.shares > 1
        return "atomic and shares: of accumulating writes alone" if own else None
    (stage,) = group.stages
    name = form_of(stage).combiner.name
    if schedule.chunks > 1 and name not in JOINS:
        return f"parts of {name}, whose order may matter"
    if schedule.shares > 1 and schedule.atomic:
        return "shares of places: what adds at once has none"
    return refused(stage, deterministic=False) if schedule.atomic else None


def lanes(group: Group, schedule: BlockSchedule) -> Shape:
    """What programs run over: the domain, or shares, parts and the axes that are rows."""
    (stage,) = group.stages
    domain = form_of(stage).domain
    if schedule.atomic:
        return domain
    own = tuple(domain[a] for a in group.rows[stage])
    return *(n for n in (schedule.shares, schedule.chunks) if n > 1), *own


def turns(group: Group, schedule: BlockSchedule) -> int:
    """Terms that a lane looks at, one after the other."""
    (stage,) = group.stages
    every = prod(map(upper, form_of(stage).domain))
    return -(-every * schedule.shares // max(1, prod(map(upper, lanes(group, schedule)))))


def taken(group: Group, schedule: BlockSchedule, warp: int) -> float:
    """Turns in which some lane of a warp takes a term: of lanes that look at `n` terms at once, at
    random places, ``1 - (1 - 1 / shares) ** n``.
    """
    apart = max(1, min(warp, schedule.rows) // alike(group))
    return turns(group, schedule) * (1 - (1 - 1 / schedule.shares) ** apart)


def owners(stage: Stage) -> Group:
    """An accumulating write whose rows are owned."""
    form = form_of(stage)
    rows = tuple(sorted(plain_places(form, stage.shape)))
    return Group(Way.SCATTER, tuple(form.domain[a] for a in rows), [stage], {stage: rows})


def cut(group: Group, schedule: BlockSchedule) -> tuple[Group, Group | None]:
    """The launch of a schedule, and where it writes parts the one that combines them."""
    (stage,) = group.stages
    last = None
    if schedule.chunks > 1:
        stage, last = _parted(stage, schedule.chunks)
    rows = group.rows[group.stages[0]]
    if schedule.atomic:
        rows = tuple(range(len(form_of(stage).domain)))
    return Group(Way.SCATTER, lanes(group, schedule), [stage], {stage: rows}), last


def _parted(stage: Stage, chunks: int) -> tuple[Stage, Group]:
    """``y = combine over part of parts[part]``, in the order of parts, whoever wrote them when."""
    assert stage.store is not None, "it is memory"
    kind, shape, combiner = stage.store.dtype, stage.shape, form_of(stage).combiner
    parts = Variable(f"{word(stage.target.name)}_parts", (chunks, *shape), kind)
    axes: list[Expr] = [Axis(n, e) for n, e in enumerate(shape)]
    body, whole = read(parts, Axis(len(shape), chunks), *axes), Reduce(combiner, (chunks,))
    total = Stage(Definition(stage.target.name, shape, body, whole), whole, body, (), stage.store)
    every = tuple(range(len(shape)))
    own = Stage(stage.target, stage.form, stage.body, stage.outer, parts)
    return own, Group(Way.LOOP, shape, [total], {total: every})


def seen(group: Group, take: Take, schedule: BlockSchedule) -> float:
    """Elements that a program reads by one read: what says the place at each turn, else those of
    the terms that it takes; one for all lanes that look at the same.
    """
    (stage,) = group.stages
    axes = frozenset().union(*(i.axes for i in take.indices))
    one = not axes & set(group.rows[stage]) and not schedule.atomic
    wide = max(1, schedule.rows // alike(group)) if one else schedule.rows
    says = any(take in walk([at]) for at in form_of(stage).at)
    return wide * turns(group, schedule) / (1 if says else schedule.shares)


def alike(group: Group) -> int:
    """Lanes that look at the same term: those of all rows."""
    (stage,) = group.stages
    domain = form_of(stage).domain
    return max(1, prod(upper(domain[a]) for a in group.rows[stage]))


def most_parts(group: Group) -> int:
    """Parts at most: no more than terms, and all of them near; of combiners of this package."""
    (stage,) = group.stages
    if form_of(stage).combiner.name not in JOINS:
        return 1
    every, size = prod(map(upper, form_of(stage).domain)), _bytes(stage)
    return max(1, min(every // 2, NEAR // max(1, size)))


def most_shares(group: Group) -> int:
    """Shares at most: those of the places that are no rows."""
    (stage,) = group.stages
    return max(1, places(stage) // alike(group))


def parts_bytes(stage: Stage, chunks: int) -> int:
    """Bytes of all parts; none where there is one."""
    return chunks * _bytes(stage) if chunks > 1 else 0


def _bytes(stage: Stage) -> int:
    return prod(map(upper, stage.shape)) * held(stage.body.dtype).itemsize


def places(stage: Stage) -> int:
    """Elements that the indices may reach, as far as their bounds tell."""
    count = 1
    for at, extent in zip(form_of(stage).at, stage.shape, strict=True):
        low, high = bounds(at)
        count *= max(1, int(min(upper(extent), high - low + 1)))
    return count


def neighbours(stage: Stage) -> bool:
    """Whether terms that follow one another go to places that do."""
    form = form_of(stage)
    last = len(form.domain) - 1
    return bool(form.at) and isinstance(form.at[-1], Axis) and form.at[-1].number == last
