"""Control forms: `loop`, `cond`, `while_loop`, `scan`, and `checkpoint`.

Inside `jit` a body is traced once and becomes a block of the program, and so does its backward;
outside of it the same call runs step by step in Python. What the backward of a loop keeps of a
step is the user's choice (`checkpoint=`):

    "tape"       the carries and what is dear to compute; cheap maps are computed again
    "recompute"  the carries; the body is run again
    "sqrt"       the carries of every sqrt(n)-th step; all steps between are run again
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, DTypeError, Origin, ShapeError, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis
from pullback.ir.graph import Definition, Value, read
from pullback.tensor.face.tensor import Tensor, from_array
from pullback.tensor.face.tree import Tree, flatten
from pullback.tensor.forms.branches import BranchForm
from pullback.tensor.forms.loops import LoopForm
from pullback.tensor.forms.steps import FOREVER, Made, Steps
from pullback.tensor.record.trace import Handle, Trace, array_of, bind, current, realize, wrap
from pullback.tensor.shaped.given import condition, functions, most_of, pair_of, steps_of
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V

Chunked = Callable[[Definition, Any, Any], tuple[Any, Any]]
MODES = ("tape", "recompute", "sqrt")


def loop(
    steps: range | int, body: Callable[..., Any], carry: Any = None, *, checkpoint: str = "tape"
) -> Any:
    """Run ``body()``, ``body(i)`` or, with a carry, ``carry = body(i, carry)`` for every step.

    A feeder's StopIteration ends it. Returns the last carry.

    Example:
        >>> pb.loop(3, lambda i, x: x * 2, pb.tensor(1.0))
        Tensor(8., dtype=float32)
    """
    functions(body=body)
    steps = steps_of(steps)
    wanted = _positional(body, carry is not None)
    if carry is not None and wanted < 2:
        what = f"pb.loop: a carry, and a body of {wanted} arguments, which would not change it"
        raise ArgumentError(what, help="body(i, carry), which gives the next carry", code="E405")
    trace = _tracing(checkpoint)
    if trace is None:
        return _loop_in_python(steps, body, wanted, carry)
    start = flatten(carry, from_array)
    if checkpoint == "sqrt" and wanted > 1 and len(steps) > 3:

        def at(number: Definition, carry: Any, _: Any) -> tuple[Any, Any]:
            return body(_step(number, steps), carry), None

        return _in_chunks(trace, "pb.loop", at, start, flatten(None), len(steps))[0]

    def made(form: LoopForm) -> Made:
        result = carry
        if wanted > 1:
            result = body(_step(form.number, steps), start.rebuild(_tensors(form.begins)))
        elif wanted == 1:
            body(_step(form.number, steps))
        else:
            body()
        return Made(_ends(form, start, result) if wanted > 1 else [*form.begins])

    form = LoopForm(
        trace, Steps("pb.loop", len(steps), store=checkpoint == "tape"), _values(start), made
    )
    return start.rebuild(_tensors(form.results))


def _tracing(checkpoint: str) -> Trace | None:
    """The trace that is going on. Raises: UnsupportedError for a mode that does not exist."""
    if checkpoint not in MODES:
        raise UnsupportedError(
            f"checkpoint={checkpoint!r}", help=f"one of {', '.join(MODES)}", code="E312"
        )
    return current()


def _values(tree: Tree) -> list[Value]:
    return [h.value for h in tree.handles]


def _tensors(values: Sequence[Value]) -> list[Tensor]:
    return [Tensor(v) for v in values]


def _step(number: Definition, steps: range) -> Tensor:
    """The element of `steps` with this number."""
    if (steps.start, steps.step) == (0, 1):
        return Tensor(number)
    place = E.Add(E.Mul(read(number), E.index(steps.step)), E.index(steps.start))
    return Tensor(W.make("step", (), place))


def _in_chunks(
    trace: Trace, kind: str, body: Chunked, start: Tree, wholes: Tree, count: int
) -> tuple[Any, Any]:
    """Scans in a scan: a backward keeps the carries of the outer one and of one inner one.

    ``carry, y = body(number, carry, x)``. A feeder that ends an inner one ends them all.
    """
    side = isqrt(count)
    chunks = -(-count // side)

    def outer(form: LoopForm, carry: Any, xs: Any) -> tuple[Any, Any, Value | None]:
        def inner(part: LoopForm, carry: Any, x: Any) -> tuple[Any, Any, Value | None]:
            first = E.Mul(read(form.number), E.index(side))
            number = W.make("step", (), E.Add(first, read(part.number)))
            next_carry, y = body(number, carry, x)
            later = E.Add(read(number), E.index(1))
            more = W.make("more", (), E.Less(later, E.index(count)))
            return next_carry, y, None if count == chunks * side else more

        own = flatten(carry)
        part, ys = _scanned(trace, kind, inner, own, flatten(xs), side, store=False)
        last, rows = _parted(part)
        return own.rebuild(last), ys.rebuild(rows), _filled(part, side)

    boxes = wholes.rebuild([_boxed(h.value, chunks, side) for h in wholes.handles])
    form, ys = _scanned(trace, kind, outer, start, flatten(boxes), chunks, store=False)
    last, rows = _parted(form)
    return start.rebuild(last), ys.rebuild([_unboxed(r.value, side, count) for r in rows])


def _scanned(
    trace: Trace,
    kind: str,
    step: Callable[[LoopForm, Any, Any], tuple[Any, Any, Value | None]],
    start: Tree,
    wholes: Tree,
    count: int,
    *,
    store: bool,
) -> tuple[LoopForm, Tree]:
    """The loop ``carry, y, more = step(loop, carry, x)``, and the tree that `y` is."""
    trees: list[Tree] = []

    def made(form: LoopForm) -> Made:
        values = _values(wholes)
        here = [wrap(form.at(v, None)) for v in values]
        given = start.rebuild(_tensors(form.begins)), wholes.rebuild(_tensors(here))
        carry, y, again = step(form, *given)
        trees.append(flatten(y))
        rows = list(zip(values, here, strict=True))
        return Made(_ends(form, start, carry), _values(trees[0]), rows, again)

    form = LoopForm(trace, Steps(kind, count, store=store), _values(start), made)
    return form, trees[0]


def _parted(form: LoopForm) -> tuple[list[Tensor], list[Tensor]]:
    """The last carries, and the rows."""
    results = _tensors(form.results)
    return results[: len(form.ends)], results[len(form.ends) :]


def _filled(part: LoopForm, side: int) -> Value | None:
    """Whether no feeder has ended `part`; None where none can."""
    trips = part.trips() if part.frame.feeds else None
    return None if trips is None else W.make("more", (), E.Equal(read(trips), E.index(side)))


def _boxed(whole: Value, chunks: int, side: int) -> Tensor:
    """Rows as a box, zeros behind the last: ``out[c, k, ..] = whole[c * side + k, ..]``"""
    extents = (chunks, side, *whole.shape[1:])
    axes = W.axes_of(extents)
    place = E.Add(E.Mul(axes[0], E.index(side)), axes[1])
    row = read(whole, place, *axes[2:])
    if whole.shape[0] != chunks * side:
        inside = E.Less(place, E.index(E.upper(whole.shape[0])))
        return Tensor(W.make("rows", extents, E.If(inside, row, E.const(0, whole.dtype))))
    return Tensor(W.make("rows", extents, row))


def _unboxed(box: Value, side: int, count: int) -> Tensor:
    """``out[n, ..] = box[n // side, n % side, ..]``"""
    extents = (count, *box.shape[2:])
    axes = W.axes_of(extents)
    place = E.FloorDiv(axes[0], E.index(side)), E.Mod(axes[0], E.index(side))
    return Tensor(V.view("rows", box, extents, [*place, *axes[1:]]))


def _loop_in_python(steps: range, body: Callable[..., Any], wanted: int, carry: Any) -> Any:
    for number in steps:
        index = Tensor(bind(np.asarray(number, np.int64), "step"))
        try:
            if wanted > 1:
                carry = body(index, carry)
            elif wanted == 1:
                body(index)
            else:
                body()
        except StopIteration:
            break
    return carry


def _positional(body: Callable[..., Any], carried: bool) -> int:
    """How many positional arguments without default `body` takes; as ``*args``, a carry too."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(body).parameters.values()
    except ValueError:  # of a function in C that does not tell
        return 2
    if carried and any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return 2
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def _ends(form: LoopForm, start: Tree, result: Any) -> list[Value]:
    """The carry at the end of the body. Raises: ShapeError, DTypeError where it does not fit."""
    end = flatten(result)
    origin = Origin.of_caller()
    if end.key != start.key:
        raise ShapeError(
            "the carry must keep its structure",
            origin=origin,
            help="a Python number in it is part of the structure: start from a tensor",
            code="E132",
        )
    values = _values(end)
    for begin, value in zip(form.begins, values, strict=True):
        _same(begin, value, "the carry", origin)
    return values


def _same(wanted: Value, value: Value, what: str, origin: Origin) -> None:
    if value.shape != wanted.shape:
        raise ShapeError(
            f"{what} must keep its shape: {wanted.shape} became {value.shape}",
            origin=origin,
            code="E133",
        )
    if value.dtype != wanted.dtype:
        raise DTypeError(
            f"{what} must keep its type: {wanted.dtype} became {value.dtype}",
            origin=origin,
            help=f"cast it to {wanted.dtype}",
            code="E142",
        )


def cond(
    predicate: Handle | bool,
    then: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Any,
) -> Any:
    """``then(*operands) if predicate else otherwise(*operands)``; only one of them runs.

    Example:
        >>> x = pb.tensor(3.0)
        >>> pb.cond(x > 0, lambda x: x * 2, lambda x: -x, x)
        Tensor(6., dtype=float32)
    """
    functions(then=then, otherwise=otherwise)
    trace = current()
    if isinstance(predicate, bool | np.bool_):
        return (then if predicate else otherwise)(*operands)
    predicate = condition(predicate)
    if trace is None:
        realize([predicate])
        return (then if bool(array_of(predicate)) else otherwise)(*operands)
    origin = Origin.of_caller()
    trees: list[Tree] = []

    def side(function: Callable[..., Any]) -> list[Value | None]:
        tree = flatten(function(*operands))
        trees.append(tree)
        if tree.key != trees[0].key:
            raise ShapeError(
                "both branches must return the same structure", origin=origin, code="E132"
            )
        for first, handle in zip(trees[0].handles, tree.handles, strict=True):
            _same(first.value, handle.value, "the result of the other branch", origin)
        return [*_values(tree)]

    sides = [functools.partial(side, then), functools.partial(side, otherwise)]
    form = BranchForm(trace, "pb.cond", predicate.value, sides, store=True)
    return trees[0].rebuild(_tensors(form.results))


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its intermediates computed again in the backward and not kept until then.

    Outside `jit` nothing is kept that nobody holds, so there it is `function` itself.

    Example:
        >>> f = pb.checkpoint(lambda x: pb.sum(pb.exp(x)))
        >>> pb.grad(f)(pb.zeros(2))
        Tensor([1., 1.], dtype=float32)
    """
    functions(function=function)

    @functools.wraps(function)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        trace = current()
        if trace is None:
            return function(*args, **kwargs)
        trees: list[Tree] = []

        def side() -> list[Value | None]:
            trees.append(flatten(function(*args, **kwargs)))
            return [*_values(trees[0])]

        form = BranchForm(trace, "pb.checkpoint", None, [side], store=False)
        return trees[0].rebuild(_tensors(form.results))

    return recomputed


def while_loop(
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    *,
    max_steps: int | None = None,
    checkpoint: str = "tape",
) -> Any:
    """``while test(carry): carry = body(carry)``, at most `max_steps` times. The last carry.

    Inside `jit` without `max_steps` there is no room for all steps: the backward counts them and
    runs them again as loops in loops, each of which keeps its carries (`loops.SIDE`, `LEVELS`).
    More steps than those hold raise IndexRangeError, in the backward alone.

    Example:
        >>> pb.while_loop(lambda x: x < 100, lambda x: x * 2, pb.tensor(3.0))
        Tensor(192., dtype=float32)
    """
    functions(test=test, body=body)
    max_steps, trace = most_of(max_steps), _tracing(checkpoint)
    if trace is None:
        return _while_in_python(test, body, init, max_steps)
    if checkpoint == "sqrt" and max_steps is not None and max_steps > 3:
        return _while_in_chunks(trace, test, body, init, max_steps)
    store = checkpoint == "tape" and max_steps is not None
    return _while(trace, test, body, init, max_steps, store=store)[1]


def _while(
    trace: Trace,
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_steps: int | None,
    *,
    store: bool,
    also: Callable[[], Value | None] = lambda: None,
) -> tuple[LoopForm, Any]:
    """The loop, and its last carry. It goes on while what `also` gives after a step holds, too."""
    start = flatten(init, from_array)
    first = condition(test(init))

    def made(form: LoopForm) -> Made:
        result = body(start.rebuild(_tensors(form.begins)))
        again = condition(test(result))
        more = also()
        holds = again if more is None else again & Tensor(more)
        return Made(_ends(form, start, result), again=holds.value)

    count = FOREVER if max_steps is None else max_steps
    steps = Steps("pb.while_loop", count, store=store)
    form = LoopForm(trace, steps, _values(start), made, first.value)
    return form, start.rebuild(_tensors(form.results))


def _while_in_python(
    test: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any, max_steps: int | None
) -> Any:
    count = 0
    while (max_steps is None or count < max_steps) and _holds(test(carry)):
        carry = body(carry)
        count += 1
    return carry


def _while_in_chunks(
    trace: Trace,
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_steps: int,
) -> Any:
    """Loops in a loop, all of them while `test` holds; the steps are counted."""
    side = isqrt(max_steps)
    chunks = -(-max_steps // side)

    def goes_on(state: Any) -> Any:
        return condition(test(state[0])) & (state[1] < max_steps)

    def step(state: Any) -> Any:
        return body(state[0]), state[1] + 1

    parts: list[LoopForm] = []

    def chunk(state: Any) -> Any:
        part, after = _while(trace, goes_on, step, state, side, store=False)
        parts.append(part)
        return after

    def filled() -> Value | None:
        return _filled(parts[0], side)

    zero = Tensor(W.full((), 0, D.int64))
    state = (init, zero)
    return _while(trace, goes_on, chunk, state, chunks, store=False, also=filled)[1][0]


def _holds(goes_on: Any) -> bool:
    if isinstance(goes_on, bool | np.bool_):
        return bool(goes_on)
    holds = condition(goes_on)
    realize([holds])
    return bool(array_of(holds))


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: int | None = None,
    *,
    checkpoint: str = "tape",
) -> tuple[Any, Any]:
    """``for x in xs: carry, y = body(carry, x)``. Returns the last carry and the stacked `y`.

    Example:
        >>> pb.scan(lambda s, x: (s + x, s + x), pb.tensor(0.0), pb.tensor([1.0, 2.0, 3.0]))
        (Tensor(6., dtype=float32), Tensor([1., 3., 6.], dtype=float32))
    """
    functions(body=body)
    wholes = flatten(xs, from_array)
    count = _length(wholes, length)
    trace = _tracing(checkpoint)
    if trace is None:
        return _scan_in_python(body, init, wholes, count)
    start = flatten(init, from_array)

    def at(_: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        return pair_of(body(carry, x))

    def step(_: LoopForm, carry: Any, x: Any) -> tuple[Any, Any, None]:
        return *pair_of(body(carry, x)), None

    if checkpoint == "sqrt" and count > 3:
        return _in_chunks(trace, "pb.scan", at, start, wholes, count)
    store = checkpoint == "tape"
    form, ys = _scanned(trace, "pb.scan", step, start, wholes, count, store=store)
    last, rows = _parted(form)
    return start.rebuild(last), ys.rebuild(rows)


def _length(steps: Tree, length: int | None) -> int:
    """How many steps a scan has. Raises: ShapeError where that is not one literal number."""
    counts = {h.shape[0] for h in steps.handles if h.shape}
    if length is not None:
        counts.add(V.whole(length, "length", 0))
    if len(counts) != 1 or not isinstance(count := counts.pop(), int):
        raise ShapeError("pb.scan needs one literal length", code="E120")
    return count


def _scan_in_python(
    body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, steps: Tree, count: int
) -> tuple[Any, Any]:
    rows: list[Any] = []
    row = _rows_of_none(body, carry, steps) if count == 0 else None
    for place in range(count):
        number = Tensor(bind(np.asarray(place, np.int64), "step"))
        here = steps.rebuild([_row(h, number) for h in steps.handles])
        carry, y = pair_of(body(carry, here))
        row = flatten(y)
        if not rows:
            rows = [_zeros((count, *h.shape), h.dtype) for h in row.handles]
        rows = [_put(r, number, h) for r, h in zip(rows, row.handles, strict=True)]
    return carry, None if row is None else row.rebuild(rows or row.handles)


def _rows_of_none(body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, steps: Tree) -> Tree:
    """What the rows of no step look like: `body` is asked once, with zeros."""
    here = steps.rebuild([_zeros(h.shape[1:], h.dtype) for h in steps.handles])
    tree = flatten(pair_of(body(carry, here))[1])
    return flatten(tree.rebuild([_zeros((0, *h.shape), h.dtype) for h in tree.handles]))


def _zeros(shape: Sequence[E.Extent], kind: D.DType) -> Tensor:
    return Tensor(wrap(Definition("rows", tuple(shape), E.const(0, kind))))


def _row(handle: Handle, number: Handle) -> Tensor:
    """``handle[number]``"""
    value = handle.value
    shape = value.shape[1:]
    axes = [Axis(n, e) for n, e in enumerate(shape)]
    body = read(value, read(number.value), *axes)
    return Tensor(wrap(Definition("row", shape, body)))


def _put(rows: Handle, number: Handle, row: Handle) -> Tensor:
    """`rows` with ``rows[number] = row``."""
    old, new = rows.value, row.value
    axes = [Axis(n, e) for n, e in enumerate(old.shape)]
    here = E.Equal(axes[0], read(number.value))
    body = E.If(here, read(new, *axes[1:]), read(old, *axes))
    return Tensor(wrap(Definition("rows", old.shape, body)))
