"""Schedules of a kernel's launches as text, a line each, and read back.

``0 product dots: 64 x 64, 32 at once; 4 warps, 3 stages; groups of 8, parts 1; tf32, by pointers``
"""

from __future__ import annotations

from pullback.backends.triton.blocks import Group
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.plan import Chooser, Scheduled, scheduled
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule, parsed
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel


def schedules_text(kernel: Kernel, choose: Chooser) -> str:
    """A line for each launch."""
    return "\n".join(f"{head(n, g)}: {s}" for n, (g, s) in enumerate(scheduled(kernel, choose)))


def prices_text(kernel: Kernel, choose: Chooser, gpu: Gpu) -> str:
    """What each launch costs, by parts; their sum where they are several."""
    made = [(group, Work.of(group, gpu).price(s)) for group, s in scheduled(kernel, choose)]
    lines = [f"{head(n, group)}: {price}" for n, (group, price) in enumerate(made)]
    if len(made) > 1:
        lines.append(f"all: {sum(p.ns for _, p in made) / 1e3:.2f} us")
    return "\n".join(lines)


def read_back(kernel: Kernel, text: str, gpu: Gpu) -> list[Scheduled]:
    """The launches of a kernel by schedules as `schedules_text` writes them, or edited.

    Raises: OptionError for what is no schedule, is another kernel's, or the GPU does not take.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    asked = iter(lines)
    number = 0

    def choose(group: Group) -> BlockSchedule:
        nonlocal number
        line, own = next(asked, ""), head(number, group)
        number += 1
        before, colon, after = line.partition(": ")
        if not colon or before != own:
            raise OptionError(f"{line!r}, wanted is the launch {own!r}", code="E383")
        schedule = parsed(after)
        reason = Work.of(group, gpu).refusal(schedule)
        if reason is not None:
            help_ = f"a smaller block, or pointers, for {gpu.about}"
            raise OptionError(f"{own}: {reason}", help=help_, code="E381")
        return schedule

    made = scheduled(kernel, Chooser(gpu, by_hand=choose))
    if number < len(lines):
        raise OptionError(f"{lines[number]!r}: there is no such launch", code="E383")
    return made


def head(number: int, group: Group) -> str:
    """Which launch it is, how it is computed, and what it makes."""
    return f"{number} {group.way.value} {', '.join(s.target.name for s in group.stages)}"
