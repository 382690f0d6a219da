"""More tasks, in smaller tiles, where a machine has more cores than schedules are made for; fewer
where each of them goes through all places.

``1024 x 1024, 16 cores: 2 tasks over tiles of (512, 1024)  ->  (tasks, 16), (tile.0, 64)``
``64 columns added at 200,000 places: 2 tasks over tiles of (32)  ->  (tasks, 1), (tile.0, 64)``
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.cost.facts import elements
from pullback.ir.graph import Accumulate
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import with_numbers
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.cost import longest
from pullback.schedule.schedule import Schedule
from pullback.schedule.slots import tile_counts


def for_cores(kernel: Kernel, target: Target, chosen: Choices) -> Choices:
    """`chosen`, and tasks and tiles where others take less time on the cores of the machine, in the
    geometric mean over 1, 2, 4 .. threads: which of them a program is given is known when it runs.

    Each number of tasks is tried as the schedule of a machine that deals work to so many: more than
    schedules are made for, where there are more cores. Fewer of what adds to places that are data:
    each task goes through all of them, and waits for a part of a row at each. Such sums have their
    order in any number of tasks, so a program that says its threads has the best for those.
    """
    launch = target.profile.tables["launch"]
    written = any(isinstance(s.form, Accumulate) for s in kernel.every)
    many = launch["processors"] > launch["tasks"]
    if kernel.tiling is not None or not (many or written):
        return chosen
    made = scheduled(kernel, target, chosen)
    ns = price(kernel, made, target, ROUGH).ns
    if ns < target.profile.rate("whole", "parallel_sweep"):
        return chosen
    cores = int(launch["processors" if many else "threads"])
    asked = 0 if any(s.partial for s in kernel.every) else int(launch.get("given", 0))
    threads = [asked] if asked and written else [1 << n for n in range(cores.bit_length())]
    most = made.tasks - 1 if written else min(cores, int(ns / target.profile.rate("whole", "task")))
    counts = [1 << n for n in range(most.bit_length()) if written or 1 << n > made.tasks]
    others = _ways(kernel, target, chosen, counts)
    times = {}
    for given in (*others, chosen) if written else (chosen, *others):  # from the fewest tasks on
        way = scheduled(kernel, target, given)
        ns = price(kernel, way, target, ROUGH).ns
        times[given] = prod(on_threads(kernel, way, target, ns, n) for n in threads)
    enough = min(times.values()) * (launch["gain"] ** len(threads) if written else 1.0)
    return next(given for given, time in times.items() if time <= enough)


def _ways(
    kernel: Kernel, target: Target, chosen: Choices, counts: Iterable[int]
) -> Iterator[Choices]:
    """Choices that give so many tasks each. Blocks of large products have fewer rows for more."""
    rows, eight = (target.profile.rate(*name) for name in (("block", "rows"), ("launch", "tasks")))
    for tasks in counts:
        many = with_numbers(target.profile, "launch", tasks=tasks, partial_tasks=tasks)
        many = with_numbers(many, "block", rows=max(1.0, rows * eight // max(eight, tasks)))
        made = scheduled(kernel, replace(target, machine=many), chosen)
        tiles = {f"tile.{axis}": extent for axis, extent in enumerate(made.tile)}
        yield choices_of({**dict(chosen), **tiles, "tasks": made.tasks})


def on_threads(
    kernel: Kernel, schedule: Schedule, target: Target, ns: float, threads: int
) -> float:
    """Predicted time on so many threads of what takes one `ns`: each takes the next task when it is
    done; then one adds the sums that tasks have of their own.
    """
    machine = target.profile
    tiles, tasks = prod(tile_counts(kernel, schedule.tile)), schedule.tasks
    sums = sum(elements(s.shape) * s.body.dtype.itemsize for s in kernel.stages if s.partial)
    joined = tasks * sums / machine.rate("whole", "near")
    own = max(0.0, ns - joined) * longest(tiles, tasks, threads)
    return own + joined + (machine.rate("launch", "fork") if min(threads, tasks) > 1 else 0.0)
