"""Leaves: tensors that `backward` leaves gradients on, and those gradients while tracing.

Outside `jit` a gradient is a lazy tensor on its leaf. Inside, a gradient set in the same block
(``zero_grad`` first) lives in the trace; one that accumulates over blocks or calls is a state.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pullback.errors import GradientError, UnsupportedError
from pullback.grad.reverse import gradients
from pullback.ir.graph import Definition, Value
from pullback.tensor.record.trace import Handle, Trace, current

if TYPE_CHECKING:
    from pullback.tensor.face.tensor import State, Tensor


@dataclass(eq=False, slots=True)
class Local:
    """A leaf's gradient inside one block of a trace."""

    leaf: Handle
    frame: Any
    grad: Tensor | None


class _Leaves:
    """Which value belongs to which leaf, and the gradients of traces."""

    def __init__(self) -> None:
        self.by_value: MutableMapping[Value, weakref.ref[Tensor]] = weakref.WeakKeyDictionary()
        self.local: MutableMapping[Trace, dict[int, Local]] = weakref.WeakKeyDictionary()


_leaves = _Leaves()


def register(value: Value, leaf: Tensor) -> None:
    """Remember that a read of `leaf` gave `value`."""
    _leaves.by_value[value] = weakref.ref(leaf)


@contextmanager
def standing(leaf: State, value: Value) -> Iterator[None]:
    """In here reads of `leaf` give `value`, which stands on it; `backward` looks below that."""
    trace, asks, before = current(), leaf._requires_grad, leaf._node
    if trace is None:
        leaf._node = value
    else:
        kept = trace.local.get(id(leaf))
        trace.local[id(leaf)] = value
    leaf._requires_grad = False
    try:
        yield
    finally:
        leaf._requires_grad = asks
        if trace is None:
            leaf._node = before
        elif kept is not None:
            trace.local[id(leaf)] = kept
        else:
            trace.local.pop(id(leaf), None)


def _entry(leaf: Handle) -> Local | None:
    trace = current()
    return None if trace is None else _leaves.local.get(trace, {}).get(id(leaf))


def local_grad(leaf: Handle) -> Local | None:
    """The gradient of `leaf` in the block that is being traced, if it was set there."""
    trace = current()
    local = _entry(leaf)
    if trace is None or local is None or local.frame is not trace.recording.frame:
        return None
    return local


def check_frame(leaf: Handle) -> None:
    """Raises: UnsupportedError where a gradient was zeroed in an enclosing block."""
    if _entry(leaf) is not None:
        raise UnsupportedError(
            "a gradient that is zeroed outside a loop and accumulated inside it",
            help="call zero_grad inside the loop's body, or before the jitted function",
        )


def set_grad(leaf: Tensor, grad: Tensor | None) -> None:
    """``leaf.grad = grad``; inside `jit` for the rest of the block."""
    trace = current()
    if trace is None:
        leaf._grad = grad
        return
    entries = _leaves.local.setdefault(trace, {})
    entries[id(leaf)] = Local(leaf, trace.recording.frame, grad)


def adjoints(output: Value, head: Value | None) -> list[tuple[Tensor, Value]]:
    """The gradient of `output` by every leaf it was computed from.

    Raises: GradientError for a non-scalar without `head`, and where there is no leaf, as below what
    a program gave that was called by itself.
    """
    leaves: dict[Value, Tensor] = {}
    stack = [output]
    seen = {output}
    while stack:
        value = stack.pop()
        ref = _leaves.by_value.get(value)
        leaf = None if ref is None else ref()
        if leaf is not None and leaf._requires_grad:
            leaves[value] = leaf
            continue
        if not isinstance(value, Definition) or value.stop:
            continue
        for source in value.sources if value.rule is None else value.rule.deps:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    if not leaves:
        what = "backward comes to no tensor that asks for a gradient"
        help = "requires_grad; and call a compiled function and `backward` under one `pb.jit`"
        raise GradientError(what, help=help, code="E226")
    wanted = list(leaves)
    results = gradients(output, wanted, head)
    return list(zip(leaves.values(), results, strict=True))
