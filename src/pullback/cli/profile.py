"""`pullback profile`: where the programs of a script spend their time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from pullback.backends.host.profile import Span, Timed
from pullback.cli.command import Output, command
from pullback.cli.programs import of_script

MATRIX = 1024  # rows of the product that tells how fast this processor computes
STREAM = 1 << 26  # bytes of the copy that tells how fast its memory is
TRIES = 5
EXAMPLE = "pullback profile train.py --trace timeline.json"


@command(example=EXAMPLE)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1)
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Chrome trace JSON")
def profile(out: Output, script: Path, arguments: tuple[str, ...], trace: Path | None) -> None:
    """Run SCRIPT with its ARGUMENTS, then show the launches of its jitted functions.

    A launch is compared with the roofline: what NumPy's product of 1024 rows reaches here, in
    float32, and a copy of 64 MB. --trace writes a timeline for chrome://tracing or Perfetto.
    """
    os.environ["PULLBACK_PROFILE"] = "1"
    with out.running(script):
        functions = of_script(script, arguments)
    profiles = {name: function.program.profile for name, function in functions.items()}
    with out.working("measuring what this processor reaches"):
        roof = roofline()
    for name, own in profiles.items():
        rows = [_row(name, t, roof) for t in own.launches if t.runs]
        out.show(_table(name, rows))
        for row in rows:
            out.tell(**row)
    out.show(f"roofline: {roof[0]:.0f} GFLOP/s, {roof[1]:.1f} GB/s (NumPy, all threads)")
    if trace is not None:
        spans = [s for own in profiles.values() for s in own.spans]
        trace.write_text(json.dumps(_events(spans)))


def roofline() -> tuple[float, float]:
    """GFLOP/s and GB/s, the best of a few tries."""
    a = np.ones((MATRIX, MATRIX), np.float32)
    source = np.ones(STREAM, np.uint8)
    target = np.zeros_like(source)
    product = min(_seconds(lambda: a @ a) for _ in range(TRIES))
    copy = min(_seconds(lambda: np.copyto(target, source)) for _ in range(TRIES))
    return 2e-9 * MATRIX**3 / product, 2e-9 * STREAM / copy


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _row(function: str, timed: Timed, roof: tuple[float, float]) -> dict[str, Any]:
    """The facts of one launch; rates are of its mean time."""
    seconds = timed.spent * 1e-9 / timed.runs
    flops, moved = timed.work.flops * 1e-9, timed.moved * 1e-9
    best = max(flops / roof[0], moved / roof[1])
    return {
        "function": function,
        "launch": timed.kernel.name,
        "runs": timed.runs,
        "total_ms": timed.spent * 1e-6,
        "mean_us": seconds * 1e6,
        "gflops": flops / seconds,
        "gbytes": moved / seconds,
        "roofline": best / seconds,
        "line": "" if timed.origin is None else timed.origin.place,
    }


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    """Launches by the time they took, longest first."""
    total = sum(r["total_ms"] for r in rows)
    heads = ("launch", "runs", "ms", "share", "us a run", "GFLOP/s", "GB/s", "roofline", "line")
    table = Table(*heads, box=None, title=f"{name}: {total:.1f} ms in {len(rows)} launches")
    for row in sorted(rows, key=lambda r: -r["total_ms"]):
        table.add_row(
            row["launch"],
            str(row["runs"]),
            f"{row['total_ms']:.2f}",
            f"{row['total_ms'] / total:.0%}" if total else "",
            f"{row['mean_us']:.1f}",
            f"{row['gflops']:.1f}",
            f"{row['gbytes']:.1f}",
            f"{row['roofline']:.0%}",
            _short(row["line"]),
        )
    return table


def _short(place: str) -> str:
    """``models/train.py:12 -> train.py:12``"""
    return place.rsplit("/", 1)[-1]


def _events(spans: Sequence[Span]) -> dict[str, Any]:
    """Complete events of the Chrome trace format: microseconds, a thread a lane."""
    lanes = list(dict.fromkeys(s.lane for s in spans))
    named = [
        {"ph": "M", "pid": 0, "tid": n, "name": "thread_name", "args": {"name": lane}}
        for n, lane in enumerate(lanes)
    ]
    events = [
        {
            "ph": "X",
            "pid": 0,
            "tid": lanes.index(s.lane),
            "name": s.name,
            "ts": s.start / 1e3,
            "dur": (s.end - s.start) / 1e3,
        }
        for s in spans
    ]
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}
