"""Which axes are the columns of sums of products: those of the lowest price.

``y[i, j] = sum[k] x[i, k] w[j, k]  ->  (column.0, 1)``: rows of w are packed, x is read in place
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf

from pullback.backends.nests.flight import in_flight
from pullback.backends.nests.operands import all_columns, has_pages, tile_choices
from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.errors import OptionError
from pullback.ir.expr import upper
from pullback.ir.graph import Map, Value, Variable
from pullback.ir.kernel import Kernel, Stage, redirected, stage_reads
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.contraction import least_ns, ways
from pullback.schedule.schedule import Numbers, Product, Schedule
from pullback.schedule.slots import tile_shape
from pullback.schedule.steps import lanes

SWEPT = -1  # no axis is columns
CLOSE = 1.1  # times the lowest price of a stage alone that others are looked at in their kernel


def columns(kernel: Kernel, target: Target) -> Choices:
    """The columns of every sum of products that may have others: those of the lowest price; none
    (-1), and it is a sweep, of lanes along an axis that all factors have.

    Each way is priced of a kernel of the stage alone, but for those that take more at the least.
    What stages would have alone is for the price of the whole kernel to confirm, by all samples:
    bounds of loops that another stage decides are seen there only (causal attention of 905
    positions, gradients by keys and values: 15.5 ms with the columns of stages alone, 9.0 with
    those of the least), and blocks whose terms are cut (4 x 97 channels of 13^3 by weights: two
    samples say 5.5 ms, all 14.4, measured 27).
    """
    best, close = _alone(kernel, target)
    own = choices_of(best)
    made = {own: _flown(kernel, target, own), (): scheduled(kernel, target, ())}
    for name, column in close.items():
        if _is_cut(kernel, name, best[name], made[own], target):
            given = choices_of({**best, name: column})
            made[given] = scheduled(kernel, target, given)
    if len(set(made.values())) == 1:
        return own
    return min(made, key=lambda given: price(kernel, made[given], target).ns)


def _is_cut(kernel: Kernel, name: str, column: int, schedule: Schedule, target: Target) -> bool:
    """Whether other stages leave tiles of a stage less of its columns than a vector holds."""
    stage = kernel.stages[int(name.partition(".")[2])]
    lanes = min(upper(stage.shape[column]), target.lanes(stage.body.dtype.itemsize))
    return tile_shape(stage, schedule.tile)[column] < lanes


def _alone(kernel: Kernel, target: Target) -> tuple[dict[str, int], dict[str, int]]:
    """The columns of the lowest price of each stage alone; and those next to it, where the tiles of
    a kernel may be others (a picture of 18 channels by 8 x 5 x 5, stride 2: 13.0 us and 13.1, in
    the kernel 91 and 13).
    """
    best: dict[str, int] = {}
    close: dict[str, int] = {}
    for number, stage in enumerate(kernel.stages if kernel.tiling is None else ()):
        seen = ways(stage, target)
        swept = bool(seen) and _is_shared(stage, seen[0], lanes([stage], target)[0])
        if len(seen) + swept < 2:
            continue
        one, least = apart(kernel, stage, seen), inf
        prices: dict[int, float] = {}
        name = f"column.{number if one is kernel else len(one.stages) - 1}"
        for way in seen:
            if least_ns(stage, way, target) >= least:
                break
            ns = _least_ns(one, target, {**(best if one is kernel else {}), name: way.column})
            prices[way.column] = ns
            least = min(least, ns)
        if swept:
            given = choices_of({**(best if one is kernel else {}), name: SWEPT})
            prices[SWEPT] = price(one, _flown(one, target, given), target, ROUGH).ns
        first, *rest = sorted(prices, key=lambda column: prices[column])
        best[f"column.{number}"] = first
        near = bool(rest) and prices[rest[0]] < CLOSE * least
        if near and not swept and len(kernel.stages) > 1:
            close[f"column.{number}"] = rest[0]
    return best, close


def _flown(kernel: Kernel, target: Target, given: Choices) -> Schedule:
    """A schedule with columns; of sweeps with the vectors in flight that they would have."""
    swept = SWEPT in dict(given).values()
    return scheduled(kernel, target, in_flight(kernel, target, given) if swept else given)


def _is_shared(stage: Stage, way: Product, axis: int | None) -> bool:
    """Whether an axis is one of the result and of all factors, as x is of
    ``y[b, o, x] = sum[i] w[i, o, x] z[b, i, x]``.
    """
    out = axis is not None and axis < len(stage.shape)
    return out and axis in way.left.axes and axis in way.right.axes


def _least_ns(kernel: Kernel, target: Target, given: Numbers) -> float:
    """Nanoseconds of a kernel with columns; of one product, by its tile or by shares of all, where
    a machine chooses among them (64 x 20 of 1000 terms, one Zen 4 core, which does not: 131 us by
    dot products of 5 rows of 20, priced by tiles of all, and 36 in tiles of the 20 columns).
    """
    own = scheduled(kernel, target, choices_of(given))
    least = price(kernel, own, target, ROUGH).ns
    steps = [step for step in own.steps if step.product is not None]
    alone = len(steps) == 1 and has_pages(target)
    for tile in all_columns(kernel, own, steps[0], target)[-1:] if alone else ():
        with suppress(OptionError):
            other = scheduled(kernel, target, choices_of({**given, **tile_choices(tile)}))
            least = min(least, price(kernel, other, target, ROUGH).ns)
    return least


def apart(kernel: Kernel, stage: Stage, seen: Iterable[Product]) -> Kernel:
    """A kernel of one stage, behind the maps that it reads and that read nothing of `kernel`; what
    it reads of other stages lies in memory, and so does what it computes.

    `kernel` itself where others are computed again for each tile of columns: how many tiles there
    are is for the columns to say.
    """
    again = {o for s in kernel.stages for o, axis in enumerate(s.outer) if axis is None}
    if any(stage.bound.get(way.column) in again for way in seen):
        return kernel
    own = {s.target: s for s in kernel.stages}
    sources = dict.fromkeys(t.source for t in stage_reads(stage) if t.source in own)
    maps = {v: own[v] for v in sources if isinstance(own[v].form, Map)}
    maps = {v: s for v, s in maps.items() if all(t.source not in own for t in stage_reads(s))}
    stored = [stage.target, *(v for v in sources if v not in maps)]
    places: dict[Value, Variable] = {v: Variable(v.name, v.shape, v.dtype) for v in stored}
    kept = [o for o, a in enumerate(stage.outer) if a is not None and a not in stage.over]

    def cut(one: Stage) -> Stage:
        outer = tuple(one.outer[o] for o in kept)
        return redirected(replace(one, outer=outer, store=places.get(one.target)), places)

    outer = tuple(kernel.outer[o] for o in kept)
    return Kernel(stage.target.name, outer, tuple(map(cut, (*maps.values(), stage))))
