"""The classes of workloads, with what is asked of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suite import attention, contraction, convolution, custom, memory_bound, nets
from suite.workload import Workload


@dataclass(frozen=True)
class Class:
    """`wanted`: the least geometric mean of peer time over ours, beside eager, compile and jax;
    `worst`: the least of any row. `kind`: warm times, cold starts or memory.
    """

    workloads: tuple[Workload, ...]
    wanted: tuple[float, float, float]
    worst: float = 0.0
    kind: str = "warm"


STARTED = (nets.Encoder(), nets.Gpt(), nets.ConvNet(), *custom.WORKLOADS)
CLASSES = {
    "tiny steps": Class(nets.TINY, (30, 12, 6)),
    "small transformers": Class(nets.SMALL, (3.5, 2.5, 2.5)),
    "medium": Class(nets.MEDIUM, (1.5, 1.4, 1.4), 1.0),
    "memory-bound": Class(memory_bound.WORKLOADS, (1.5, 1.5, 1.5)),
    "attention": Class(attention.WORKLOADS, (1.2, 1.2, 1.2)),
    "contraction": Class(contraction.WORKLOADS, (1.05, 1.05, 1.05), 0.95),
    "convolution": Class(convolution.WORKLOADS, (1.0, 1.0, 1.0), 0.7),
    "compile": Class(STARTED, (0, 10, 3), kind="cold"),
    "memory": Class(nets.TRAINED, (1.0, 1.0, 1.0), 1.0, kind="memory"),
}


def packed(w: Workload) -> dict[str, Any]:
    """What tells another process which workload this is."""
    return {"kind": _kind(type(w)), "sizes": w.sizes}


def made(found: dict[str, Any]) -> Workload:
    """The other way round, for kinds of workloads that a class has."""
    types = {_kind(type(w)): type(w) for c in CLASSES.values() for w in c.workloads}
    return types[found["kind"]](**found["sizes"])


def _kind(kind: type[Workload]) -> str:
    return f"{kind.__module__}.{kind.__name__}"
