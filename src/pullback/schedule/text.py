"""Schedules as text, both ways: what is printed is all that decides code, and is read back.

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

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from pullback.errors import SyntaxFormError
from pullback.ir.kernel import Kernel, Stage
from pullback.schedule.contraction import seen
from pullback.schedule.schedule import (
    DotLoops,
    Left,
    Loops,
    Place,
    Residence,
    Right,
    Schedule,
    Slot,
    Step,
    SweepLoops,
    TileLoops,
    Way,
)
from pullback.schedule.slots import tile_shape, whole_shape

NUMBER = r"(\d{1,18})"
NUMBERS = r"(\d{1,18}(?:, \d{1,18})*)?"
HEAD = re.compile(
    rf"{NUMBER} tasks over tiles of \({NUMBERS},?\), split {NUMBER}, vectors of {NUMBER} bytes"
    r"(?:, \d+ bytes scratch)?"
)
STEP = re.compile(
    rf"(finish: )?({'|'.join(way.value for way in Way)}) of stages \[{NUMBERS}\] in {NUMBER} loops"
    rf"(?:, axis {NUMBER} in lanes)?(?:, columns along {NUMBER})?(?:, words of {NUMBER})?"
    r"(?:; (.*))?"
)
HOME = re.compile(rf"stage {NUMBER} in (\w+)(?: {NUMBER})?(?: of stage {NUMBER})?")
ORDER = re.compile(rf"outer axes in the order \[{NUMBERS}\]")
PAST = re.compile(rf"arguments \[{NUMBERS}\] past the caches")
SUMS = re.compile(rf"{NUMBER} x {NUMBER} sums")
FACT = re.compile(rf"([a-z ]+?) {NUMBER}")
WHERE = re.compile(r"(left|right) (in .+|evaluated.*)")


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
    if isinstance(loops, SweepLoops):
        return [f"in flight {loops.unroll}", f"if long {loops.long}", f"blocks of {loops.block}"]
    found = [f"{loops.rows} x {loops.columns} sums"]
    if isinstance(loops, DotLoops):
        found += [] if loops.pitch is None else [f"left in rows of {loops.pitch}"]
        return found + ["fetched ahead"] * loops.ahead
    found.append(f"exact to {loops.exact}")
    found += [] if loops.terms is None else [f"terms {loops.terms}"]
    found += [] if loops.left is Left.IN_PLACE else [f"left {loops.left.value}"]
    found += ["left in panels"] * loops.scattered
    found.append(f"right {loops.right.value}")
    found += [f"packed in loops {loops.level}"] if loops.right is Right.PANELS else []
    return found + ["fetched ahead"] * loops.ahead


def read_schedule(text: str, kernel: Kernel) -> Schedule:
    """The schedule of `kernel` that a text describes; what scratch holds follows from the tile.

    Raises: SyntaxFormError with the line.
    """
    first, *rest = text.strip().splitlines() or [""]
    head = HEAD.fullmatch(first.strip())
    if head is None:
        raise _wrong(1, "expected: N tasks over tiles of (N, ..), split N, vectors of N bytes")
    tile = _numbers(head[2])
    steps: list[Step] = []
    finish: list[Step] = []
    homes: dict[int, Residence] = {}
    streamed: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    for number, line in enumerate((line.strip() for line in rest), 2):
        if found := STEP.fullmatch(line):
            stages = kernel.finish if found[1] else kernel.stages
            (finish if found[1] else steps).append(_read_step(found, stages, number))
        elif found := HOME.fullmatch(line):
            homes[int(found[1])] = _read_home(found, number)
        elif found := PAST.fullmatch(line):
            streamed = _numbers(found[1])
        elif found := ORDER.fullmatch(line):
            order = _numbers(found[1])
        elif line and not line.startswith("#"):
            raise _wrong(number, f"not a line of a schedule: {line}")
    every = kernel.stages + kernel.finish
    if sorted(homes) != list(range(len(every))) or len(tile) != len(kernel.outer):
        what = f"{len(homes)} stages in a tile of {len(tile)} axes"
        raise _wrong(1, f"{what}, the kernel has {len(every)} in {len(kernel.outer)}")
    numbers = sorted({h.slot for h in homes.values() if h.slot is not None})
    slots = {slot: n for n, slot in enumerate(numbers)}
    residences = tuple(
        home if home.slot is None else replace(home, slot=slots[home.slot])
        for home in (homes[n] for n in range(len(every)))
    )
    schedule = Schedule(
        tile, int(head[1]), int(head[3]), tuple(steps), tuple(finish), residences, (),
        order, vector=int(head[4]), streamed=streamed,
    )  # fmt: skip
    return replace(schedule, slots=scratch_slots(kernel, schedule))


def scratch_slots(kernel: Kernel, schedule: Schedule) -> tuple[Slot, ...]:
    """What each piece of scratch must hold of the stages that live in it."""
    found: dict[int, Slot] = {}
    for number, home in enumerate(schedule.residences):
        if home.slot is None:
            continue
        stage = (kernel.stages + kernel.finish)[number]
        last = number >= len(kernel.stages)
        size = prod(whole_shape(stage) if last else tile_shape(stage, schedule.tile))
        before = found.get(home.slot, Slot(stage.body.dtype, 0))
        found[home.slot] = replace(before, size=max(before.size, size))
    return tuple(found[n] for n in sorted(found))


def _read_step(found: re.Match[str], stages: Sequence[Stage], line: int) -> Step:
    members, way = _numbers(found[3]), Way(found[2])
    if not members or max(members) >= len(stages):
        raise _wrong(line, f"stages {list(members)} of {len(stages)}")
    product = None
    if found[6] is not None:
        product = seen(stages[members[0]], int(found[6]))
        if product is None:
            raise _wrong(line, f"stage {members[0]} is no contraction with columns {found[6]}")
        product = replace(product, word=int(found[7] or 1), direct=False)
    lane = None if found[5] is None else int(found[5])
    loops = _read_loops(way, [part for part in (found[8] or "").split(", ") if part], line)
    return Step(members, way, int(found[4]), lane, product, loops=loops)


def _read_loops(way: Way, parts: list[str], line: int) -> Loops | None:
    if way in (Way.SCAN, Way.SCATTER):
        if parts:
            raise _wrong(line, f"a {way.value} has no {parts[0]}")
        return None
    words: dict[str, str] = {}
    for part in parts:
        if found := SUMS.fullmatch(part):
            words |= {"rows": found[1], "columns": found[2]}
        elif found := FACT.fullmatch(part):
            words[found[1]] = found[2]
        elif part == "left in panels":
            words["scattered"] = part
        elif found := WHERE.fullmatch(part):
            words[found[1]] = found[2]
        else:
            words[part] = part
    try:
        loops = _loops(way, words)
    except (KeyError, ValueError) as error:
        raise _wrong(line, f"{way.value} without, or with a wrong, {error}") from None
    if words:
        raise _wrong(line, f"{way.value} with {', '.join(words)}")
    return loops


def _loops(way: Way, words: dict[str, str]) -> Loops:
    """The loops that named facts describe; what is understood is taken off."""
    if way is Way.SWEEP:
        return SweepLoops(*(int(words.pop(w)) for w in ("in flight", "if long", "blocks of")))
    rows, columns = int(words.pop("rows")), int(words.pop("columns"))
    ahead = words.pop("fetched ahead", None) is not None
    if way is Way.DOTS:
        pitch = words.pop("left in rows of", None)
        return DotLoops(rows, columns, None if pitch is None else int(pitch), ahead)
    terms = words.pop("terms", None)
    return TileLoops(
        rows,
        columns,
        int(words.pop("exact to")),
        None if terms is None else int(terms),
        Left(words.pop("left", Left.IN_PLACE.value)),
        words.pop("scattered", None) is not None,
        Right(words.pop("right")),
        int(words.pop("packed in loops", "0")),
        ahead,
    )


def _read_home(found: re.Match[str], line: int) -> Residence:
    try:
        place = Place(found[2])
    except ValueError:
        places = ", ".join(p.value for p in Place)
        raise _wrong(line, f"no place is called {found[2]}: there are {places}") from None
    if (found[3] is not None) != (place is Place.SCRATCH):
        raise _wrong(line, f"{place.value} {found[3] or 'without a number'}")
    slot, host = (None if n is None else int(n) for n in (found[3], found[4]))
    return Residence(place, slot, host)


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in (text or "").split(", ") if n)


def _wrong(line: int, what: str) -> SyntaxFormError:
    return SyntaxFormError(f"line {line}: {what}", code="E172")
