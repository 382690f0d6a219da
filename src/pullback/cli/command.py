"""What all commands share: `--json`, `--quiet`, an example in the help, exit codes, progress.

Exit codes: 0 good, 1 something that was looked for is wrong, 2 wrong use.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pullback.errors import MemoryBudgetError, PullbackError

WRONG, MISUSED = 1, 2
WIDTH = 100  # of tables that go to a file
EXAMPLE = "Example:"
MACHINERY = str(Path(click.__file__).parent)


class Misuse(click.ClickException):
    """The command was used in a wrong way: one message, exit code 2."""

    exit_code = MISUSED


class ShortageError(MemoryBudgetError):
    """What a command was asked for has no place in memory."""

    placed = False


def _said(error: PullbackError) -> str:
    """The message; a place in the machinery of the command line is none of the user's."""
    origin = error.origin
    if origin is None or not origin.code.co_filename.startswith(MACHINERY):
        return str(error)
    return f"{error.what} [{error.code}]" + (f"\n  help: {error.help}" if error.help else "")


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command reports to: text for people, JSON for programs, or nobody.

    Results go to standard output. Progress goes to standard error, and only to a terminal.
    """

    as_json: bool = False
    quiet: bool = False

    @property
    def to_people(self) -> bool:
        return not self.as_json and not self.quiet

    def show(self, shown: Any) -> None:
        """Text, or what rich can draw, for people."""
        if not self.to_people:
            return
        if isinstance(shown, str):
            click.echo(shown)
            return
        console = Console()
        (console if console.is_terminal else Console(width=WIDTH)).print(shown)

    def tell(self, **facts: Any) -> None:
        """One JSON object on a line of its own, for programs."""
        if self.as_json:
            click.echo(json.dumps(facts))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Something that may take longer than a second."""
        console = Console(stderr=True)
        if not self.to_people or not console.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as progress:
            progress.add_task(what, total=None)
            yield

    @contextmanager
    def running(self, script: Any) -> Iterator[None]:
        """A script of the user's, which may print; results for programs are not mixed with that."""
        if not self.to_people:
            with redirect_stdout(sys.stderr):
                yield
            return
        console = Console(stderr=True)
        if console.is_terminal:
            console.print(f"running {script}", style="dim", markup=False)
        yield


def command(*, example: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command whose function is given an `Output` first. `example`: lines of a shell.

    A `PullbackError` of the function is a mistake of the user's, a `Misuse` of the command. So is
    asking for shapes that no memory holds.
    """

    def make(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def call(as_json: bool, quiet: bool, **given: Any) -> None:
            try:
                function(Output(as_json, quiet), **given)
            except PullbackError as error:
                raise Misuse(_said(error)) from error
            except MemoryError as error:
                more = ShortageError(f"more memory than there is: {error}", code="E620")
                raise Misuse(_said(more)) from more

        lines = ["\b", EXAMPLE, *(f"  {line}" for line in example.splitlines())]
        wrap = click.command(cls=click.Command, epilog="\n".join(lines), **settings)
        made = wrap(call)
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="JSON, one object a line"),
            click.Option(["--quiet", "-q"], is_flag=True, help="nothing but errors"),
        ]
        return made

    return make
