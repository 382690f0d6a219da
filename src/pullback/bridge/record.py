"""What became of graphs that `torch.compile` handed over: programs, and what PyTorch ran.

``Compiled(graphs=(Graph("forward", 34, 34),), fallbacks=())``
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph: what it is for, how many operators it has, and how many of them are in programs.

    Example:
        >>> print(pb.torch.Graph("forward", 4, 3))
        forward: 3 of 4 operators in programs
    """

    kind: str
    operators: int
    native: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.native} of {self.operators} operators in programs"


@dataclass(frozen=True, slots=True)
class Fallback:
    """An operator that PyTorch ran: why, and the line of the user's that called it.

    Example:
        >>> print(pb.torch.Fallback("aten.bernoulli.p", "it draws random numbers", ""))
        aten.bernoulli.p: it draws random numbers
    """

    operator: str
    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.reason}" + (f" ({self.line})" if self.line else "")


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

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.graphs, *self.fallbacks, *self.host_calls)))


class Record:
    """What is noted of this process."""

    def __init__(self) -> None:
        self._graphs: list[Graph] = []
        self._fallbacks: list[Fallback] = []
        self._host_calls: list[HostCall] = []

    def note(self, graph: Graph, fallbacks: list[Fallback], calls: list[HostCall]) -> None:
        """A graph, what of it PyTorch runs, and for what its programs call the host."""
        self._graphs.append(graph)
        self._fallbacks.extend(fallbacks)
        self._host_calls.extend(calls)

    def so_far(self) -> Compiled:
        """All that was noted."""
        return Compiled(tuple(self._graphs), tuple(self._fallbacks), tuple(self._host_calls))

    def reset(self) -> None:
        """Forget."""
        self._graphs.clear()
        self._fallbacks.clear()
        self._host_calls.clear()


RECORD = Record()
