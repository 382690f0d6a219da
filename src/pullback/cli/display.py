"""What a run shows: a progress bar for people, JSON lines for programs, or nothing."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any, Protocol, Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pullback.cli.command import Output

EVERY = 10  # steps between two JSON lines
SMOOTH = 0.9  # share of the old value in the shown loss


class Display(Protocol):
    """Where a run reports to."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: Any
    ) -> None: ...

    def step(self, number: int, loss: float) -> None:
        """One training step is done, the first is number 1."""

    def note(self, event: str, message: str, **facts: Any) -> None:
        """Something that happens once."""


class Bar:
    """A progress bar on standard error, if that is a terminal: loss, tokens per second, time left.
    What is told once goes to standard output.
    """

    def __init__(self, total: int, done: int, tokens: int) -> None:
        console = Console(stderr=True, highlight=False)
        self.tokens = tokens
        self.first = done
        self.loss = math.nan
        self.began = time.perf_counter()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s  left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.progress.add_task(
            "training", total=total, completed=done, loss="-", speed="-"
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def step(self, number: int, loss: float) -> None:
        fresh = math.isnan(self.loss)
        self.loss = loss if fresh else SMOOTH * self.loss + (1.0 - SMOOTH) * loss
        seconds = time.perf_counter() - self.began
        speed = (number - self.first) * self.tokens / seconds
        self.progress.update(
            self.task, completed=number, loss=f"{self.loss:.3f}", speed=f"{speed:,.0f}"
        )

    def note(self, event: str, message: str, **facts: Any) -> None:
        self.progress.stop()
        click.echo(message)
        if not self.progress.finished:
            self.progress.start()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        return

    def step(self, number: int, loss: float) -> None:
        return

    def note(self, event: str, message: str, **facts: Any) -> None:
        return


class Lines(Silent):
    """One JSON object a line on standard output."""

    def __init__(self, total: int, output: Output) -> None:
        self.total = total
        self.output = output

    def step(self, number: int, loss: float) -> None:
        if number % EVERY == 0 or number == self.total:
            self.output.tell(event="step", step=number, loss=loss)

    def note(self, event: str, message: str, **facts: Any) -> None:
        self.output.tell(event=event, **facts)
