"""What became of graphs that `torch.compile` handed over: programs, and what PyTorch ran.

``Compiled(graphs=(Graph("forward", 34, 34),), fallbacks=())``
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from pullback.bridge import breaks
from pullback.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph: what it is for, how many operators it has, and how many of them are in programs.
    `sizes`: why it has no program that serves all symbolic sizes; "" where it has, or has none.

    Example:
        >>> print(pb.torch.Graph("forward", 4, 3))
        forward: 3 of 4 operators in programs
    """

    kind: str
    operators: int
    native: int
    sizes: str = ""

    def __str__(self) -> str:
        told = f"; a program for each size: {self.sizes}" if self.sizes else ""
        return f"{self.kind}: {self.native} of {self.operators} operators in programs{told}"


@dataclass(frozen=True, slots=True)
class Fallback:
    """An operator that PyTorch ran: why, the line of the user's that called it, and its share of
    the time of its graph in the second run; None before that.

    Example:
        >>> print(pb.torch.Fallback("aten.bernoulli.p", "it draws random numbers", ""))
        aten.bernoulli.p: it draws random numbers
    """

    operator: str
    reason: str
    line: str
    share: float | None = None

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        took = "" if self.share is None else f", {self.share:.0%} of the time of its graph"
        return f"{self.operator}: {self.reason}{where}{took}"


@dataclass(frozen=True, slots=True)
class HostCall:
    """An operator for which a program calls a library of the host, between two launches.

    Example:
        >>> print(pb.torch.HostCall("aten.linalg_qr.default", "PyTorch 2.13", ""))
        aten.linalg_qr.default: called from a program, PyTorch 2.13
    """

    operator: str
    library: str
    line: str

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.operator}: called from a program, {self.library}{where}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """All graphs since the start, or since `torch._dynamo.reset`.

    Example:
        >>> isinstance(pb.torch.report(), pb.torch.Compiled)
        True
    """

    graphs: tuple[Graph, ...]
    fallbacks: tuple[Fallback, ...]
    host_calls: tuple[HostCall, ...] = ()
    breaks: tuple[breaks.GraphBreak, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.graphs, *self.breaks, *self.fallbacks, *self.host_calls)))


class Record:
    """What is noted of this process. `programs`: those that run for PyTorch, in their order."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.programs: WeakValueDictionary[int, Executable] = WeakValueDictionary()
        self._graphs: list[Graph] = []
        self._fallbacks: list[tuple[Mapping[str, Fallback], Mapping[str, float]]] = []
        self._host_calls: list[HostCall] = []

    def note(
        self,
        graph: Graph,
        fallbacks: Mapping[str, Fallback],
        calls: Sequence[HostCall],
        shares: Mapping[str, float],
    ) -> None:
        """A graph, what of it PyTorch runs by the names of nodes, and for what its programs call
        the host. `shares`: of the time, by the same names, as soon as they are known.
        """
        self._graphs.append(graph)
        self._fallbacks.append((fallbacks, shares))
        self._host_calls.extend(calls)

    def compiled(self, executable: Executable) -> None:
        """A program, as long as somebody has it."""
        self.programs[next(self._numbers)] = executable

    def so_far(self) -> Compiled:
        """All that was noted."""
        fallbacks = [
            replace(one, share=shares.get(name))
            for own, shares in self._fallbacks
            for name, one in own.items()
        ]
        own = tuple(self._graphs), tuple(fallbacks), tuple(self._host_calls)
        return Compiled(*own, breaks.so_far())

    def reset(self) -> None:
        """Forget."""
        self._graphs.clear()
        self._fallbacks.clear()
        self._host_calls.clear()


RECORD = Record()
