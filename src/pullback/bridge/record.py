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
class Compiled:
    """All graphs since the start, or since `torch._dynamo.reset`.

    Example:
        >>> isinstance(pb.torch.report(), pb.torch.Compiled)
        True
    """

    graphs: tuple[Graph, ...]
    fallbacks: tuple[Fallback, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.graphs, *self.fallbacks)))


class Record:
    """What is noted of this process."""

    def __init__(self) -> None:
        self._graphs: list[Graph] = []
        self._fallbacks: list[Fallback] = []

    def note(self, graph: Graph, fallbacks: list[Fallback]) -> None:
        """A graph, and what of it PyTorch runs."""
        self._graphs.append(graph)
        self._fallbacks.extend(fallbacks)

    def so_far(self) -> Compiled:
        """All that was noted."""
        return Compiled(tuple(self._graphs), tuple(self._fallbacks))

    def reset(self) -> None:
        """Forget."""
        self._graphs.clear()
        self._fallbacks.clear()


RECORD = Record()
