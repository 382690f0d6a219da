"""How one launch runs, as data: ``64 x 128, 32 at once; 4 warps, 3 stages; groups of 8``."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum

from pullback.errors import OptionError

POWERS = "rows", "columns", "step", "warps", "chunks", "group", "shares"


class Precision(Enum):
    """What tensor cores make of factors of float32: three products that lose nothing, or one of
    numbers cut to 11 bits.
    """

    EXACT = "tf32x3"
    TF32 = "tf32"


class Reads(Enum):
    """How factors of a product are read: each thread its elements, masked, or the copy engine the
    whole block, zero beyond the ends.
    """

    POINTERS = "pointers"
    DESCRIPTORS = "descriptors"


LINE = re.compile(
    r"(?P<rows>\d+) x (?P<columns>\d+), (?P<step>\d+) at once; (?P<warps>\d+) warps, "
    r"(?P<stages>\d+) stages; groups of (?P<group>\d+), parts (?P<chunks>\d+); "
    rf"(?P<precision>{'|'.join(p.value for p in Precision)}), "
    rf"by (?P<reads>{'|'.join(r.value for r in Reads)})"
    r"(?:; shares (?P<shares>\d+))?(?P<atomic>; atomic)?"
)


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """`rows`: of a program; `columns`: of its tile of a product. `step`: terms that a loop takes at
    once, `stages` of which are in flight. `chunks`: parts of a sum that are made side by side and
    added up by a second launch; `warps` of 32 threads. `group`: so many tiles of rows run together,
    column after column, so that what they share is near. `atomic`: terms of an accumulating write
    are spread over programs, which add at once. `shares`: its places are dealt to so many programs,
    each of which looks at all terms.
    """

    rows: int
    columns: int = 1
    step: int = 1
    chunks: int = 1
    warps: int = 4
    stages: int = 3
    group: int = 1
    precision: Precision = Precision.EXACT
    reads: Reads = Reads.POINTERS
    shares: int = 1
    atomic: bool = False

    def __str__(self) -> str:
        shares = f"; shares {self.shares}" if self.shares > 1 else ""
        return (
            f"{self.rows} x {self.columns}, {self.step} at once; {self.warps} warps, "
            f"{self.stages} stages; groups of {self.group}, parts {self.chunks}; "
            f"{self.precision.value}, by {self.reads.value}{shares}{'; atomic' * self.atomic}"
        )


def parsed(text: str) -> BlockSchedule:
    """A schedule as `str` writes it. Raises: OptionError."""
    read = LINE.fullmatch(text.strip())
    if read is None:
        help = f"like {str(BlockSchedule(64, 64, 32))!r}"
        raise OptionError(f"no schedule of a block: {text.strip()!r}", help=help, code="E382")
    words = Precision(read["precision"]), Reads(read["reads"]), read["atomic"] is not None
    numbers = {f.name: int(read[f.name] or 1) for f in fields(BlockSchedule) if f.type == "int"}
    wrong = [n for n in POWERS if numbers[n] < 1 or numbers[n] & (numbers[n] - 1)]
    if wrong:
        what = f"{wrong[0]} = {numbers[wrong[0]]} of a block"
        raise OptionError(what, help="blocks have powers of two", code="E382")
    return BlockSchedule(**numbers, precision=words[0], reads=words[1], atomic=words[2])
