"""Random index maps and random programs, checked by brute force and by every mode of derivative.

`python scripts/fuzz.py [--KIND N].. [--start SEED] [--jobs N] [--interpreted]`

Each number is one program of its kind, the same in every run. Fails with the number and the
definitions of what was wrong. `--jobs` processes share the work. The kinds:

    maps      index maps: the adjoint by enumeration
    programs  definitions: forward, in both modes and twice (dot products, differences), compiled
              and compared with the interpreter
    control   control forms in control forms, with derivatives, of samples: dual numbers, unrolled
    recurrences  tensors that read themselves: loops over cells, differences
    layers    layers and functions of `nn.functional`: compiled, interpreted, PyTorch's
    schedules  legal schedules of kernels: their definitions' results, the compiler's own bits

What the programs of the last four had is counted at the end, in shares of all that were compared.
Another kind is a function of its numbers in `KINDS`; `each` makes one of a check of one number.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from random_control import check_control
from random_layers import check_layers
from random_programs import Checked, check_map, check_native, check_program
from random_recurrences import check_recurrence
from random_schedules import check_schedule

TOGETHER = 10  # programs compiled as one
SHOWN = 20  # numbers between two signs of life

FEW = 16  # of a group: so many names are told with their shares, more with their counts


@dataclass
class Outcome:
    """What went wrong, and how many programs had what."""

    wrong: list[str]
    counts: Counter[str] = field(default_factory=Counter)


Check = Callable[[Sequence[int]], Outcome]


def each(
    name: str, check: Callable[[int, str], Sequence[str]], backend: str, seeds: Sequence[int]
) -> Outcome:
    """What went wrong in programs that `check` looks at one by one, on a backend.

    `check` gives labels, "compared" among them where there was something to compare; a fault of
    any kind is told, and the run goes on.
    """
    began, wrong, counts = time.perf_counter(), [], Counter[str]()
    for number, seed in enumerate(seeds):
        try:
            labels = set(check(seed, backend))
            kept = labels if "compared" in labels else labels & {"refused", "jumps"}
            counts.update(kept)
        except Exception as problem:
            wrong.append(f"{name} {seed}: {type(problem).__name__}: {problem}")
            print(f"\n{wrong[-1]}", flush=True)
        if number % SHOWN == 0:
            print(f"{name} {seed}, {len(wrong)} wrong", end="\r", flush=True)
    spent = time.perf_counter() - began
    print(
        f"{len(seeds)} of {name}, {counts['compared']} compared, {len(wrong)} wrong, {spent:.0f} s",
        flush=True,
    )
    return Outcome(wrong, counts)


def control(backend: str, seeds: Sequence[int]) -> Outcome:
    """What went wrong in nested control forms."""
    return each("control", check_control, backend, seeds)


def recurrences(backend: str, seeds: Sequence[int]) -> Outcome:
    """What went wrong in tensors that read themselves."""

    def check(seed: int, backend: str) -> Sequence[str]:
        return ("compared",) * check_recurrence(seed, backend)

    return each("recurrences", check, backend, seeds)


def layers(backend: str, seeds: Sequence[int]) -> Outcome:
    """What went wrong in layers one after another."""
    return each("layers", check_layers, backend, seeds)


def schedules(backend: str, seeds: Sequence[int]) -> Outcome:
    """What went wrong in kernels that run by other schedules."""
    return each("schedules", check_schedule, backend, seeds)


def maps(_: str, seeds: Sequence[int]) -> Outcome:
    """What went wrong, with a line that says how the adjoints were had."""
    began, wrong, scatters, worst = time.perf_counter(), [], 0, 0.0
    for seed in seeds:
        try:
            found = check_map(seed)
        except Exception as problem:  # a fault of any kind is found, and the run goes on
            wrong.append(f"map {seed}: {type(problem).__name__}: {problem}")
            continue
        scatters += found.scatters
        worst = max(worst, found.ratio)
    print(
        f"{len(seeds)} maps, {len(wrong)} wrong, {scatters} accumulate, at most {worst:.1f} times"
        f" the work of the read, {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return Outcome(wrong)


def programs(backend: str, seeds: Sequence[int]) -> Outcome:
    """What went wrong; on native code too, unless the backend is the interpreter."""
    began, wrong, compiled = time.perf_counter(), [], backend == "llvm"
    waiting: list[Checked] = []
    for seed in seeds:
        try:
            waiting.append(check_program(seed))
        except Exception as problem:  # a fault of any kind is found, and the run goes on
            wrong.append(f"program {seed}: {type(problem).__name__}: {problem}")
        if len(waiting) == TOGETHER or seed == seeds[-1]:
            wrong += native(waiting) if compiled else []
            waiting = []
            print(f"program {seed}, {len(wrong)} wrong", end="\r", flush=True)
    spent = time.perf_counter() - began
    print(f"{len(seeds)} programs, {len(wrong)} wrong, {spent:.0f} s", flush=True)
    return Outcome(wrong)


def native(checked: list[Checked]) -> list[str]:
    """What compiled code gives otherwise; a program that does not compile is found alone."""
    try:
        return check_native(checked)
    except Exception as problem:
        if len(checked) == 1:
            return [f"program {checked[0].seed}: {type(problem).__name__}: {problem}"]
        return [w for c in checked for w in native([c])]


KINDS: dict[str, Callable[[str, Sequence[int]], Outcome]] = {
    "maps": maps,
    "programs": programs,
    "control": control,
    "recurrences": recurrences,
    "layers": layers,
    "schedules": schedules,
}


def shared(check: Check, seeds: Sequence[int], jobs: int) -> Outcome:
    """`check` of all seeds, every process a part of them."""
    parts = [p for n in range(jobs) if (p := seeds[n::jobs])]
    if len(parts) < 2:
        outcomes = [check(p) for p in parts]
    else:
        with multiprocessing.get_context("spawn").Pool(len(parts)) as pool:
            outcomes = pool.map(check, parts)
    wrong = [w for outcome in outcomes for w in outcome.wrong]
    return Outcome(wrong, sum((outcome.counts for outcome in outcomes), Counter()))


def covered(kind: str, count: int, outcome: Outcome) -> str:
    """What the programs had: a line for each group of labels, in shares of those compared."""
    counts = outcome.counts
    compared = counts["compared"]
    if not compared:
        return ""
    groups: dict[str, list[tuple[str, int]]] = {}
    for label, times in counts.most_common():
        group, colon, name = label.partition(": ")
        if colon:
            groups.setdefault(group, []).append((name, times))
    skipped = ", ".join(f"{counts[k]} {k}" for k in ("refused", "jumps") if counts[k])
    lines = [
        f"{kind}: {count} programs, {compared} compared, {len(outcome.wrong)} wrong; {skipped}"
    ]
    for group, names in groups.items():
        if len(names) <= FEW:
            told = ", ".join(f"{name} {100 * times / compared:.1f} %" for name, times in names)
        else:
            told = f"{len(names)}: " + ", ".join(f"{name} {times}" for name, times in names)
        lines.append(f"  {group}: {told}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--interpreted", action="store_true", help="compile no program")
    given = parser.parse_args()
    backend, wrong = "reference" if given.interpreted else "llvm", []
    for kind, check in KINDS.items():
        seeds = range(given.start, given.start + getattr(given, kind))
        outcome = shared(partial(check, backend), seeds, given.jobs)
        print(covered(kind, len(seeds), outcome), end="\n" if outcome.counts["compared"] else "")
        wrong += outcome.wrong
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
