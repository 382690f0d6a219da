"""pullback beside PyTorch, torch.compile, JAX and NumPy on the same work: a Markdown table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from suite import limits, measure, model, regress, table
from suite.classes import CLASSES, Class
from suite.measure import PEERS, SOURCE, Run, Setting
from suite.table import Row
from suite.worker import CLOCKS
from suite.workload import Workload

ROOT = Path(__file__).parent.parent.parent
DRAWN = 5  # sizes of each class that come from the seed


def main() -> None:
    options = arguments().parse_args()
    if options.model:
        only = options.only[0] if options.only else ""
        model.report(options.seed, options.kernels, only, options.out)
        return
    chosen = select(options.only)
    if options.list:
        names = {name: [w.name for w in workloads] for name, workloads in chosen.items()}
        for name, workloads in names.items():
            print(f"{name}:", *(f"  {w}" for w in workloads), sep="\n")
        if options.out:
            Path(options.out).write_text(json.dumps(names))
        return
    earlier = recorded(options.against)
    with source(options.before) as before:
        runs = measured(chosen, settings(options, before), options)
    if options.out:
        Path(options.out).write_text(json.dumps(runs, indent=1))
    if earlier is not None:
        sys.exit(held(earlier, runs, options.tolerance))


def recorded(path: str) -> dict[str, Any] | None:
    """The runs of an earlier `--out`, read before anything is measured; None for no path."""
    try:
        return regress.load(path) if path else None
    except ValueError as error:
        fail(f"--against {error}")


def held(earlier: dict[str, Any], runs: dict[str, Any], tolerance: float) -> int:
    """Tell each row that has become slower; the exit code."""
    count, slower = regress.compared(earlier, runs, tolerance)
    if not count:
        fail("--against: no row of it was measured, by this clock and on as many threads")
    print(f"\n{count} rows beside the earlier ones, {len(slower)} slower by more than", end=" ")
    print(f"{tolerance:g} %", *slower, sep="\n")
    return 1 if slower else 0


def measured(
    chosen: dict[str, tuple[Workload, ...]], setting: Setting, options: argparse.Namespace
) -> dict[str, Any]:
    """Print the tables; every run, by class and workload."""
    roof = limits.measured(setting.threads, CLOCKS[setting.clock])
    load = f"load {os.getloadavg()[0]:.1f} at the start"
    print(f"{machine()}, {load}\n\n{described(roof)}\n", flush=True)
    lines = [table.SUMMARY]
    runs: dict[str, Any] = {}
    sizes = options.sizes or ("fixed" if options.quick else "both")
    for name, workloads in chosen.items():
        kind = CLASSES[name]
        fixed = workloads if sizes != "drawn" else ()
        whole = workloads == kind.workloads and sizes != "fixed"
        drawn = drawn_of(name, options.seed) if whole else ()
        found = Report(name, kind, setting, roof, runs)
        fixed_rows, drawn_rows = found.rows("", fixed), found.rows(", drawn sizes", drawn)
        if kind.kind == "cold" and fixed:
            found.warm_starts()
        lines += summary(name, kind, fixed_rows, drawn_rows, setting.peers)
    print("## Classes\n", *lines, sep="\n")
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return runs


@contextmanager
def source(commit: str) -> Iterator[str]:
    """The source of a checkout, or of a commit, which is unpacked beside; "" for none."""
    if not commit or (Path(commit) / "src" / "pullback").is_dir():
        yield str(Path(commit).resolve() / "src") if commit else ""
        return
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "source.tar"
        command = ["git", "-C", str(ROOT), "archive", "-o", str(packed), commit, "src"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            fail(f"--before {commit}: {done.stderr.strip() or 'git failed'}")
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        yield str(Path(folder) / "src")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pullback bench", description=__doc__)
    names = ", ".join(CLASSES)
    only = f"a class or a part of a workload's name, may be repeated; classes: {names}"
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=only)
    peers = ",".join(Setting.peers)
    parser.add_argument("--peers", default=peers, help="of %(default)s")
    older = (
        "a commit or a checkout of pullback: the only peer, alone on a thread, by processor time"
    )
    parser.add_argument("--before", metavar="COMMIT", default="", help=older)
    others = "names, with commas between: pullback by these is beside that by the default one"
    parser.add_argument("--backends", metavar="NAMES", default="", help=others)
    parser.add_argument("--rounds", type=int, help="7, with --quick 3")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn sizes")
    parser.add_argument("--quick", action="store_true", help="fewer modes, fixed sizes")
    busy = "one thread, by processor time: for a machine that does other work"
    parser.add_argument("--busy", action="store_true", help=busy)
    parser.add_argument("--out", metavar="FILE", help="for every time of every process, as JSON")
    parser.add_argument("--jax", metavar="PYTHON", default=sys.executable, help="one that has JAX")
    earlier = "what --out wrote: exit code 1 where a row of ours is slower than there"
    parser.add_argument("--against", metavar="FILE", default="", help=earlier)
    slack = "percent that it may be slower by, %(default)g"
    parser.add_argument("--tolerance", type=float, default=regress.TOLERANCE, help=slack)
    known = ("fixed", "drawn", "both")
    parser.add_argument("--sizes", choices=known, help="both, with --quick the fixed ones")
    kept = "keeps what is compiled for warm rows: the next run starts sooner"
    parser.add_argument("--cache", metavar="FOLDER", default="", help=kept)
    priced = "prices of kernels that the seed draws, beside their times"
    parser.add_argument("--model", action="store_true", help=priced)
    parser.add_argument("--kernels", type=int, default=model.COUNT, help="of --model")
    parser.add_argument("--list", action="store_true", help="name the workloads, run nothing")
    return parser


def settings(options: argparse.Namespace, before: str = "") -> Setting:
    """What is measured, and how; pullback beside itself on one thread, by processor time."""
    backends = options.backends.split(",") if options.backends else []
    own = {name: {"PULLBACK_BACKEND": name} for name in backends}
    if before:
        own["before"] = {SOURCE: before}
    if own:
        options.peers, options.busy = ",".join(own), True
    peers = tuple(options.peers.split(",")) if options.peers else ()
    unknown = [p for p in peers if p not in PEERS and p not in own]
    if unknown:
        fail(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    rounds = options.rounds or (3 if options.quick else 7)
    pythons = {"jax": options.jax}
    found = Setting(rounds, options.quick, peers, pythons, cache=options.cache, own=own)
    return dataclasses.replace(found, threads=(1,), clock="processor") if options.busy else found


def select(only: Sequence[str]) -> dict[str, tuple[Workload, ...]]:
    """The workloads that are asked for, by class."""
    found: dict[str, tuple[Workload, ...]] = {}
    for name, kind in CLASSES.items():
        chosen = kind.workloads
        if only and name not in only:
            chosen = tuple(w for w in chosen if any(part in w.name for part in only))
        if chosen:
            found[name] = chosen
    if not found:
        fail(f"no class or workload {' '.join(only)!r}; --list names them")
    return found


def fail(message: str) -> NoReturn:
    """A mistake of the user's."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def drawn_of(name: str, seed: int) -> tuple[Workload, ...]:
    """Workloads of a class at other sizes: the same ones whatever else is measured."""
    kind = CLASSES[name]
    if kind.kind != "warm":
        return ()
    rng = np.random.default_rng(seed + list(CLASSES).index(name))
    able = [w for w in kind.workloads if w.ranges]
    picks = rng.choice(len(able), DRAWN, replace=len(able) < DRAWN)
    return tuple(able[n].drawn(rng) for n in picks)


@dataclasses.dataclass
class Report:
    """Measures the workloads of a class and prints a row for each when it is done."""

    name: str
    kind: Class
    setting: Setting
    roof: limits.Limits
    runs: dict[str, Any]

    def rows(self, title: str, workloads: Sequence[Workload]) -> list[Row]:
        if not workloads:
            return []
        peers = self.setting.peers
        unit = table.bytes_of if self.kind.kind == "memory" else table.time_of
        print(f"## {self.name}{title}\n\n{table.heading(peers)}")
        found = []
        for w in workloads:
            runs = self.measured(w)
            row = table.row(w.name, runs, peers, w.tolerance, self.limit(w), self.figure)
            found.append(row)
            print(table.line(row, peers, unit), flush=True)
            self.runs.setdefault(self.name, {})[w.name] = [dataclasses.asdict(r) for r in runs]
        print()
        return found

    def measured(self, w: Workload) -> list[Run]:
        measures = {"warm": measure.warm, "cold": measure.cold, "memory": measure.memory}
        return measures[self.kind.kind](w, self.setting)

    @property
    def figure(self) -> table.Figure:
        return table.held if self.kind.kind == "memory" else table.median

    def limit(self, w: Workload) -> Any:
        if self.kind.kind != "warm":
            return lambda threads, moved: 0.0
        return lambda threads, moved: self.roof.seconds(w.flops(), moved, threads)

    def warm_starts(self) -> None:
        """The same starts when the cache has what the first one left."""
        peers = self.setting.peers
        print(f"## {self.name}, from the cache\n\n{table.heading(peers)}")
        for name, runs in self.runs[self.name].items():
            found = [Run(**r) for r in runs]
            row = table.row(name, found, peers, 1e-3, figure=lambda r: r.cold)
            print(table.line(row, peers), flush=True)
        print()


def summary(
    name: str, kind: Class, fixed: Sequence[Row], drawn: Sequence[Row], peers: Sequence[str]
) -> list[str]:
    """A line a peer; NumPy has no threshold."""
    wanted = dict(zip(("eager", "compile", "jax"), kind.wanted, strict=True))
    lines = []
    for peer in peers:
        goal = wanted.get(peer, 0.0)
        lines.append(table.summary_line(name, fixed, drawn, peer, goal, kind.worst))
    return lines


def machine() -> str:
    """The processor, by its name where Linux tells it."""
    name = platform.machine()
    path = Path("/proc/cpuinfo")
    if path.exists():
        models = [line for line in path.read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}"


def described(roof: limits.Limits) -> str:
    parts = []
    for threads, flops in roof.flops.items():
        rates = roof.bandwidth[threads].values()
        speeds = ", ".join(f"{r * 1e-9:.0f}" for r in rates)
        parts.append(f"{threads} thread(s): {flops * 1e-9:.0f} GFLOP/s, copies at {speeds} GB/s")
    sizes = ", ".join(f"{s / 2**20:g}" for s in limits.SETS)
    return "; ".join(parts) + f" (working sets of {sizes} MiB a thread)"


if __name__ == "__main__":
    main()
