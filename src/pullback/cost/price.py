"""The one currency: nanoseconds of one thread, by parts."""

from __future__ import annotations

from pullback.config import frozen

OVERLAP = 1.5  # exponent: parts that take equally long take 2 ** (2/3) times as long together


def together(*parts: float, exponent: float = OVERLAP) -> float:
    """Nanoseconds of parts that overlap but for what is lost where they are alike."""
    return float(sum(part**exponent for part in parts) ** (1 / exponent))


@frozen
class Price:
    """What one launch costs: `ns` on one thread, with what overlaps counted once.

    `arithmetic`: instructions alone; `memories`: what each memory beyond the nearest would take
    alone, by its name; `packing`: copies of panels; `launch` and `tasks`: to begin them.
    """

    ns: float
    arithmetic: float
    memories: tuple[tuple[str, float], ...]
    packing: float
    launch: float
    tasks: float

    def __str__(self) -> str:
        parts = [("arithmetic", self.arithmetic), *self.memories, ("packing", self.packing)]
        parts += [("launch", self.launch), ("tasks", self.tasks)]
        said = ", ".join(f"{name} {ns / 1e3:.2f}" for name, ns in parts if ns)
        return f"{self.ns / 1e3:.2f} us: {said}"
