"""What carries collectives between ranks, and what may go wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from pullback.errors import PullbackError
from pullback.tensor.forms.collective import Native
from pullback.tensor.forms.hosted import Kind

Array = np.ndarray[Any, Any]
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
KINDS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
Said = tuple[int, bytes, int]  # of a collective: which of KINDS, type, elements of the source
TIMEOUT = 120.0  # seconds that a rank waits for the others to move


class DistributedError(PullbackError, RuntimeError):
    """Several processes do not, or cannot, go on together.

    Example:
        >>> issubclass(pb.distributed.DistributedError, RuntimeError)
        True
    """

    code = "E610"
    placed = False


class Transport(Protocol):
    """A group of ranks that can run collectives of arrays without gaps, one after the other.

    `library` names the engine, for people. Every rank runs the same collectives in one order.
    """

    library: str
    rank: int
    size: int

    def run(self, kind: str, source: Array, target: Array) -> None:
        """``target = kind(source)``, of one type, both flat: sums in `all_reduce` and
        `reduce_scatter`, whose source holds a block for each rank, as the target of `all_gather`.

        Raises: DistributedError where a rank is gone, does not answer or does something else.
        """

    def begin(self, kind: str, source: Array, target: Array) -> Callable[[], None] | None:
        """Begin what `run` runs, without waiting for anybody: the function that ends it. None:
        somebody has to work at it in between, on a thread beside the program.

        Raises: DistributedError where a rank is gone.
        """

    def natives(self, kind: str, x: Kind, y: Kind) -> tuple[Native, Native] | None:
        """C functions that begin and end it, for a program to call; None where there are none."""

    def close(self) -> None:
        """Part from the others, who then raise if they still wait."""


class Alone:
    """One rank."""

    library = "no transport"
    rank, size = 0, 1

    def run(self, kind: str, source: Array, target: Array) -> None:
        """Everything is a copy."""
        target[...] = source

    def begin(self, kind: str, source: Array, target: Array) -> None:
        """Nobody to wait for."""

    def natives(self, kind: str, x: Kind, y: Kind) -> None:
        """Nothing to call."""

    def close(self) -> None:
        """Nobody is there."""


def gone(what: str) -> NoReturn:
    """Raises: DistributedError: a rank has ended."""
    help_text = "see what that rank said; go on from the last checkpoint, with any number of ranks"
    raise DistributedError(what, help=help_text, code="E611")


def late(what: str, timeout: float) -> NoReturn:
    """Raises: DistributedError: a rank does not move."""
    raise DistributedError(
        f"{what} for {timeout:g} s",
        help="init(timeout=..) is how long to wait; a rank hangs, or is in another collective",
        code="E612",
    )


def differ(
    rank: int, other: tuple[int, int, bytes, int], mine: int, own: tuple[int, int, bytes, int]
) -> NoReturn:
    """Raises: DistributedError: two ranks are in collectives that differ."""
    raise DistributedError(
        f"rank {rank} is in {_told(*other)}, rank {mine} in {_told(*own)}",
        help="all ranks run the same collectives of the same shapes, in one order",
        code="E613",
    )


def _told(number: int, kind: int, name: bytes, count: int) -> str:
    word = KINDS[kind] if kind < len(KINDS) else "what is none"
    return f"its collective {number}, {word} of {count} elements of {name.decode(errors='replace')}"
