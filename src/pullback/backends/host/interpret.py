"""A program run item by item in Python: the oracle for the machine. Nothing is asynchronous."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pullback.backends.host.exchange import (
    OUTSIDE,
    box,
    call_feeder,
    call_host,
    call_receiver,
    shown,
)
from pullback.backends.host.profile import Profile
from pullback.errors import FeedError, InvalidIR
from pullback.ir import program as P
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel

Array = np.ndarray[Any, Any]
Values = dict[Variable, Array]


class _Ended(Exception):
    """A feeder has no more batches."""


def refused(item: Graph | Kernel, values: Values) -> Values:
    """Raises: InvalidIR: a program has what its runner does not run."""
    raise InvalidIR(f"a {type(item).__name__} in a program of none")


class Plain:
    """A runner that takes arrays alone, counts its launches and no more."""

    barriers = 0
    moved = 0
    go = None
    sizes = ()

    def profile(self, kernels: Sequence[Kernel]) -> Profile | None:
        """Nothing is timed."""
        return None


class Interpreter:
    """Runs blocks over `values`, which holds every variable that has been written."""

    def __init__(
        self,
        values: Values,
        compute: Callable[[Graph, Values], Values],
        launch: Callable[[Kernel, Values], Values],
        sizes: Mapping[str, int],
    ) -> None:
        self.values = values
        self.compute = compute
        self.launch = launch
        self.sizes = sizes
        self.launches = 0
        self.reached: dict[P.Receive, int] = {}

    def run(self, block: P.Block) -> None:
        """Run a whole program. Raises: FeedError where a feeder outside of any loop ends."""
        try:
            self.block(block)
        except _Ended:
            raise FeedError(OUTSIDE, code="E413") from None

    def block(self, block: P.Block) -> None:
        for item in block:
            self.item(item)

    def item(self, item: P.Item) -> None:
        if isinstance(item, P.Compute):
            self.values.update(self.compute(item.graph, self.values))
            self.launches += 1
        elif isinstance(item, P.Launch):
            self.values.update(self.launch(item.kernel, self.values))
            self.launches += 1
        elif isinstance(item, P.Loop):
            self.loop(item)
        elif isinstance(item, P.Branch):
            chosen = bool(self.values[item.predicate])
            self.block(item.then if chosen else item.otherwise)
        elif isinstance(item, P.Feed):
            self.feed(item)
        elif isinstance(item, P.HostCall):
            boxes = [self.values[s] for s in item.sources]
            made = [self.memory(item, t) for t in item.targets] if item.writes else []
            results = call_host(item, boxes, self.sizes, made)
            self.values.update(zip(item.targets, results, strict=True))
        else:
            self.receive(item)

    def memory(self, call: P.HostCall, target: Variable) -> Array:
        """Where a call writes a target: what it was given, or memory of its own."""
        if target in call.sources:
            return self.values[target]
        return np.zeros(box(target), target.dtype.numpy)

    def loop(self, loop: P.Loop) -> None:
        for number in range(loop.count):
            if loop.condition is not None and not bool(self.values[loop.condition]):
                return
            if loop.counter is not None:
                place = loop.start + number * loop.step
                self.values[loop.counter] = np.asarray(place, np.int64)
            try:
                self.block(loop.body)
            except _Ended:
                return

    def feed(self, feed: P.Feed) -> None:
        batch = call_feeder(feed)
        if batch is None:
            raise _Ended
        for target, array in zip(feed.targets, batch, strict=True):
            self.values[target] = np.array(array)

    def receive(self, receive: P.Receive) -> None:
        count = self.reached.get(receive, 0)
        self.reached[receive] = count + 1
        if (count + 1) % receive.every == 0:
            call_receiver(receive, tuple(np.array(self.values[s]) for s in receive.sources))


class Interpreted(Plain):
    """Runs a program with NumPy, item by item."""

    def __init__(
        self,
        block: P.Block,
        compute: Callable[[Graph, Values], Values] = refused,
        launch: Callable[[Kernel, Values], Values] = refused,
    ) -> None:
        self.launches = 0
        self._block = block
        self._compute = compute
        self._launch = launch

    def run(self, bindings: Mapping[Variable, Array], sizes: Mapping[str, int]) -> None:
        parts = {v: shown(v, array, sizes) for v, array in bindings.items()}
        interpreter = Interpreter(dict(parts), self._compute, self._launch, sizes)
        try:
            interpreter.run(self._block)
        finally:
            self.launches = interpreter.launches
            for variable, array in parts.items():
                result = interpreter.values[variable]
                if result is not array:
                    array[...] = result
