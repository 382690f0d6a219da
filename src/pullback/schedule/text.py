"""Schedules as text: what is printed is all that decides code (`cli/schedule_text.py` reads it).

::

    4 tasks over tiles of (64, 128), split 1, vectors of 64 bytes, 0 bytes scratch
      tiles of stages [0] in 2 loops, axis 1 in lanes, columns along 1; 8 x 48 sums, ..
      sweep of stages [2] in 0 loops, axis 0 in lanes; in flight 2, if long 1, blocks of 64
      stage 0 in register
      stage 1 in memory
      stage 2 in scratch 0
      arguments [3] past the caches
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

from pullback.schedule.schedule import (
    Loops,
    Right,
    Schedule,
    Step,
    SweepLoops,
    TileLoops,
)

# What the fields of loops are called, in a text of numbers and words.
SAID = {
    "unroll": "in flight",
    "long": "if long",
    "block": "blocks of",
    "through": "sums through zeros",
    "abreast": "rows abreast",
    "pitch": "left in rows of",
    "exact": "exact to",
    "terms": "terms",
    "left": "left",
    "scattered": "left in panels",
    "right": "right",
    "level": "packed in loops",
    "ahead": "fetched ahead",
    "turned": "results in squares",
}


def schedule_text(schedule: Schedule) -> str:
    """Everything that a schedule says."""
    size, vector = schedule.scratch_bytes, schedule.vector
    tile = ", ".join(map(str, schedule.tile)) + "," * (len(schedule.tile) == 1)
    lines = [
        f"{schedule.tasks} tasks over tiles of ({tile}), split {schedule.split},"
        f" vectors of {vector} bytes, {size} bytes scratch"
    ]
    if schedule.order:
        lines.append(f"  outer axes in the order {list(schedule.order)}")
    lines += [f"  {_step(step)}" for step in schedule.steps]
    lines += [f"  finish: {_step(step)}" for step in schedule.finish]
    for number, home in enumerate(schedule.residences):
        slot = "" if home.slot is None else f" {home.slot}"
        host = "" if home.host is None else f" of stage {home.host}"
        lines.append(f"  stage {number} in {home.place.value}{slot}{host}")
    if schedule.streamed:
        lines.append(f"  arguments {list(schedule.streamed)} past the caches")
    if schedule.asked:
        lines.append("  # asked for: " + ", ".join(f"{n} = {v}" for n, v in schedule.asked))
    return "\n".join(lines)


def _step(step: Step) -> str:
    lane = "" if step.vector is None else f", axis {step.vector} in lanes"
    product = step.product
    if product is not None:
        lane += f", columns along {product.column}"
        lane += f", words of {product.word}" if product.word > 1 else ""
    head = f"{step.way.value} of stages {list(step.stages)} in {step.level} loops{lane}"
    return head if step.loops is None else f"{head}; {', '.join(_facts(step.loops))}"


def _facts(loops: Loops) -> list[str]:
    """Rows and columns, then in order what is not as it is usually."""
    words = [] if isinstance(loops, SweepLoops) else [f"{loops.rows} x {loops.columns} sums"]
    packed = isinstance(loops, TileLoops) and loops.right is Right.PANELS
    for item in fields(loops):
        name, value = item.name, getattr(loops, item.name)
        shown = value != item.default or name == "right" or (name == "level" and packed)
        if shown and name in SAID:
            number = value.value if isinstance(value, Enum) else value
            words.append(SAID[name] if value is True else f"{SAID[name]} {number}")
    return words
