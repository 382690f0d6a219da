"""Control forms: `loop`, `cond`, `while_loop`, `scan`.

Inside `jit` a body is traced once and becomes a block of the program; outside of it the same call
runs step by step in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pullback.errors import DTypeError, Origin, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis
from pullback.ir.graph import Definition, Value, Variable, read
from pullback.ir.program import Block, Loop
from pullback.tensor.recording import BranchDraft, Frame, LoopDraft, Segment
from pullback.tensor.tensor import Tensor
from pullback.tensor.trace import Handle, Trace, array_of, bind, current, realize, wrap
from pullback.tensor.tree import Tree, flatten

FOREVER = 1 << 62  # the count of a loop that only its condition ends


def loop(steps: range | int, body: Callable[..., Any], carry: Any = None) -> Any:
    """Run ``body()``, ``body(i)`` or, with a carry, ``carry = body(i, carry)`` for every step.

    A feeder's StopIteration ends it. Returns the last carry.
    """
    steps = range(steps) if isinstance(steps, int) else steps
    wanted = _positional(body)
    trace = current()
    if trace is None:
        return _loop_in_python(steps, body, wanted, carry)
    start = flatten(carry)
    counter = trace.fresh("step", (), D.int64) if wanted > 0 else None
    carries = _carry_in(trace, start)
    frame = trace.recording.enter()
    given: list[Any] = [] if counter is None else [Tensor(counter)]
    if wanted > 1:
        given.append(start.rebuild([Tensor(v) for v in carries]))
    result = body(*given)
    if wanted > 1:
        _carry_out(trace, carries, start, result)
    trace.flush()
    trace.recording.leave()
    make = partial(_make_loop, len(steps), counter, None, steps.start, steps.step)
    trace.recording.add(LoopDraft(frame, make))
    return start.rebuild([_result(trace, v, "pb.loop") for v in carries])


def _make_loop(
    count: int,
    counter: Variable | None,
    condition: Variable | None,
    start: int,
    step: int,
    body: Block,
) -> Loop:
    return Loop(body, count, counter, condition, start, step)


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


def _positional(body: Callable[..., Any]) -> int:
    """How many positional arguments without default `body` takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(body).parameters.values()
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)


def _carry_in(trace: Trace, start: Tree) -> list[Variable]:
    """Fresh variables that hold the values of `start` when the next block begins."""
    carries: list[Variable] = []
    for number, handle in enumerate(start.handles):
        value = handle.value
        fresh = trace.fresh(f"carry{number}", value.shape, value.dtype, value.origin)
        trace.recording.segment.assigns[fresh] = value
        carries.append(fresh)
    trace.flush()
    return carries


def _carry_out(trace: Trace, carries: list[Variable], start: Tree, result: Any) -> None:
    """The carries take the values of `result` at the end of the block.

    Raises: ShapeError, DTypeError where they do not fit.
    """
    end = flatten(result)
    origin = Origin.of_caller()
    if end.key != start.key:
        raise ShapeError("the carry must keep its structure", origin=origin)
    for variable, handle in zip(carries, end.handles, strict=True):
        value = handle.value
        _same(variable, value, "the carry", origin)
        trace.recording.segment.assigns[variable] = value


def _same(wanted: Value, value: Value, what: str, origin: Origin) -> None:
    if value.shape != wanted.shape:
        raise ShapeError(
            f"{what} must keep its shape: {wanted.shape} became {value.shape}", origin=origin
        )
    if value.dtype != wanted.dtype:
        raise DTypeError(
            f"{what} must keep its type: {wanted.dtype} became {value.dtype}",
            origin=origin,
            help=f"cast it to {wanted.dtype}",
        )


def _result(trace: Trace, variable: Variable, name: str) -> Tensor:
    """What a control form leaves in `variable`; no gradient passes through it yet."""
    axes = tuple(Axis(n, e) for n, e in enumerate(variable.shape))
    seen = Definition(variable.name, variable.shape, read(variable, *axes))
    trace.opaque[wrap(seen)] = name
    return Tensor(seen)


def cond(
    predicate: Handle | bool,
    then: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Any,
) -> Any:
    """``then(*operands) if predicate else otherwise(*operands)``; only one of them runs."""
    trace = current()
    if isinstance(predicate, bool):
        return (then if predicate else otherwise)(*operands)
    _boolean(predicate)
    if trace is None:
        realize([predicate])
        return (then if bool(array_of(predicate)) else otherwise)(*operands)
    origin = Origin.of_caller()
    test = trace.fresh("predicate", (), D.bool_)
    trace.recording.segment.assigns[test] = predicate.value
    trace.flush()
    frames: list[Frame] = []
    trees: list[Tree] = []
    results: list[Variable] = []
    for side in (then, otherwise):
        frames.append(trace.recording.enter())
        tree = flatten(side(*operands))
        if not trees:
            results = [
                trace.fresh(f"branch{n}", h.value.shape, h.value.dtype)
                for n, h in enumerate(tree.handles)
            ]
        elif tree.key != trees[0].key:
            raise ShapeError("both branches must return the same structure", origin=origin)
        for variable, handle in zip(results, tree.handles, strict=True):
            _same(variable, handle.value, "the result of the other branch", origin)
            trace.recording.segment.assigns[variable] = handle.value
        trees.append(tree)
        trace.flush()
        trace.recording.leave()
    trace.recording.add(BranchDraft(test, frames[0], frames[1]))
    return trees[0].rebuild([_result(trace, v, "pb.cond") for v in results])


def _boolean(predicate: Handle) -> None:
    if predicate.dtype != D.bool_ or predicate.shape != ():
        raise DTypeError(
            f"a condition is one bool, not {predicate.dtype} of shape {predicate.shape}",
            origin=Origin.of_caller(),
        )


def while_loop(test: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """``while test(carry): carry = body(carry)``. Returns the last carry."""
    trace = current()
    if trace is None:
        carry = init
        while _holds(test(carry)):
            carry = body(carry)
        return carry
    start = flatten(init)
    condition = trace.fresh("condition", (), D.bool_)
    first = test(init)
    _boolean(first)
    trace.recording.segment.assigns[condition] = first.value
    carries = _carry_in(trace, start)
    frame = trace.recording.enter()
    result = body(start.rebuild([Tensor(v) for v in carries]))
    again = test(result)
    _boolean(again)
    _carry_out(trace, carries, start, result)
    trace.recording.segment.assigns[condition] = again.value
    trace.flush()
    trace.recording.leave()
    make = partial(_make_loop, FOREVER, None, condition, 0, 1)
    trace.recording.add(LoopDraft(frame, make))
    return start.rebuild([_result(trace, v, "pb.while_loop") for v in carries])


def _holds(found: Any) -> bool:
    if not isinstance(found, Handle):
        return bool(found)
    _boolean(found)
    realize([found])
    return bool(array_of(found))


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, length: int | None = None
) -> tuple[Any, Any]:
    """``for x in xs: carry, y = body(carry, x)``. Returns the last carry and the stacked `y`."""
    steps = flatten(xs)
    count = _length(steps, length)
    trace = current()
    if trace is None:
        return _scan_in_python(body, init, steps, count)
    start = flatten(init)
    counter = trace.fresh("step", (), D.int64)
    before = trace.recording.segment
    carries = _carry_in(trace, start)
    frame = trace.recording.enter()
    number = Tensor(counter)
    here = steps.rebuild([_row(h, number) for h in steps.handles])
    carry, y = body(start.rebuild([Tensor(v) for v in carries]), here)
    _carry_out(trace, carries, start, carry)
    found = flatten(y)
    rows = [_gather(trace, before, count, number, h) for h in found.handles]
    trace.flush()
    trace.recording.leave()
    trace.recording.add(LoopDraft(frame, partial(_make_loop, count, counter, None, 0, 1)))
    last = start.rebuild([_result(trace, v, "pb.scan") for v in carries])
    return last, found.rebuild([_result(trace, v, "pb.scan") for v in rows])


def _length(steps: Tree, length: int | None) -> int:
    """How many steps a scan has. Raises: ShapeError where that is not one literal number."""
    counts = {h.shape[0] for h in steps.handles if h.shape}
    if length is not None:
        counts.add(length)
    if len(counts) != 1 or not isinstance(count := counts.pop(), int):
        raise ShapeError("pb.scan needs one literal length", origin=Origin.of_caller())
    return count


def _scan_in_python(
    body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, steps: Tree, count: int
) -> tuple[Any, Any]:
    rows: list[Any] = []
    found: Tree | None = None
    for place in range(count):
        number = Tensor(bind(np.asarray(place, np.int64), "step"))
        here = steps.rebuild([_row(h, number) for h in steps.handles])
        carry, y = body(carry, here)
        found = flatten(y)
        if not rows:
            rows = [_zeros((count, *h.shape), h.dtype) for h in found.handles]
        rows = [_put(r, number, h) for r, h in zip(rows, found.handles, strict=True)]
    return carry, None if found is None else found.rebuild(rows)


def _gather(trace: Trace, before: Segment, count: int, number: Handle, row: Handle) -> Variable:
    """A variable whose row `number` this step writes; zeros before the loop."""
    shape = (count, *row.value.shape)
    rows = trace.fresh("rows", shape, row.value.dtype)
    zeros = Definition("rows", shape, E.const(0, rows.dtype))
    before.assigns[rows] = zeros
    trace.recording.home[zeros] = before
    trace.recording.segment.assigns[rows] = _put(Tensor(rows), number, row).value
    return rows


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
