"""Renders some forty small programs to kernel text, so that a change shows what it changed.

`python scripts/replay.py DIR` writes a file for each program.
`python scripts/replay.py DIR --against OLD` lists which differ from those in OLD; 1 if any.
`--only WORD` renders the programs whose name contains WORD.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import pullback as pb
from pullback.config import Options
from pullback.ir.program import Compute, items
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from small_programs import PROGRAMS, Make

# What is rendered must not depend on the machine: a fixed target, and nothing is compiled.
OPTIONS = Options(backend="reference", threads=2, cache=None)
TARGET = Target()
KIND = "float32"


def render(name: str, make: Make) -> str:
    """The program as traced, then its kernels in launch order."""
    function, arguments = make(KIND)
    jitted = pb.jit(function, options=OPTIONS)
    jitted(*arguments)
    program = jitted.program.program
    graphs = [item.graph for item in items(program.body) if isinstance(item, Compute)]
    report = Reporter(OPTIONS)
    kernels = [kernel for graph in graphs for kernel in fuse_graph(graph, TARGET, report)]
    parts = [f"# {name}: {len(kernels)} kernels", show(program)]
    parts += [show(kernel) for kernel in kernels]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def file_name(name: str) -> str:
    return name.replace(" ", "-") + ".txt"


def differences(folder: Path, old: Path) -> list[str]:
    """A line for each program that was added, removed or changed."""
    new_names = {p.name for p in folder.glob("*.txt")}
    old_names = {p.name for p in old.glob("*.txt")}
    found = [f"added    {n}" for n in sorted(new_names - old_names)]
    found += [f"removed  {n}" for n in sorted(old_names - new_names)]
    for name in sorted(new_names & old_names):
        before, after = (d / name for d in (old, folder))
        if before.read_text() != after.read_text():
            heads = [p.read_text().split("\n", 1)[0].split(": ")[-1] for p in (before, after)]
            found.append(f"changed  {name}: {heads[0]} -> {heads[1]}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, make in PROGRAMS.items():
        if given.only in name:
            (given.folder / file_name(name)).write_text(render(name, make))
            count += 1
    print(f"{count} programs in {given.folder}")
    if given.against is None:
        return 0
    found = differences(given.folder, given.against)
    print("\n".join(found) or "nothing changed")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
