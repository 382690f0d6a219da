"""Sorting. Few elements count who stands before whom; many are the host's, or a network's.

In each pass of one every place is compared with the one that differs in one bit: n log^2 n / 2
comparisons, in lanes, memory linear in n. Every pass is the same program, so it is compiled once.
The few largest of many are the host's, too, or selected one by one, out of the blocks that begin
with the largest. Stable; NaN last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isqrt
from typing import Any

import numpy as np

from pullback.cost.facts import elements
from pullback.errors import UnsupportedError
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, float32, int8, int32, int64, is_short
from pullback.ir.expr import And, Axis, Cast, Expr, If, Less, Or
from pullback.ir.graph import MAX, MIN, SUM, Accumulate, Definition, Keep, Rule, Value, read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.forms.control import loop
from pullback.tensor.library.ordering import firsts_ns, places_ns, reachable, values_ns
from pullback.tensor.library.ordering import hosted as by_host
from pullback.tensor.record.trace import bind, current, realize
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import reduction as R
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import axes_of, make

Order = Callable[[Expr, Expr], Expr]
SELECTED = 16  # so many are selected one by one
COUNTED = 256  # elements up to which comparing all pairs is cheaper than a network
# Nanoseconds of one Zen 3 core: of a pair of elements of an axis, rows of 8 to 256 float32 (0.3 of
# int32, 0.8 of float64); of 32 bits of an element for each of those that are selected.
PAIR, PICK = 0.55, 0.7
# By way of blocks an element is as many picks: it is copied, and blocks are short rows (Zen 4, 1000
# rows of 1000 and of 200, 16 and 8 of each: 0.50 and 0.67 ns beside picks of 0.27 and 0.31).
# Elements of a block from which that is less work (blocks of 7: 4.3 -> 2.6 ms, of 5 0.50 -> 0.86).
BESIDE, LEAST_BLOCK = 1.8, 7


def _before(descending: bool, nan_first: bool = False) -> Order:
    """Whether `u` must stand before `v`; NaN stands after everything else, or before it."""

    def before(u: Expr, v: Expr) -> Expr:
        earlier: Expr = Less(v, u) if descending else Less(u, v)
        if not u.dtype.is_float:
            return earlier
        first, last = (u, v) if nan_first else (v, u)
        return Or(earlier, And(E.is_nan(first), E.logical_not(E.is_nan(last))))

    return before


def order_of(x: Value, axis: int, descending: bool, *, nan_first: bool = False) -> Value:
    """The places of the elements along `axis` in sorted order; long axes are sorted at once.

    Raises: UnsupportedError for a symbolic axis.
    """
    axis = V.normal_axis(axis, len(x.shape))
    size = x.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError(f"sorting along the symbolic axis {size}", code="E315")
    keys: Value = W.astype(x, int8) if x.dtype.is_bool else x
    before = _before(descending, nan_first)
    if _counted_ns(x, size) > _places_ns(keys):
        hosted = by_host(_wide(keys), axis, descending, nan_first, places=True)
        if hosted is not None:
            return make("order", x.shape, read(hosted, *axes_of(x.shape)), stop=True)
    make_order = _by_counting if size <= COUNTED else _by_network
    return make_order(keys, axis, size, before)


def _counted_ns(x: Value, size: int) -> float:
    """Nanoseconds of comparing all pairs."""
    return elements(x.shape) * size * PAIR if size <= COUNTED else inf


def _places_ns(keys: Value) -> float:
    """Nanoseconds of the host's order."""
    return places_ns(elements(keys.shape), 8 * keys.dtype.itemsize)


def _wide(keys: Value) -> Value:
    """Halves as float32, of the same order: NumPy sorts those in lanes."""
    return W.astype(keys, float32) if is_short(keys.dtype) else keys


def sorted_along(x: Value, axis: int, descending: bool) -> Value:
    """The elements in order along `axis`. A call of the host gives them without their places, which
    derivatives alone ask for: an adjoint goes to where its element came from.
    """
    axis = V.normal_axis(axis, len(x.shape))
    size = x.shape[axis]
    hosted = None
    count = elements(x.shape)
    if isinstance(size, int) and not x.dtype.is_bool and values_ns(count) < _counted_ns(x, size):
        hosted = by_host(_wide(x), axis, descending, False, places=False)
    if hosted is None:
        return X.take_along(x, order_of(x, axis, descending), axis)
    result = make("sorted", x.shape, Cast(read(hosted, *axes_of(x.shape)), x.dtype))
    if x.dtype.is_float:
        _attach(x, result, axis, descending)
    return result


def _attach(x: Value, result: Definition, axis: int, descending: bool) -> None:
    """Give the derivative of a sort: along the order, which is made where it is asked for."""

    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        axes = list(axes_of(x.shape))
        body = read(heads[0], *axes)
        axes[axis] = read(order_of(x, axis, descending), *axes)
        home = Accumulate(SUM, x.shape, tuple(axes))
        return [Definition("unsorted", x.shape, body, home)]

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        return [X.take_along(tangents[0], order_of(x, axis, descending), axis)]

    def again(here: Callable[[Value], Value]) -> Rule | None:
        copy = here(result)
        if isinstance(copy, Definition):
            _attach(here(x), copy, axis, descending)
            return copy.rule
        return None

    result.rule = Rule("sort", (result,), (x,), pull, push, again)


def ranked_value(x: Value, ordered: Value, ranks: Value) -> Value:
    """``y[q.., i..] = ordered[i.., ranks[q.., i..]]``, of `x` sorted along its last axis.

    Its adjoint goes to one element: of those that are equal, as many are in front of it as of the
    equal ones in order. So `x` is not sorted again for where its elements came from.
    """
    wanted = len(ranks.shape) - (len(x.shape) - 1)
    axes = axes_of(ranks.shape)
    result = make("ranked", ranks.shape, read(ordered, *axes[wanted:], read(ranks, *axes)))
    if x.dtype.is_float:
        _attach_rank(x, result, ranks, wanted)
    return result


def _attach_rank(x: Value, result: Definition, ranks: Value, wanted: int) -> None:
    """Give the derivative of elements in order, of `wanted` axes of ranks."""
    shape = (*ranks.shape, x.shape[-1])

    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        axes = [*axes_of(x.shape)]
        over = [Axis(len(axes) + n, e) for n, e in enumerate(ranks.shape[:wanted])]
        home = read(_home(x, result, ranks, wanted), *over, *axes)
        head = read(heads[0], *over, *axes[:-1])
        part = If(home, head, E.const(0, head.dtype))
        return [
            W.reduce("unranked", x.shape, ranks.shape[:wanted], part)
            if over
            else make("unranked", x.shape, part)
        ]

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        axes = axes_of(ranks.shape)
        each = Axis(len(axes), shape[-1])
        tangent = read(tangents[0], *axes[wanted:], each)
        home = read(_home(x, result, ranks, wanted), *axes, each)
        return [
            W.reduce(
                "ranked", ranks.shape, shape[-1:], If(home, tangent, E.const(0, tangent.dtype))
            )
        ]

    def again(here: Callable[[Value], Value]) -> Rule | None:
        copy, given, places = here(result), here(x), here(ranks)
        more = len(given.shape) - len(x.shape)
        if isinstance(copy, Definition) and not more:
            _attach_rank(given, copy, places, wanted)
            return copy.rule
        return None

    result.rule = Rule("ranked", (result,), (x,), pull, push, again)


def _home(x: Value, result: Value, ranks: Value, wanted: int) -> Value:
    """``home[q.., i.., j]``: whether x[i.., j] is the element in order at ranks[q.., i..]."""
    shape = (*ranks.shape, x.shape[-1])
    axes = axes_of(shape)
    mine, value = read(x, *axes[wanted:]), read(result, *axes[:-1])
    same = make("same", shape, E.Equal(mine, value))
    below = W.reduce("below", ranks.shape, shape[-1:], Cast(Less(mine, value), int64))
    upto = R.cumulative("sum", W.astype(same, int64), -1, None)
    at = E.subtract(read(ranks, *axes[:-1]), read(below, *axes[:-1]))
    hit = And(read(same, *axes), E.Equal(read(upto, *axes), E.Add(at, E.index(1))))
    return make("home", shape, hit, stop=True)


def _by_counting(keys: Value, axis: int, size: int, before: Order) -> Definition:
    """``rank[i] = how many stand before i``, and the inverse of that."""
    shape = keys.shape
    axes = axes_of(shape)
    other = Axis(len(shape), size)
    there = list(axes)
    there[axis] = other
    mine, its = read(keys, *axes), read(keys, *there)
    tie = And(Less(other, axes[axis]), E.logical_not(before(mine, its)))
    earlier = Cast(Or(before(its, mine), tie), int64)
    rank = W.reduce("rank", shape, [size], earlier)
    hit = E.Equal(read(rank, *there), axes[axis])
    return W.reduce("order", shape, [size], If(hit, other, E.index(0)))


def _by_network(keys: Value, axis: int, size: int, before: Order) -> Value:
    """Batcher's bitonic network, its passes as a loop; beyond `size` stands what is last.

    Carried are the places, the elements in that order, the length of a run and a distance.
    Source: Batcher 1968, Sorting networks and their applications.
    """
    bits = (size - 1).bit_length()
    shape = (*keys.shape[:axis], 1 << bits, *keys.shape[axis + 1 :])
    axes = axes_of(shape)
    inside = list(axes)
    inside[axis] = E.minimum(axes[axis], E.index(size - 1))
    start = Tensor(make("order", shape, Cast(axes[axis], int32)))
    elements = Tensor(make("keys", shape, read(keys, *inside)))
    run, step = (Tensor(bind(np.array(n), name)) for n, name in ((2, "run"), (1, "step")))
    if current() is None:
        realize([start, elements])

    def sweep(number: Any, carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        order, values, run, step = carry
        place, there = _partner(axes, axis, read(step.value))
        first = _first(order.value, values.value, axes, there, size, before)
        upward = E.Equal(And(place, read(run.value)), E.index(0))
        lower = E.Equal(And(place, read(step.value)), E.index(0))
        stays = make("stays", shape, E.Xor(E.Xor(lower, upward), first))
        moved = [Tensor(_moved(stays, v.value, axes, there)) for v in (order, values)]
        near = Less(E.index(1), read(step.value))
        longer, nearer = (
            E.Mul(read(run.value), E.index(2)),
            E.FloorDiv(read(step.value), E.index(2)),
        )
        after = [
            Tensor(make("run", (), If(near, read(run.value), longer))),
            Tensor(make("step", (), If(near, nearer, read(run.value)))),
        ]
        if current() is None:
            realize([*moved, *after])
        return (*moved, *after)

    order = loop(bits * (bits + 1) // 2, sweep, (start, elements, run, step))[0]
    position = read(order.value, *axes_of(keys.shape))
    return make("order", keys.shape, Cast(position, int64), stop=True)


def _partner(axes: Sequence[Expr], axis: int, step: Expr) -> tuple[Expr, list[Expr]]:
    """A place, and the axes of the one that differs from it in the bit `step`."""
    place, there = axes[axis], list[Expr](axes)
    other = E.Xor(place, step)
    assert isinstance(place, Axis)
    last = E.index(E.upper(place.extent) - 1)
    there[axis] = E.maximum(E.minimum(other, last), E.index(0))
    return place, there


def _first(
    order: Value,
    values: Value,
    axes: Sequence[Expr],
    there: Sequence[Expr],
    size: int,
    before: Order,
) -> Expr:
    """Whether what is here stands before what is `there`: by value, then by place."""
    mine, its = read(order, *axes), read(order, *there)
    u, v = read(values, *axes), read(values, *there)
    end = E.const(size, int32)
    sooner = Less(mine, its)
    by_value = Or(before(u, v), And(sooner, E.logical_not(before(v, u))))
    return If(And(Less(mine, end), Less(its, end)), by_value, sooner)


def _moved(stays: Value, source: Value, axes: Sequence[Expr], there: Sequence[Expr]) -> Definition:
    body = If(read(stays, *axes), read(source, *axes), read(source, *there))
    return make("sorted", source.shape, body)


def first_of(x: Value, axis: int, k: int, largest: bool, *, nan_first: bool = False) -> Value:
    """The places of the first `k` in order: selected one by one, the host's, or those of an order
    of all, whichever takes least.
    """
    extent = x.shape[axis]
    if isinstance(extent, int) and 0 < k < extent:
        keys = W.astype(x, int8) if x.dtype.is_bool else x
        host, count = reachable(_wide(keys)), elements(x.shape)
        each = PICK * keys.dtype.itemsize / 4
        selected = count * k * each if k <= SELECTED else inf
        block = isqrt(extent // k)
        blocked = count // extent * _blocked(extent, k, block) * each if k <= SELECTED else inf
        ordered = min(_counted_ns(x, extent), _places_ns(keys) if host else inf)
        if host and firsts_ns(count, k / extent) < min(selected, blocked, ordered):
            places = by_host(_wide(keys), axis, largest, nan_first, places=True, count=k)
            assert places is not None, "the host is reachable"
            return make("order", places.shape, read(places, *axes_of(places.shape)), stop=True)
        if blocked < min(selected, ordered):
            return _in_blocks(keys, axis, block, k, largest, nan_first)
        if selected < ordered:
            return _selected(keys, axis, extent, k, largest, nan_first)
    return V.strided(order_of(x, axis, largest, nan_first=nan_first), axis, 0, 1, k)


def _blocked(size: int, k: int, block: int) -> float:
    """Picks that `k` of so many take by way of blocks."""
    if block < LEAST_BLOCK:
        return inf
    return BESIDE * (size + k * (size // block + k * block + size % block))


def _in_blocks(keys: Value, axis: int, block: int, k: int, largest: bool, nan_first: bool) -> Value:
    """The places of the first `k` in order: they stand in the `k` blocks whose own first ones come
    first, and behind the last whole block.

    ``1000 elements, the first 4: 63 blocks of 15 -> their first ones -> 4 blocks -> 60 + 55``
    """
    size = E.upper(keys.shape[axis])
    count, rest = size // block, size % block
    before, after = keys.shape[:axis], keys.shape[axis + 1 :]

    def at(axes: Sequence[Expr], place: Expr) -> Expr:
        return read(keys, *axes[:axis], place, *axes[len(axes) - len(after) :])

    def scaled(number: Expr) -> Expr:
        return E.Mul(number, E.index(block))

    shape = (*before, count, block, *after)
    here = axes_of(shape)
    blocks = make("blocks", shape, at(here, E.Add(scaled(here[axis]), here[axis + 1])))
    best = _selected(blocks, axis + 1, block, 1, largest, nan_first)
    shape = (*before, count, *after)
    here = axes_of(shape)
    first = E.Add(
        scaled(here[axis]),
        _clamped(best, (*here[: axis + 1], E.index(0), *here[axis + 1 :]), block),
    )
    heads = make("heads", shape, at(here, first), stop=True, keep=Keep.ALWAYS)
    chosen = sorted_along(_selected(heads, axis, count, k, largest, nan_first), axis, False)
    shape = (*before, k * block + rest, *after)
    here = axes_of(shape)

    def place(number: Expr, axes: Sequence[Expr]) -> Expr:
        """Of a candidate, where it comes from."""
        which = E.minimum(E.FloorDiv(number, E.index(block)), E.index(k - 1))
        there = _clamped(chosen, (*axes[:axis], which, *axes[axis + 1 :]), count)
        inside = E.Add(scaled(there), E.Mod(number, E.index(block)))
        behind = E.Add(number, E.index((count - k) * block))
        return If(Less(number, E.index(k * block)), inside, behind) if rest else inside

    candidate = at(here, place(here[axis], here))
    candidates = make("candidates", shape, candidate, stop=True, keep=Keep.ALWAYS)
    won = _selected(candidates, axis, k * block + rest, k, largest, nan_first)
    here = axes_of(won.shape)
    number = _clamped(won, here, k * block + rest)
    return make("place", won.shape, place(number, here), stop=True)


def _clamped(places: Value, at: Sequence[Expr], size: int) -> Expr:
    """A place that is known to lie inside: nothing checks it."""
    return E.maximum(E.minimum(read(places, *at), E.index(size - 1)), E.index(0))


def _selected(keys: Value, axis: int, size: int, k: int, largest: bool, nan_first: bool) -> Value:
    """The places of the first `k` in order, each the best of what comes after the one before."""
    shape = keys.shape
    rest = (*shape[:axis], 1, *shape[axis + 1 :])
    here = list[Expr](axes_of(rest))
    other = Axis(len(shape), size)
    # Places of half the width: as many in a vector as there are keys of 32 bits.
    kind = int32 if 2 * size <= int32.range()[1] else int64
    number, none, end = Cast(other, kind), E.const(-1, kind), E.const(size, kind)
    x = read(keys, *here[:axis], other, *here[axis + 1 :])
    combiner = MAX if largest else MIN
    nothing = combiner.identity(keys.dtype)
    gone: Expr = E.is_nan(x) if keys.dtype.is_float else E.const(False, bool_)
    real: Expr = E.logical_not(gone)
    floor: Expr = none  # the place behind which the next one is
    value: Expr | None = None  # of the one before
    places: list[Definition] = []
    for _ in range(k):
        best = read(W.reduce("best", rest, [size], If(real, x, nothing), combiner), *here)
        if value is not None:
            over = nan_first or not keys.dtype.is_float
            other_floor = none if over else If(E.is_nan(value), end, none)
            floor = If(E.Equal(best, value), floor, other_floor)
        won = And(E.Equal(x, best), Less(floor, number))
        # NaN is last: its places count only where there is no other; or first.
        first, second = (gone, won) if nan_first else (won, gone)
        later_one = If(second, E.Add(number, end), E.const(2 * size, kind))
        place = W.reduce("place", rest, [size], If(first, number, later_one), MIN)
        at = E.Mod(Cast(read(place, *here), int64), E.index(size))
        places.append(make("place", rest, at, stop=True))
        last = read(places[-1], *here)
        inside = E.maximum(E.minimum(last, E.index(size - 1)), E.index(0))
        own = make("value", rest, read(keys, *here[:axis], inside, *here[axis + 1 :]))
        value, floor = read(own, *here), Cast(last, kind)
        real, gone = _after(x, value, Less(floor, number), largest, nan_first)
    return V.concat(places, axis)


def _after(x: Expr, value: Expr, behind: Expr, largest: bool, nan_first: bool) -> tuple[Expr, Expr]:
    """Whether a number `x`, and whether a NaN, stands after `value`; `behind`: at a later place."""
    ahead = Less(x, value) if largest else Less(value, x)
    real: Expr = Or(ahead, And(E.Equal(x, value), behind))
    if not x.dtype.is_float:
        return real, E.const(False, bool_)
    over = E.is_nan(value)
    if nan_first:
        return Or(real, And(over, E.Equal(x, x))), And(E.is_nan(x), And(over, behind))
    return real, And(E.is_nan(x), Or(E.logical_not(over), behind))


@spelled
def argsort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The places of the elements in sorted order; stable, NaN last.

    Example:
        >>> pb.argsort(pb.tensor([3.0, 1.0, 2.0]))
        Tensor([1, 2, 0], dtype=int64)
    """
    return Tensor(order_of(value_of(x), axis, descending))


@spelled
def sort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in sorted order, NaN last.

    Example:
        >>> pb.sort(pb.tensor([3.0, 1.0, 2.0]))
        Tensor([1., 2., 3.], dtype=float32)
    """
    return Tensor(sorted_along(value_of(x), axis, descending))


@spelled
def topk(x: Any, k: int, *, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (smallest) elements in order, and their places.

    Example:
        >>> pb.topk(pb.tensor([3.0, 1.0, 2.0]), 2)
        (Tensor([3., 2.], dtype=float32), Tensor([0, 2], dtype=int64))
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    extent = value.shape[n]
    k = V.whole(k, "topk: k", 0)
    if isinstance(extent, int) and k > extent:
        raise V.fail(f"the {k} largest of {extent} elements", code="E123")
    places = first_of(value, n, k, largest)
    return Tensor(X.take_along(value, places, n)), Tensor(places)
