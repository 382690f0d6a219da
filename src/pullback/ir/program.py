"""Programs: computations, loops, branches, feeds, receives and calls of the host over variables.

A program is first traced with `Compute` items; fusion replaces each by `Launch` items. Every value
that crosses an item is a `Variable`, so items can be run in order by a machine with no Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pullback.config import entity
from pullback.errors import Origin
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel


@entity
class Compute:
    """One simultaneous assignment."""

    graph: Graph


@entity
class Launch:
    """One kernel, run once."""

    kernel: Kernel


@entity
class Loop:
    """Run `body` at most `count` times, while `condition` (a bool scalar, tested before) holds.

    `counter` (int64 scalar, or None) holds the iteration number, from `start` in steps of `step`.
    """

    body: Block
    count: int
    counter: Variable | None = None
    condition: Variable | None = None
    start: int = 0
    step: int = 1


@entity
class Branch:
    """Run `then` where `predicate` (a bool scalar) holds, else `otherwise`."""

    predicate: Variable
    then: Block
    otherwise: Block


@entity
class Feed:
    """Take the next batch of a feeder into `targets`; ends the innermost loop at StopIteration.

    `single`: the callback returns one array, not a tuple of them.
    """

    callback: Callable[[], Any]
    targets: tuple[Variable, ...]
    single: bool
    depth: int = 2
    origin: Origin | None = None


@entity
class Receive:
    """Hand snapshots of `sources` to `callback(*arrays)`, every `every`-th time it is reached."""

    callback: Callable[..., Any]
    sources: tuple[Variable, ...]
    every: int = 1
    depth: int = 4
    origin: Origin | None = None


@entity
class HostCall:
    """``targets = function(*sources)``, by a function of the host, on the thread that runs.

    `function` takes arrays and gives as many as there are targets: of their shapes and types,
    made of nothing but what it is given. In keys `name` and `library` stand for it.

    `writes`: ``function(*sources, *targets)`` writes the targets itself, and may go on after it
    has come back, until a second call has that memory among sources and targets. `native`: a C
    function that does the same, an address and its words; for None, the next of the addresses.
    """

    name: str
    library: str
    function: Callable[..., Any]
    sources: tuple[Variable, ...]
    targets: tuple[Variable, ...]
    origin: Origin | None = None
    writes: bool = False
    native: tuple[int, tuple[int | None, ...]] | None = None


Item = Compute | Launch | Loop | Branch | Feed | Receive | HostCall
Block = tuple[Item, ...]


@entity
class Program:
    """A whole program. `state` variables outlive a run; every other one is the program's own."""

    body: Block
    state: tuple[Variable, ...] = ()


def items(block: Block) -> Iterator[Item]:
    """Every item, outer ones before the ones inside."""
    for item in block:
        yield item
        if isinstance(item, Loop):
            yield from items(item.body)
        elif isinstance(item, Branch):
            yield from items((*item.then, *item.otherwise))


def expand(block: Block, change: Callable[[Item], Sequence[Item] | None]) -> Block:
    """`block` with items replaced by those that `change` gives for them; None leaves an item."""
    expanded: list[Item] = []
    for item in block:
        new = change(item)
        if new is not None:
            expanded += new
        elif isinstance(item, Loop):
            expanded.append(replace(item, body=expand(item.body, change)))
        elif isinstance(item, Branch):
            sides = expand(item.then, change), expand(item.otherwise, change)
            expanded.append(Branch(item.predicate, *sides))
        else:
            expanded.append(item)
    return tuple(expanded)


def written(block: Block) -> list[Variable]:
    """The variables that a traced program, its feeds and the host assign."""
    assigned: list[Variable] = []
    for item in items(block):
        if isinstance(item, Compute):
            assigned += [v for v, _ in item.graph.assigns]
        elif isinstance(item, Feed | HostCall):
            assigned += item.targets
    return assigned
