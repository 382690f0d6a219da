"""The schedule of a launch: ``start -> the neighbour that is cheapest -> .. -> none is cheaper``.

Every number goes a power of two up or down, some in pairs; what the GPU refuses is no neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from pullback.backends.triton.again import again_of
from pullback.backends.triton.atomics import form_of, lanes, most_parts, most_shares, refused
from pullback.backends.triton.blocks import WHOLE, Group, Way, power, size, terms, width
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.price import Work
from pullback.backends.triton.product import product_of
from pullback.backends.triton.schedule import BlockSchedule, Precision, Reads
from pullback.ir.expr import upper

FLAT = 1024  # elements of a block of maps: eight for each of 128 threads
TILE = 64  # rows and columns of a product's tile: 32 sums for each of 128 threads
DEPTH = 32  # terms of a product that a loop takes at once
FEWEST = 128  # terms of a program that adds at once: one for each thread of four warps
LEAST = 16  # of rows, columns and terms: `tl.dot` takes no fewer
STEP = 512  # elements of a row that a loop takes at once
MOST = {"rows": 4096, "columns": 256, "step": 2048, "chunks": 64, "warps": 16, "stages": 5}
MOST_PARTS = 4096  # of an accumulating write: a lane each, and one sum of as many in the end
MOST_SHARES = 256  # programs that look at the same terms
MOST_GROUP = 16  # rows of tiles
GAIN = 0.98  # of the price: a change for less is none, prices are no better than that
PAIRS = ("rows", "columns"), ("rows", "warps"), ("columns", "warps"), ("rows", "step")


def best(
    group: Group, gpu: Gpu, precision: Precision = Precision.EXACT, deterministic: bool = False
) -> BlockSchedule:
    """The schedule of a launch: the cheapest one that `cheapest` comes to; owners before atomics.

    `deterministic`: sums of floats are not added at once, in an order that nobody knows.
    """
    begin = replace(start(group), precision=precision)
    if group.way is Way.SCATTER and refused(group.stages[0], deterministic) is None:
        return min(both(group, gpu, begin), key=lambda s: Work.of(group, gpu).price(s).ns)
    return cheapest(group, gpu, begin)


def both(
    group: Group, gpu: Gpu, begin: BlockSchedule | None = None
) -> tuple[BlockSchedule, BlockSchedule]:
    """An accumulating write by owners, and all at once."""
    begin = begin or start(group)
    count = prod(map(upper, form_of(group.stages[0]).domain))
    spread = replace(begin, rows=min(power(max(1, count)), FEWEST), atomic=True)
    return cheapest(group, gpu, begin), cheapest(group, gpu, spread)


def cheapest(group: Group, gpu: Gpu, schedule: BlockSchedule) -> BlockSchedule:
    """From one schedule the cheapest neighbour, while one is cheaper; by descriptors where factors
    may be read so, and pointers are no cheaper.

    Where even the least block is refused (for registers: shared memory always fits), that is taken:
    what does not fit is kept in memory, as the assembler does it.
    """
    work = Work.of(group, gpu)
    while work.refusal(schedule) is not None:
        smaller = [s for s in moves(group, schedule) if _area(s) < _area(schedule)]
        if not smaller:
            return schedule
        schedule = min(smaller, key=_area)
    price = work.price(schedule).ns
    while True:
        near = [s for s in moves(group, schedule) if work.refusal(s) is None]
        priced = [(work.price(s).ns, n) for n, s in enumerate(near)]
        least, number = min(priced, default=(price, 0))
        if least >= GAIN * price:
            break
        price, schedule = least, near[number]
    described = replace(schedule, reads=Reads.DESCRIPTORS)
    if work.refusal(described) is None and GAIN * work.price(described).ns <= price:
        return described
    return schedule


def start(group: Group) -> BlockSchedule:
    """A schedule that every GPU takes."""
    count = prod(upper(e) for e in group.extents)
    if group.way in (Way.BLOCK, Way.SCAN):
        wide = max(width(s, group.rows[s]) for s in group.stages)
        rows = min(power(count), max(1, (FLAT if wide == 1 else WHOLE) // wide))
        return BlockSchedule(rows)
    stage = group.stages[0]
    if group.way is Way.PRODUCT:
        product = product_of(stage)
        assert product is not None, "who asks knows"
        sides = (power(size(stage, axes)) for axes in (product.rows, product.columns))
        rows, columns = (min(TILE, max(LEAST, n)) for n in sides)
        step = min(DEPTH, max(LEAST, power(size(stage, product.terms))))
        return BlockSchedule(rows, columns, step)
    if group.way is Way.STREAM:
        rows, keys = (power(upper(e)) for e in (stage.shape[-2], stage.shape[-1]))
        return BlockSchedule(min(TILE, max(LEAST, rows)), step=min(DEPTH, max(LEAST, keys)))
    if group.way is Way.AGAIN:
        rows, keys = _sides(group)
        return BlockSchedule(min(TILE, max(LEAST, rows)), step=min(DEPTH, max(LEAST, keys)))
    if group.way is Way.LOOP:
        step = min(STEP, power(size(stage, terms(stage))))
        return BlockSchedule(min(power(count), max(1, WHOLE // step)), step=step)
    rows = min(power(count), FEWEST)
    return BlockSchedule(rows, warps=max(1, rows // 32) if group.way is Way.SCATTER else 4)


def moves(group: Group, schedule: BlockSchedule) -> Iterator[BlockSchedule]:
    """The schedules next to one, each once, in an order that is always the same."""
    numbers = _numbers(group, schedule)
    known = {schedule}
    for names in [*((n,) for n in numbers), *(p for p in PAIRS if set(p) <= set(numbers))]:
        for signs in ((1,), (-1,)) if len(names) == 1 else ((1, 1), (-1, -1), (1, -1), (-1, 1)):
            changed = {}
            for name, sign in zip(names, signs, strict=True):
                least, most = numbers[name]
                now = getattr(schedule, name)
                value = now + sign if name == "stages" else now * 2 if sign > 0 else now // 2
                changed[name] = min(most, max(least, value))
            near = replace(schedule, **changed)
            if near not in known:
                known.add(near)
                yield near
    if group.way is Way.PRODUCT:
        yield from (replace(schedule, reads=r) for r in Reads if r is not schedule.reads)


def _numbers(group: Group, schedule: BlockSchedule) -> dict[str, tuple[int, int]]:
    """What of a schedule is free, from the least to the most of it."""
    stage, count = group.stages[0], prod(upper(e) for e in group.extents)
    free = {"rows": (1, min(MOST["rows"], power(max(1, count)))), "warps": (1, MOST["warps"])}
    if group.way in (Way.BLOCK, Way.SCAN):
        wide = max(width(s, group.rows[s]) for s in group.stages)
        most = max(1, min(MOST["rows"], 4 * WHOLE // wide))
        free["rows"] = (1, min(free["rows"][1], most))
    if group.way in (Way.STREAM, Way.AGAIN):
        sides = map(upper, stage.shape[-2:]) if group.way is Way.STREAM else _sides(group)
        ends = [max(LEAST, min(128, power(n))) for n in sides]
        free["rows"], free["step"] = (LEAST, ends[0]), (LEAST, ends[1])
        free["stages"] = 2, MOST["stages"]
    if group.way is Way.SCATTER:
        count = prod(map(upper, lanes(group, replace(schedule, chunks=1, shares=1))))
        most = 1 << (min(MOST_PARTS, most_parts(group)).bit_length() - 1)
        many = 1 if schedule.atomic else schedule.chunks * schedule.shares
        every = power(max(1, count * many))
        least = min(every, FEWEST) if schedule.atomic else 1  # a lane of a warp has a term
        free["rows"] = (least, min(MOST["rows"], every))
        free["chunks"] = (1, most)
        if not schedule.atomic:
            free["shares"] = (1, min(MOST_SHARES, power(most_shares(group))))
    if group.way is Way.LOOP:
        total = power(size(stage, terms(stage)))
        free["step"] = (min(total, LEAST), min(MOST["step"], total))
        free["chunks"] = (1, max(1, min(MOST["chunks"], total // (4 * LEAST))))
    if group.way is Way.PRODUCT:
        product = product_of(stage)
        assert product is not None, "who asks knows"
        sizes = [power(size(stage, a)) for a in (product.rows, product.columns, product.terms)]
        ends = [max(LEAST, min(MOST["columns"], n)) for n in sizes]
        free["rows"], free["columns"] = (LEAST, ends[0]), (LEAST, ends[1])
        free["step"] = LEAST, min(128, ends[2])
        free["stages"], free["group"] = (2, MOST["stages"]), (1, MOST_GROUP)
        if splits(group):
            free["chunks"] = (1, max(1, min(MOST["chunks"], sizes[2] // (2 * DEPTH))))
    return free


def _sides(group: Group) -> tuple[int, int]:
    """Rows and terms of matrices that are made again."""
    made = again_of(group.stages)
    assert made is not None, "groups are made so"
    _, rows, over = made.parts
    return power(made.count(rows)), power(made.count(over))


def splits(group: Group) -> bool:
    """Whether the terms of a product may be cut into parts: nothing of it is known late."""
    stage = group.stages[0]
    return all(isinstance(e, int) for e in (*stage.extents, *stage.shape))


def _area(schedule: BlockSchedule) -> int:
    return schedule.rows * schedule.columns * schedule.stages * schedule.step // schedule.warps
