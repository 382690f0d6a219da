"""A program run item by item in Python: the oracle for the machine. Nothing is asynchronous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.errors import FeedError
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Branch, Compute, Feed, Item, Launch, Loop, Receive
from pullback.runtime.exchange import OUTSIDE, call_feeder, call_receiver

Array = np.ndarray[Any, Any]
Values = dict[Variable, Array]


class _Ended(Exception):
    """A feeder has no more batches."""


class Interpreter:
    """Runs blocks over `values`, which holds every variable that has been written."""

    def __init__(
        self,
        values: Values,
        compute: Callable[[Graph, Values], Values],
        launch: Callable[[Kernel, Values], Values],
    ) -> None:
        self.values = values
        self.compute = compute
        self.launch = launch
        self.launches = 0
        self.reached: dict[Receive, int] = {}

    def run(self, block: Block) -> None:
        """Run a whole program. Raises: FeedError where a feeder outside of any loop ends."""
        try:
            self.block(block)
        except _Ended:
            raise FeedError(OUTSIDE, code="E413") from None

    def block(self, block: Block) -> None:
        for item in block:
            self.item(item)

    def item(self, item: Item) -> None:
        if isinstance(item, Compute):
            self.values.update(self.compute(item.graph, self.values))
            self.launches += 1
        elif isinstance(item, Launch):
            self.values.update(self.launch(item.kernel, self.values))
            self.launches += 1
        elif isinstance(item, Loop):
            self.loop(item)
        elif isinstance(item, Branch):
            chosen = bool(self.values[item.predicate])
            self.block(item.then if chosen else item.otherwise)
        elif isinstance(item, Feed):
            self.feed(item)
        else:
            self.receive(item)

    def loop(self, loop: Loop) -> None:
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

    def feed(self, feed: Feed) -> None:
        batch = call_feeder(feed)
        if batch is None:
            raise _Ended
        for target, array in zip(feed.targets, batch, strict=True):
            self.values[target] = np.array(array)

    def receive(self, receive: Receive) -> None:
        count = self.reached.get(receive, 0)
        self.reached[receive] = count + 1
        if (count + 1) % receive.every == 0:
            call_receiver(receive, tuple(np.array(self.values[s]) for s in receive.sources))
