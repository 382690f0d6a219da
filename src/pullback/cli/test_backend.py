"""`pullback test-backend`: what a backend computes beside the reference, as a report."""

from __future__ import annotations

import sys
from collections import Counter
from copy import copy

import click

from pullback.cli.command import WRONG, Misuse, Output, command
from pullback.cli.files import text_of, written
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.conformance.report import report, summary, worse
from pullback.conformance.run import THREADS, conformance

EXAMPLE = """\
pullback test-backend c -o report.md
pullback test-backend my_backend.py --only "forms: max" """


@command(example=EXAMPLE)
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help="the report, as Markdown")
@click.option("--only", metavar="TEXT", default="", help="cells that have it in their name")
@click.option("--against", metavar="FILE", help="an older report: what is worse is an error")
def test_backend(
    out: Output, name: str, output: str | None, only: str, against: str | None
) -> None:
    """Try NAME, a backend or a file of one, on every primitive, form and layout.

    Exit code 1 where a cell fails. What a backend refuses with its reason is no failure.
    """
    chosen = cells(SECTIONS, only)
    if not chosen:
        raise Misuse(f"no cell has {only!r} in its name: they are like 'forms: max, float32'")
    before = None if against is None else text_of(against)
    with out.working(f"{len(chosen)} cells on {name}"):
        verdicts = conformance(name, chosen)
    page = report(name, verdicts, THREADS)
    if output is not None:
        written(output, page)
    fallen = [] if before is None else worse(before, verdicts)
    failed = [f"{v.cell.name}: {v.why}" for v in verdicts if v.state == "fail"]
    for line in [*failed, *fallen] if output is not None or only else []:
        out.show(line)
    out.show(summary(name, verdicts) if output is not None else page)
    counts = Counter(v.state for v in verdicts)
    out.tell(backend=name, cells=len(verdicts), **counts, failed=failed, worse=fallen)
    sys.exit(WRONG if failed or fallen else 0)


test_runtime = copy(test_backend)
test_runtime.name = "test-runtime"
test_runtime.help = "Another name of test-backend."
test_runtime.epilog = str(test_backend.epilog).replace("test-backend", "test-runtime")
