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

Another kind is a function of its numbers in `KINDS`; `each` makes one of a check of one number.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from random_control import check_control
from random_layers import check_layers
from random_programs import Checked, check_map, check_native, check_program
from random_recurrences import check_recurrence

TOGETHER = 10  # programs compiled as one
SHOWN = 20  # numbers between two signs of life

Check = Callable[[Sequence[int]], list[str]]


def each(
    name: str, check: Callable[[int, str], bool], backend: str, seeds: Sequence[int]
) -> list[str]:
    """What went wrong in programs that `check` looks at one by one, on a backend.

    `check` is false where there was nothing to compare; a fault of any kind is told, and the run
    goes on.
    """
    began, wrong, compared = time.perf_counter(), [], 0
    for number, seed in enumerate(seeds):
        try:
            compared += check(seed, backend)
        except Exception as problem:
            wrong.append(f"{name} {seed}: {type(problem).__name__}: {problem}")
        if number % SHOWN == 0:
            print(f"{name} {seed}, {len(wrong)} wrong", end="\r", flush=True)
    spent = time.perf_counter() - began
    print(
        f"{len(seeds)} of {name}, {compared} compared, {len(wrong)} wrong, {spent:.0f} s",
        flush=True,
    )
    return wrong


def control(backend: str, seeds: Sequence[int]) -> list[str]:
    """What went wrong in nested control forms."""
    return each("control", check_control, backend, seeds)


def recurrences(backend: str, seeds: Sequence[int]) -> list[str]:
    """What went wrong in tensors that read themselves."""
    return each("recurrences", check_recurrence, backend, seeds)


def layers(backend: str, seeds: Sequence[int]) -> list[str]:
    """What went wrong in layers one after another."""
    return each("layers", check_layers, backend, seeds)


def maps(_: str, seeds: Sequence[int]) -> list[str]:
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
    return wrong


def programs(backend: str, seeds: Sequence[int]) -> list[str]:
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
    return wrong


def native(checked: list[Checked]) -> list[str]:
    """What compiled code gives otherwise; a program that does not compile is found alone."""
    try:
        return check_native(checked)
    except Exception as problem:
        if len(checked) == 1:
            return [f"program {checked[0].seed}: {type(problem).__name__}: {problem}"]
        return [w for c in checked for w in native([c])]


KINDS: dict[str, Callable[[str, Sequence[int]], list[str]]] = {
    "maps": maps,
    "programs": programs,
    "control": control,
    "recurrences": recurrences,
    "layers": layers,
}


def shared(check: Check, seeds: Sequence[int], jobs: int) -> list[str]:
    """`check` of all seeds, every process a part of them."""
    parts = [p for n in range(jobs) if (p := seeds[n::jobs])]
    if len(parts) < 2:
        return [w for p in parts for w in check(p)]
    with multiprocessing.get_context("spawn").Pool(len(parts)) as pool:
        return [w for found in pool.map(check, parts) for w in found]


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
        wrong += shared(partial(check, backend), seeds, given.jobs)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
