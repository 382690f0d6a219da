"""The code of kernels, as their backend writes it; packed, for a page that stays small."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pullback.backends.base import Text
from pullback.ir.kernel import Kernel
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.memory.budget import work
from pullback.runtime.executable import ASSEMBLY
from pullback.schedule.choose import Choose
from pullback.schedule.schedule import Schedule
from pullback.schedule.text import schedule_text

MOST_PACKED = 1_500_000  # bytes of all code in a page, packed; what comes after is left out
LEFT_OUT = "left out: the code of all kernels before this one fills the page"
NOT_MADE = "made for the largest kernels; --assembly makes it for all"
LEVEL = 9


@dataclass(slots=True)
class Codes:
    """The code of each kernel structure by each schedule, once. `most`: of how many of a program,
    by their operations, the machine code is made; None: of all. `number`: those of the program
    that was added last.
    """

    most: int | None
    made: dict[tuple[Target, str, str, tuple[str, ...]], int] = field(default_factory=dict)
    number: dict[tuple[Target, str], int] = field(default_factory=dict)
    packed: list[str] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)

    def add(
        self,
        kernels: Sequence[Kernel],
        target: Target,
        chosen: Choose,
        texts: Mapping[str, Text],
    ) -> None:
        """Make the code of `kernels` and of their parts for a processor, by schedules `chosen`, as
        `texts` write it.
        """
        distinct: dict[str, Kernel] = {}
        for piece in (p for k in kernels for p in k.pieces):
            distinct.setdefault(kernel_digest(piece), piece)
        largest = sorted(distinct, key=lambda key: -work(distinct[key]).flops)
        wanted = frozenset(largest[: self.most])
        room = MOST_PACKED - sum(map(len, self.packed))
        for key, kernel in distinct.items():
            schedule = chosen(kernel, target)
            number = self.made.setdefault(
                (target, key, schedule_text(schedule), tuple(texts)), len(self.packed)
            )
            self.number[target, key] = number
            if number < len(self.packed):
                continue
            packed = self._one(kernel, schedule, target, texts, key in wanted)
            if len(packed) > room:
                packed = pack(dict.fromkeys(texts, LEFT_OUT))
            room -= len(packed)
            self.packed.append(packed)

    def of(self, kernel: Kernel, target: Target) -> list[int]:
        """The numbers of the structures of a kernel's parts, each once."""
        return list(dict.fromkeys(self.number[target, kernel_digest(p)] for p in kernel.pieces))

    def _one(
        self,
        kernel: Kernel,
        schedule: Schedule,
        target: Target,
        texts: Mapping[str, Text],
        wanted: bool,
    ) -> str:
        self.schedules.append(schedule_text(schedule))
        made = {
            name: text(kernel, schedule, target) if wanted or name != ASSEMBLY else NOT_MADE
            for name, text in texts.items()
        }
        return pack(made)


def pack(texts: dict[str, str]) -> str:
    """Texts as JSON, deflated (zlib), in base64."""
    return base64.b64encode(zlib.compress(json.dumps(texts).encode(), LEVEL)).decode()
