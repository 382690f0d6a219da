"""`pullback bench`: the suite of benchmarks, which lies beside the package's source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pullback.cli.command import Misuse, Output, command

SOURCE = Path(__file__).resolve().parents[3]
EXAMPLE = """\
pullback bench --list
pullback bench --only "softmax 512" --quick"""


def _help(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """This command's options, then those of the suite where it is."""
    if not wanted:
        return
    click.echo(context.get_help())
    try:
        lines = list(Suite(["--help"]))
    except Misuse as missing:
        lines = [f"{missing.message}\n"]
    click.echo("\n" + "".join(lines), nl=False)
    context.exit()


@command(
    example=EXAMPLE,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Measure pullback beside PyTorch, torch.compile, JAX and NumPy.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--help", is_flag=True, is_eager=True, expose_value=False, callback=_help, help="this page"
)
def bench(out: Output, arguments: tuple[str, ...]) -> None:
    """Measure pullback beside PyTorch, torch.compile, JAX and NumPy, as ARGUMENTS say.

    Prints Markdown; with --json every time of every process.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "found.json"
        given = [*arguments, "--out", str(results)] if out.as_json else arguments
        suite = Suite(given)
        with out.working("measuring"):
            for line in suite:
                out.show(line.removesuffix("\n"))
        if results.exists():
            out.tell(**json.loads(results.read_text()))
    sys.exit(suite.code)


class Suite:
    """A run of the suite: an iterator of its lines, then its exit `code`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Raises: Misuse where the suite is not installed."""
        self.folder = workloads((Path.cwd(), SOURCE))
        self.arguments = arguments
        self.code = 0

    def __iter__(self) -> Iterator[str]:
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "suite", *self.arguments]
        env = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
            yield from running.stdout or ()
        self.code = running.returncode


def workloads(roots: tuple[Path, ...]) -> Path:
    """The folder `benchmarks` of the first of `roots` that has the suite.

    Raises: Misuse where none has.
    """
    for root in roots:
        if (root / "benchmarks" / "suite" / "__main__.py").exists():
            return root / "benchmarks"
    raise Misuse(
        "the workloads are not installed: they are in benchmarks/ of pullback's source, "
        "not in its wheel; run this in a checkout"
    )
