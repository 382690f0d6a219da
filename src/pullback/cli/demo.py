"""`pullback demo`: one operation from its definition to its time, in a minute's reading."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from pullback.cli.adjoints import adjoints_text
from pullback.cli.attention import (
    DISTANCES,
    PLACES,
    WIDTH,
    Step,
    attention,
    drawn,
    in_numpy,
    in_torch,
    step,
)
from pullback.cli.command import WRONG, Output, command
from pullback.cli.timing import medians
from pullback.config import Options
from pullback.ir.dtype import float32
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.tensor.derive.check import LAYOUTS, Report, check_grads
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.run.program import Jit

ROUNDS = 21
SMALL = (6, 4, 3)  # places, width and distances of what is checked
CLOSE = 1e-4  # relative difference of results in float32

Facts = dict[str, Any]


@command(example="pullback demo")
def demo(out: Output) -> None:
    """Show what pullback does with three lines: derive, fuse, check and time them.

    Exit code 1 where a check fails or results differ from NumPy's.
    """
    source = inspect.getsource(attention)
    out.show(_title("1. An operation: attention to 32 places, a bias learned for each distance"))
    out.show(source)
    adjoint = _adjoint(out)
    arrays = drawn(PLACES, WIDTH, DISTANCES)
    compiled: Jit[..., Any] = Jit(step, options=replace(Options.from_environment(), threads=1))
    with out.working("compiling"):
        compiled(*arrays)
    kernels = _kernels(out, compiled.program.kernels)
    with out.working("checking derivatives"):
        report = check_grads(attention, drawn(*SMALL, np.float64)[:-1])
    checks = _checks(out, report)
    times = _times(out, compiled, arrays)
    passed = bool(report) and all(t["error"] < CLOSE for t in times)
    out.show("\nYours: pullback new NAME; any stage of it: pullback explain WHAT --stage loops")
    facts = {"source": source, "adjoint": adjoint, "kernels": kernels, "checks": checks}
    out.tell(**facts, times=times, passed=passed)
    sys.exit(0 if passed else WRONG)


def _title(text: str) -> Text:
    return Text(f"{text}\n", style="bold")


def _adjoint(out: Output) -> list[str]:
    """The equations that were derived, from the head `dy` to the gradients of the inputs."""
    shapes = [a.shape for a in drawn(PLACES, WIDTH, DISTANCES)[:-1]]
    names = inspect.signature(attention).parameters
    inputs = [Tensor(Variable(n, s, float32)) for n, s in zip(names, shapes, strict=True)]
    result = attention(*inputs)
    text = adjoints_text([result.value], [x.value for x in inputs])
    equations = [line for line in text.splitlines() if line.startswith("  ") and " = " in line]
    loops = sum("    gathers over" in line for line in text.splitlines())
    out.show(_title("2. Its gradient, derived as mathematics"))
    out.show("\n".join(equations))
    wrote = sum("    accumulates" in line for line in text.splitlines())
    out.show(f"\n  {loops} sums gather, {wrote} definitions scatter\n")
    return [line.strip() for line in equations]


def _kernels(out: Output, kernels: Sequence[Kernel]) -> list[Facts]:
    """The kernels of result and gradients, each with the reasons for its borders."""
    facts = []
    out.show(
        _title(f"3. {len(kernels)} kernels for result and gradient, and why they are not fewer")
    )
    for kernel in kernels:
        parts = kernel.pieces
        extents = " and ".join(" x ".join(map(str, p.outer)) for p in parts)
        stages = sum(len(p.every) for p in parts)
        plural = "s" if stages > 1 else ""
        out.show(f"  {kernel.name}: {stages} definition{plural} over {extents}")
        for reason in kernel.reasons:
            out.show(f"    {reason}")
        facts.append({"name": kernel.name, "stages": stages, "reasons": list(kernel.reasons)})
    return facts


def _checks(out: Output, report: Report) -> list[Facts]:
    """The checks by kind, with the worst of each."""
    table = Table("", "comparisons", "largest error", "allowed", "", box=None)
    facts = []
    for kind in dict.fromkeys(c.name for c in report.checks):
        own = [c for c in report.checks if c.name == kind]
        worst = max(own, key=lambda c: c.error / c.limit)
        passed = all(c.passed for c in own)
        row = (kind, str(len(own)), f"{worst.error:.0e}", f"{worst.limit:.0e}")
        table.add_row(*row, "ok" if passed else "FAIL")
        facts.append({"name": kind, "count": len(own), "error": worst.error, "passed": passed})
    out.show(_title("\n4. Checked in float64, where arrays lie in eight ways"))
    out.show(f"  {', '.join(LAYOUTS)}\n")
    out.show(table)
    return facts


def _times(out: Output, compiled: Jit[..., Any], arrays: Sequence[Any]) -> list[Facts]:
    """Milliseconds of result and gradients, and how far they are from float64's."""
    calls: dict[str, Step] = {
        "pullback": lambda: compiled(*arrays),
        "NumPy, by hand": lambda: in_numpy(*arrays),
    }
    with out.working("loading PyTorch"):
        beside = in_torch(arrays)
    if beside is not None:
        calls["PyTorch, in blocks by hand"] = beside
    with out.working("taking times"):
        times = medians(calls, ROUNDS)
    exact = in_numpy(*(a.astype(np.float64) for a in arrays))
    table = Table("", "ms", "times ours", "error", box=None)
    facts = []
    for name, seconds in times.items():
        error, ratio = _apart(calls[name](), exact), seconds / times["pullback"]
        table.add_row(name, f"{seconds * 1e3:.1f}", f"{ratio:.1f}", f"{error:.0e}")
        facts.append({"name": name, "ms": seconds * 1e3, "error": error})
    size = f"{PLACES} places of {WIDTH}"
    what = f"{size}, float32, processor time of a thread"
    out.show(_title(f"\n5. Times of result and gradient: {what}"))
    out.show(table)
    return facts


def _apart(computed: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference, relative to the largest element of its tensor."""
    pairs = zip(map(np.asarray, computed), wanted, strict=True)
    return max(float(np.max(abs(a - b)) / np.max(abs(b))) for a, b in pairs)
