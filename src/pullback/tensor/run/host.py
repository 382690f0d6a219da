"""Feeders and receivers: how a program and the host exchange arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pullback.backends.host.exchange import call_feeder, call_receiver
from pullback.errors import Origin, ShapeError
from pullback.ir import dtype as D
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, Receive
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.recording import ReceiveDraft
from pullback.tensor.record.trace import Handle, array_of, bind, current, realize


def Feeder(
    callback: Callable[[], Any],
    *,
    shape: Sequence[Any],
    dtype: Any = "float32",
    depth: int = 2,
) -> Any:
    """The next batch from the host: a tensor, or a tuple of them where `shape` is one of shapes.

    `callback()` is called once per step, in order, on another thread, at most `depth` ahead.

    Example:
        >>> batches = pb.Feeder(lambda: np.ones(2, "float32"), shape=(2,))
        >>> batches.shape
        (2,)
    """
    origin = Origin.of_caller()
    single = not (len(shape) > 0 and isinstance(shape[0], Sequence))
    shapes = [tuple(shape)] if single else [tuple(s) for s in shape]
    types = [dtype] * len(shapes) if isinstance(dtype, str | D.DType | type) else list(dtype)
    if len(types) != len(shapes):
        raise ShapeError(
            f"a feeder of {len(shapes)} arrays was given {len(types)} dtypes",
            origin=origin,
            code="E134",
        )
    kinds = [D.dtype(t) for t in types]
    trace = current()
    make = Variable if trace is None else trace.fresh
    targets = tuple(
        make(f"batch{n}", s, k, origin) for n, (s, k) in enumerate(zip(shapes, kinds, strict=True))
    )
    feed = Feed(callback, targets, single, depth, origin)
    if trace is None:
        batch = call_feeder(feed)
        if batch is None:
            raise StopIteration
        tensors = tuple(Tensor(bind(a, t.name)) for a, t in zip(batch, targets, strict=True))
    else:
        trace.recording.feed(feed)
        tensors = tuple(Tensor(t) for t in targets)
    return tensors[0] if single else tensors


def Receiver(
    callback: Callable[..., Any],
    tensors: Iterable[Handle] | Handle,
    *,
    every: int = 1,
    depth: int = 4,
) -> None:
    """Hand snapshots to `callback(*arrays)`, in order, on another thread, every `every`-th time.

    Example:
        >>> seen = []
        >>> x = pb.ones(2) * 3
        >>> pb.Receiver(seen.append, x)  # gets copies of `x`, on a thread
        >>> x
        Tensor([3., 3.], dtype=float32)
    """
    origin = Origin.of_caller()
    handles = [tensors] if isinstance(tensors, Handle) else list(tensors)
    trace = current()
    if trace is None:
        realize(handles)
        arrays = tuple(np.array(array_of(h)) for h in handles)
        call_receiver(Receive(callback, (), every, depth, origin), arrays)
        return

    def make(sources: tuple[Variable, ...]) -> Receive:
        return Receive(callback, sources, every, depth, origin)

    draft = ReceiveDraft(make, tuple(h.value for h in handles))
    trace.recording.segment.receives.append(draft)
