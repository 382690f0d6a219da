"""`pullback bench`: the suite of benchmarks, which lies beside the package's source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

SOURCE = Path(__file__).resolve().parents[3]


@click.command(
    context_settings={"ignore_unknown_options": True}, add_help_option=False, short_help=__doc__
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure pullback beside PyTorch, torch.compile, JAX and NumPy; ARGUMENTS are the suite's."""
    folder = workloads((Path.cwd(), SOURCE))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "suite", *arguments]
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            click.echo(line, nl=False)
    sys.exit(running.returncode)


def workloads(roots: tuple[Path, ...]) -> Path:
    """The folder `benchmarks` of the first of `roots` that has the suite.

    Raises: click.ClickException where none has.
    """
    for root in roots:
        if (root / "benchmarks" / "suite" / "__main__.py").exists():
            return root / "benchmarks"
    raise click.ClickException(
        "the workloads are not installed: they are in benchmarks/ of pullback's source, "
        "not in its wheel; run this in a checkout"
    )
