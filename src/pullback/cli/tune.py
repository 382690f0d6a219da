"""`pullback tune`: schedules by measured time, kept for the next compilation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import click
import numpy as np

from pullback.backends.base import Compiler, Launched
from pullback.backends.host.pool import pools
from pullback.backends.registry import compiler, named
from pullback.cli.command import Misuse, Output, command
from pullback.cli.programs import environment, function_at, of_definition, programs_of
from pullback.cli.shapes import TYPED, shapes_of, size_of
from pullback.config import Options
from pullback.errors import LIBRARY
from pullback.ir.kernel import Kernel
from pullback.runtime.executable import Executable
from pullback.runtime.tuned import FILE, Chooser, Key, Records, Tuned, read, write
from pullback.tensor.run.program import Jit
from pullback.tensor.run.tune import Outcome, kernels_of
from pullback.tensor.run.tuning import benches, launches, origin, record_of, shares

BUDGET = 60.0  # seconds
SEARCHES = {
    "beam": ("beam",),
    "random": ("random",),
    "price": ("price",),
    "both": ("beam", "random"),
    "all": ("beam", "random", "price"),
}

EXAMPLE = """\
pullback tune train.py --budget 120
pullback tune "c[i, j] = sum[k](a[i, k] * b[k, j])" --shape a=64,500 --shape b=500,300
pullback tune my_module:my_function --shape x=32,100 --search both
pullback tune train.py --backend triton-cuda --save mine.json
pullback tune --merge theirs.json more.json"""


def merged(files: Iterable[Mapping[Key, Tuned]]) -> Records:
    """All records; of two of one kernel the one that gains more, in whatever order they come."""
    best: Records = {}
    for records in files:
        for key, record in records.items():
            other = best.setdefault(key, record)
            best[key] = max(other, record, key=lambda r: (r.gain, r.choices, r.us, r.block))
    return best


@command(example=EXAMPLE)
@click.argument("what", nargs=-1, required=True, type=click.Path())
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--size", "sizes", multiple=True, help="i=8: the extent of an axis")
@click.option("--budget", type=click.FloatRange(min=0.0), default=BUDGET, help="seconds in all")
@click.option("--search", "way", type=click.Choice(list(SEARCHES)), default="both")
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--backend", help="whose schedules; of triton-cuda, launches on the device")
@click.option("--save", type=click.Path(path_type=Path), help="a file for what was measured, too")
@click.option("--merge", is_flag=True, help="WHAT are files of records: take in the best of each")
def tune(
    out: Output,
    what: tuple[str, ...],
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    budget: float,
    way: str,
    seed: int,
    backend: str | None,
    save: Path | None,
    merge: bool,
) -> None:
    """Measure other schedules for the kernels of WHAT; keep what is faster.

    WHAT is a Python script, whose jitted functions, and what it ran by torch.compile or pb.torch,
    are tuned after it ran (PULLBACK_THREADS: as many as PyTorch has); a definition as text,
    "c[i, j] = sum[k](a[i, k] * b[k, j])"; or module:function with a --shape for each parameter that
    has no default. Programs compiled from then on, on this processor and with as many threads,
    use what was found. Random draws stand beside the search for comparison. Of programs of a GPU it
    is launches that are measured, on the device, by one search.
    """
    path = _path()
    if merge:
        records = merged(read(Path(p)) for p in (str(path), *map(_existing, what)))
        write(path, records)
        out.show(f"{len(records)} records in {path}")
        out.tell(records=len(records), path=str(path))
        return
    with environment({"PULLBACK_BACKEND": backend}):
        programs = [p for w in what for p in _programs(w, shapes, sizes)]
        own, others = _apart(programs)
        share = budget * len(own) / len(programs)
        new: dict[Key, Tuned | None] = {}
        if own:
            new |= _on_this(out, own, share, way, seed)
        for options, kernels in others.items():
            new |= _on_device(out, kernels, options, (budget - share) / len(others))
    before = read(path)
    after = _changed(before, new)
    if after != before:
        write(path, after)
    if save is not None:
        write(save, _changed({}, new), origin(programs[0].options))
    faster = sum(r is not None and r.gain > 1 for r in new.values())
    out.show(f"\n{faster} of {len(new)} are faster otherwise: {path}")


def _apart(programs: Sequence[Executable]) -> tuple[list[Executable], dict[Options, list[Kernel]]]:
    """Programs of this processor, and kernels of those of a device, by their options."""
    own: list[Executable] = []
    others: dict[Options, list[Executable]] = {}
    for program in programs:
        backend = named(program.options.backend)
        target = program.target
        if isinstance(backend, Compiler) and target is not None and backend.device(target):
            others.setdefault(program.options, []).append(program)
        else:
            own.append(program)
    return own, {options: kernels_of(group) for options, group in others.items()}


def _on_this(
    out: Output, programs: Sequence[Executable], budget: float, way: str, seed: int
) -> dict[Key, Tuned | None]:
    """Kernels on this processor; None where the model's schedule is the best."""
    options = Options.from_environment()
    threads = options.threads or pools.known()
    backend = compiler(options.backend)
    target = backend.machine(options)
    known = Chooser(read(_path()), threads, backend=backend.name, start=backend.start)
    changes: dict[Key, Tuned | None] = {}
    rows = []
    for bench, seconds in shares(benches(kernels_of(programs), options), budget):
        record = known.record(bench.kernel, target)
        choices = () if record is None else record.choices
        with out.working(f"{bench.kernel.name}: {seconds:.0f} s"):
            outcome = bench.tuned(seconds, SEARCHES[way], choices, seed)
        key = Key.of(bench.kernel, target, threads, backend.name)
        changes[key] = record_of(outcome) if outcome.choices else None
        rows.append(_row(outcome))
        out.tell(**rows[-1])
    out.show(_table(rows, SEARCHES[way]))
    return changes


def _on_device(out: Output, kernels: Sequence[Kernel], options: Options, budget: float) -> Records:
    """Launches of kernels on their device."""
    heads = ["launch", "price us", "priced us", "best us", "gain", "tries", "refused", "schedule"]
    lines: list[Sequence[object]] = [heads, ["---"] * len(heads)]

    def told(launch: Launched) -> None:
        out.tell(**asdict(launch))
        every = launch.price_us, launch.default_us, launch.us
        times = [*(f"{us:.1f}" for us in every), f"{launch.default_us / launch.us:.2f}"]
        counts = launch.tries, launch.refused
        lines.append([launch.name, *times, *counts, launch.block or "as priced"])

    with out.working(f"{len(kernels)} kernels: {budget:.0f} s"):
        new = launches(kernels, options, read(_path()), budget, told)
    out.show(_lines(lines))
    return new


def _path() -> Path:
    folder = Options.from_environment().cache
    if folder is None:
        raise Misuse("the cache, where records are kept, is off (PULLBACK_CACHE)")
    return folder / FILE


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise Misuse(f"{path} does not exist")
    return path


def _programs(what: str, shapes: Sequence[str], sizes: Sequence[str]) -> list[Executable]:
    """The programs to tune."""
    if what.endswith(".py"):
        return programs_of(Path(what))
    if "=" in what:
        given = shapes_of(what, shapes)
        extents = dict(map(size_of, sizes))
        return [of_definition(what, given, extents, (), Options.from_environment()).program]
    function, wanted = function_at(what, shapes)
    compiled = function if isinstance(function, Jit) else Jit(function)
    compiled(*(np.zeros(shape, np.float32) for shape in wanted))
    return [compiled.program]


def _changed(records: Records, changes: dict[Key, Tuned | None]) -> Records:
    """Records with new ones in place of old ones; None: the model's schedule is the best."""
    new = {**records, **changes}
    return {key: record for key, record in new.items() if record is not None}


def _row(outcome: Outcome) -> dict[str, Any]:
    times = {f"{name}_us": us for name, us in outcome.found_us.items()}
    return {
        "kernel": outcome.kernel.name,
        "line": TYPED.place if outcome.line.startswith(LIBRARY) else outcome.line,
        "default_us": outcome.default_us,
        **times,
        "gain": outcome.gain,
        "tries": outcome.tries,
        "refused": outcome.refused,
        "choices": dict(outcome.choices),
    }


def _table(rows: Sequence[dict[str, Any]], searches: Sequence[str]) -> str:
    """Markdown."""
    heads = ["kernel", "line", "default us", *(f"{s} us" for s in searches), "gain", "tries"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        times = [row["default_us"], *(row[f"{s}_us"] for s in searches)]
        shown = [f"{t:.1f}" if isfinite(t) else "" for t in times]
        place = row["line"].rsplit("/", 1)[-1]
        lines.append([row["kernel"], place, *shown, f"{row['gain']:.2f}", str(row["tries"])])
    return _lines(lines)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in rows)
