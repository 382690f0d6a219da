"""Plants faults, one at a time, and checks that the suite catches each.

`python scripts/mutate.py [NAME ..]`: a copy of the tree is changed in one place, the tests named by
the fault run against the copy, and a fault that leaves them green fails the run. As many copies at
once as there are cores.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAULTS = Path(__file__).with_name("faults")
TIMEOUT = 600  # seconds a fault
JOBS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Fault:
    """`old`, which must occur exactly once in `file`, becomes `new`; `tests` must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def load() -> list[Fault]:
    """The faults of `faults/*.toml`, a file an area."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(FAULTS.glob("*.toml"))]
    return [
        Fault(name, row["file"], row["old"], row["new"], tuple(row["tests"]))
        for table in tables
        for name, row in table.items()
    ]


def caught(fault: Fault, copy: Path) -> bool:
    """Whether the tests fail with the fault planted in `copy`, which is restored after.

    Raises: ValueError where the text to change is not there exactly once.
    """
    path = copy / fault.file
    clean = path.read_text()
    if clean.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {clean.count(fault.old)} places match in {fault.file}")
    path.write_text(clean.replace(fault.old, fault.new))
    env = os.environ | {"PYTHONPATH": str(copy / "src"), "PULLBACK_CACHE": "off"}
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]  # -x beside workers exits with 2
    command = [sys.executable, "-m", "pytest", *options, *fault.tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(clean)
    # 1: a test failed; negative: the process died of it. Anything else is no verdict.
    return done.returncode == 1 or done.returncode < 0


def main() -> int:
    wanted = set(sys.argv[1:])
    faults = [f for f in load() if not wanted or f.name in wanted]
    unknown = wanted - {f.name for f in faults}
    if unknown:
        raise SystemExit(f"no fault is named {', '.join(sorted(unknown))}")
    missed = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(JOBS):
            copy = Path(folder) / str(number) / "tree"
            ignore = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".venv")
            shutil.copytree(ROOT, copy, ignore=ignore)
            copies.put(copy)

        def plant(fault: Fault) -> bool:
            copy = copies.get()
            try:
                return caught(fault, copy)
            finally:
                copies.put(copy)

        for fault, found in zip(faults, pool.map(plant, faults), strict=True):
            print(f"{'caught' if found else 'MISSED':7} {fault.name}", flush=True)
            if not found:
                missed.append(fault.name)
    print(f"{len(faults) - len(missed)} of {len(faults)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
