"""What a loop is made of: how it runs, what its body computes, what the body reads from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pullback.ir.graph import Definition, Value
from pullback.tensor.record.calls import Call, below, ordered
from pullback.tensor.record.recording import Frame
from pullback.tensor.record.trace import Trace

FOREVER = 1 << 62  # the count of a loop that only its condition ends


@dataclass(frozen=True, slots=True)
class Steps:
    """How a loop runs: at most `count` steps, rows from the last to the first if `backwards`.

    `trips`: how many there are, where that is less and known before. `store`: whether a backward
    reads what is dear to compute, or computes it again from the carries. `tested`: whether a run
    of it again asks its condition again, for nobody has kept how many steps there were.
    """

    name: str
    count: int
    backwards: bool = False
    trips: Value | None = None
    store: bool = True
    tested: bool = False


@dataclass(slots=True)
class Made:
    """What the body of a loop computes: carries, rows of this step, and whether to go on.

    `rows`: of values outside, with the definition that reads the row of this step.
    """

    ends: list[Value]
    items: list[Value] = field(default_factory=list)
    rows: list[tuple[Value, Definition]] = field(default_factory=list)
    again: Value | None = None


def captures(trace: Trace, frame: Frame, roots: Sequence[Value], own: set[Value]) -> list[Value]:
    """Values from outside of `frame` that `roots` depend on, `own` ones not looked into."""
    inside = trace.recording.contains
    order = ordered(roots, trace.calls, lambda v: v in own or not inside(frame, v))
    wanted: list[Value | Call] = [*roots, *(s for n in order for s in below(n, trace.calls))]
    values = [v for v in wanted if not isinstance(v, Call) and v not in own]
    return list(dict.fromkeys(v for v in values if not inside(frame, v)))
