"""Schedules of a kernel's launches as text, a line each, and read back.

``0 product dots: 64 x 64, 32 at once; 4 warps, 3 stages; groups of 8, parts 1; tf32, by pointers``

What was measured to be faster than the cheapest says so behind a `#`.
"""

from __future__ import annotations

from math import prod

from pullback.backends.triton import atomics
from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.choose import both
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.plan import Chooser, Scheduled, scheduled, units
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule, parsed
from pullback.errors import OptionError
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel

NOTE = "  #"


def schedules_text(kernel: Kernel, choose: Chooser) -> str:
    """A line for each launch; of accumulating writes one more says why they are done so."""
    lines: list[str] = []
    every = [(asked, *pair) for asked, pairs in units(kernel, choose) for pair in pairs]
    for n, (asked, group, schedule) in enumerate(every):
        lines.append(f"{head(n, group)}: {schedule}{_noted(choose.known(asked), schedule)}")
        if group.way is Way.SCATTER:
            lines.append(f"# {reason(group, schedule, choose)}")
    return "\n".join(lines)


def reason(group: Group, schedule: BlockSchedule, choose: Chooser) -> str:
    """``atomic additions: 1,048,576 terms to 50,000 places, 40x cheaper than owners``."""
    (stage,) = group.stages
    against, own = atomics.refused(stage, choose.deterministic), atomics.owners(stage)
    if against is not None and not schedule.atomic:
        return f"owners: {against}"
    work = Work.of(own, choose.gpu)
    apart, spread = (work.price(s).ns for s in both(own, choose.gpu))
    count = prod(map(upper, atomics.form_of(stage).domain))
    where = f"{count:,} terms to {atomics.places(stage):,} places"
    if schedule.atomic:
        ratio = apart / work.price(schedule).ns
        what = f"atomic {atomics.WORDS[atomics.form_of(stage).combiner.name]}"
        return f"{what}: {where}, {ratio:.1f}x cheaper than owners"
    return f"owners: {where}, {spread / work.price(schedule).ns:.1f}x cheaper than atomics"


def _noted(known: tuple[str, str] | None, schedule: BlockSchedule) -> str:
    """Where a schedule is from that was measured."""
    text, source = known or ("", "")
    return f"{NOTE} measured: {source}" if text == str(schedule) else ""


def prices_text(kernel: Kernel, choose: Chooser, gpu: Gpu) -> str:
    """What each launch costs, by parts; their sum where they are several."""
    pairs = scheduled(kernel, choose)
    prices = [Work.of(group, gpu).price(schedule) for group, schedule in pairs]
    lines = [f"{head(n, g)}: {p}" for n, ((g, _), p) in enumerate(zip(pairs, prices, strict=True))]
    for n, (group, schedule) in enumerate(pairs):
        if group.way is Way.SCATTER:
            lines[n] += f"; {reason(group, schedule, choose)}"
    if len(pairs) > 1:
        lines.append(f"all: {sum(p.ns for p in prices) / 1e3:.2f} us")
    return "\n".join(lines)


def read_back(kernel: Kernel, text: str, gpu: Gpu) -> list[Scheduled]:
    """The launches of a kernel by schedules as `schedules_text` writes them, or edited.

    Raises: OptionError for what is no schedule, is another kernel's, or the GPU does not take.
    """
    lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
    asked = iter(lines)
    number = 0

    def choose(group: Group) -> BlockSchedule:
        nonlocal number
        line, own = next(asked, ""), head(number, group)
        number += 1
        before, colon, after = line.partition(": ")
        if not colon or before != own:
            raise OptionError(f"{line!r}, wanted is the launch {own!r}", code="E383")
        schedule = parsed(after.partition(NOTE)[0])
        against = Work.of(group, gpu).refusal(schedule)
        if against is not None:
            help_ = f"a smaller block, or pointers, for {gpu.about}"
            raise OptionError(f"{own}: {against}", help=help_, code="E381")
        return schedule

    made = scheduled(kernel, Chooser(gpu, by_hand=choose))
    if number < len(lines):
        raise OptionError(f"{lines[number]!r}: there is no such launch", code="E383")
    return made


def head(number: int, group: Group) -> str:
    """Which launch it is, how it is computed, and what it makes."""
    return f"{number} {group.way.value} {', '.join(s.target.name for s in group.stages)}"
