"""What the compiler makes of some seventy programs, as committed text, on two processors.

`tests/goldens/PROCESSOR/PROGRAM.txt` has each kernel with the reasons why it ends where it does,
its whole schedule and its loop nest; a change of the compiler shows as a change of these files.

`python scripts/goldens.py` compares and prints what differs; 1 if anything does.
`python scripts/goldens.py --accept` rewrites them.
`--only WORD`: the programs whose name contains WORD. `--folder DIR`: elsewhere than in the tests.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GOLDENS = ROOT / "tests" / "goldens"
sys.path.insert(0, str(ROOT / "tests"))

from golden_programs import OPTIONS, programs, traced
from pullback.backends.host.processor import named_target
from pullback.backends.registry import named
from pullback.cli.schedule_text import read_schedule
from pullback.ir.kernel import Kernel
from pullback.ir.program import Compute, items
from pullback.ir.program import Program as Traced
from pullback.ir.signature import checks, kernel_digest
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.lower.kernel import lower
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.schedule.text import schedule_text
from pullback.schedule.verify import verify_schedule

PROCESSORS = ("x86-64-v4", "x86-64-v3")  # vectors of 64 bytes, and of 32
PLACE = re.compile(r" \([^()]*\.py:\d+\)")  # a line of a file, which says nothing here
SHOWN = 40  # lines of a difference that are printed


def rendered(name: str, program: Traced, target: Target) -> str:
    """A program for a processor: its kernels in launch order, equal ones once."""
    report = Reporter(OPTIONS)
    graphs = [item.graph for item in items(program.body) if isinstance(item, Compute)]
    kernels = [kernel for graph in graphs for kernel in fuse_graph(graph, target, report)]
    names: dict[Any, str] = {}
    parts = [f"# {name}: {len(kernels)} kernels for {target.name}"]
    for kernel in kernels:
        for piece in kernel.pieces:
            key = kernel_digest(piece), checks(piece)
            if key in names:
                parts.append(f"kernel {piece.name}: as {names[key]}")
                continue
            names[key] = piece.name
            parts.append(_piece(piece, target))
        if len(kernel.pieces) > 1:
            parts.append(f"kernel {kernel.name}: {', '.join(p.name for p in kernel.pieces)}")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _piece(kernel: Kernel, target: Target) -> str:
    """One kernel with its schedule and its nest."""
    schedule = named("llvm").start(kernel, target)
    nest = show(lower(kernel, schedule))
    verify_schedule(kernel, schedule, "schedule")
    text = schedule_text(schedule)
    if read_schedule(text, kernel) != schedule:
        raise SystemExit(f"{kernel.name}: a schedule is not what its text says:\n{text}")
    return "\n".join([show(kernel).rstrip(), "schedule", text, PLACE.sub("", nest)])


def files(only: str = "", exact: bool = False) -> Iterator[tuple[str, str]]:
    """The path of each golden below its folder, and what it should hold."""
    for name, make in programs().items():
        if name != only if exact else only not in name:
            continue
        program = traced(make())
        for processor in PROCESSORS:
            path = f"{processor}/{name.replace(' ', '-')}.txt"
            yield path, rendered(name, program, named_target(processor))


def difference(path: str, old: str | None, new: str) -> str:
    """The lines that differ, as a patch; "" where none does."""
    if old == new:
        return ""
    if old is None:
        return f"{path} is new"
    pair = (old.splitlines(), new.splitlines())
    lines = list(difflib.unified_diff(*pair, f"a/{path}", f"b/{path}", lineterm="", n=2))
    rest = [f"... {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    return "\n".join(lines[:SHOWN] + rest)


def compared(folder: Path, only: str, exact: bool = False) -> tuple[list[str], int]:
    """What differs from the files of a folder, and how many files there should be."""
    made = dict(files(only, exact))
    changed = []
    for path, text in made.items():
        kept = folder / path
        changed.append(difference(path, kept.read_text() if kept.exists() else None, text))
    if not only:
        known = {str(p.relative_to(folder)) for p in folder.glob("*/*.txt")}
        changed += [f"{path} is of no program" for path in sorted(known - set(made))]
    return [text for text in changed if text], len(made)


def accept(folder: Path, only: str) -> int:
    """Write the files; those of no program go. How many there are."""
    made = dict(files(only))
    if not only:
        for path in folder.glob("*/*.txt"):
            if str(path.relative_to(folder)) not in made:
                path.unlink()
    for path, text in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return len(made)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=GOLDENS)
    given = parser.parse_args(arguments)
    if given.accept:
        print(f"{accept(given.folder, given.only)} files in {given.folder}")
        return 0
    changed, count = compared(given.folder, given.only)
    print("\n\n".join(changed) or f"{count} files are as committed")
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
