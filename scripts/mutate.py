"""Plants faults, one at a time, and checks that the suite catches each.

`python scripts/mutate.py [--jobs N] [--area AREA] [NAME ..]`: a copy of the tree is changed in one
place, the tests named by the fault run against the copy until one fails, and a fault that leaves
them green fails the run. AREA is a file of `faults/`. Each line tells the test that caught the
fault and the seconds it took: a fault whose first failing case comes late names that case
(`tests/test_x.py::test_y[case]`), and the whole takes less.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FAULTS = Path(__file__).with_name("faults")
TIMEOUT = 600  # seconds a fault
IGNORED = (".git", "__pycache__", ".*_cache", ".venv")


@dataclass(frozen=True, slots=True)
class Fault:
    """Each `old`, which must occur exactly once in `file`, becomes its `new`; `tests` must then
    fail. There are several where one guard stands for another: both go.
    """

    area: str
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def planted(self, clean: str) -> str:
        """`clean` with the fault. Raises: ValueError where a text is not there exactly once."""
        for old, new in self.edits:
            if clean.count(old) != 1:
                raise ValueError(f"{self.name}: {clean.count(old)} places match in {self.file}")
            clean = clean.replace(old, new)
        return clean


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a fault was caught, by what, and the seconds of its tests."""

    caught: bool
    by: str
    seconds: float


def load() -> list[Fault]:
    """The faults of `faults/*.toml`, a file an area."""
    tables = [(p.stem, tomllib.loads(p.read_text())) for p in sorted(FAULTS.glob("*.toml"))]
    return [
        Fault(area, name, row["file"], edits(row), tuple(row["tests"]))
        for area, table in tables
        for name, row in table.items()
    ]


def edits(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What `old` and `new` say, each a text or as many texts as the other."""
    olds, news = ([v] if isinstance(v, str) else v for v in (row["old"], row["new"]))
    return tuple(zip(olds, news, strict=True))


def chosen(names: list[str], areas: list[str]) -> list[Fault]:
    """The faults of these names and areas; all where neither is given.

    Raises: SystemExit where a name or an area is unknown.
    """
    faults = load()
    unknown = (set(names) - {f.name for f in faults}) | (set(areas) - {f.area for f in faults})
    if unknown:
        raise SystemExit(f"no fault or area is named {', '.join(sorted(unknown))}")
    if not names and not areas:
        return faults
    return [f for f in faults if f.name in names or f.area in areas]


def judged(fault: Fault, copy: Path) -> Verdict:
    """What the tests say with the fault planted in `copy`, which is restored after."""
    path = copy / fault.file
    clean = path.read_text()
    path.write_text(fault.planted(clean))
    start = time.monotonic()
    try:
        caught, by = tested(fault.tests, copy)
    finally:
        path.write_text(clean)
    return Verdict(caught, by, time.monotonic() - start)


def tested(tests: tuple[str, ...], copy: Path) -> tuple[bool, str]:
    """Whether one of `tests` fails in `copy`, and which."""
    env = os.environ | {"PYTHONPATH": str(copy / "src"), "PULLBACK_CACHE": "off"}
    options = ["-x", "-q", "-rfE", "-n", "0", "-p", "no:cacheprovider", "-m", ""]  # slow ones too
    # -x beside workers gives 2, hence none.
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return True, f"no end within {TIMEOUT} s"
    if done.returncode < 0:
        return True, f"the process died of signal {-done.returncode}"
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    # 1: a test failed. Anything else is no verdict.
    return done.returncode == 1, failed[1] if failed else f"pytest ended with {done.returncode}"


def run(faults: list[Fault], jobs: int) -> list[str]:
    """Plants `faults`, `jobs` at a time, prints a line for each; the names of those not caught."""
    missed = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            copy = Path(folder) / str(number) / "tree"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*IGNORED))
            copies.put(copy)

        def plant(fault: Fault) -> Verdict:
            copy = copies.get()
            try:
                return judged(fault, copy)
            finally:
                copies.put(copy)

        for fault, verdict in zip(faults, pool.map(plant, faults), strict=True):
            word = "caught" if verdict.caught else "MISSED"
            print(f"{word} {verdict.seconds:4.0f} s  {fault.name}  ({verdict.by})", flush=True)
            if not verdict.caught:
                missed.append(fault.name)
    return missed


def main() -> int:
    """The command; 1 where a fault was not caught."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault (default: all)")
    parser.add_argument("--area", action="append", default=[], help="all faults of a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies at once")
    args = parser.parse_args()
    faults = chosen(args.names, args.area)
    start = time.monotonic()
    missed = run(faults, args.jobs)
    seconds = time.monotonic() - start
    print(f"{len(faults) - len(missed)} of {len(faults)} faults caught in {seconds:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
