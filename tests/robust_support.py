"""What the checks of robustness share: what they find, a limit of time, programs in children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

HERE = str(Path(__file__).parent)
Tell = Callable[[int], None]  # is told how much of a check is done


class TooLong(BaseException):
    """A step of a check took longer than it may; nothing under test catches it."""


@dataclass(slots=True)
class Found:
    """`count` things were tried; what was wrong, and a word on what else was seen."""

    count: int = 0
    wrong: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, number: int = 1) -> None:
        """Something that is no fault was seen."""
        self.seen[what] = self.seen.get(what, 0) + number

    def __str__(self) -> str:
        seen = ", ".join(f"{n:,} {what}" for what, n in sorted(self.seen.items()))
        return f"{self.count:,} tried, {len(self.wrong)} wrong" + (f"; {seen}" if seen else "")


def silent(done: int) -> None:
    """Progress that nobody is told of."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises: TooLong in here once so much processor time went. In the main thread alone."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def python(text: str, *arguments: object, cache: Path | str = "off") -> subprocess.Popen[str]:
    """A child that runs `text`, which finds the modules of the tests."""
    path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "PULLBACK_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(child: subprocess.Popen[str], seconds: float = 300) -> str:
    """What was wrong with how a child ended; empty where nothing was."""
    try:
        _, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"hung for {seconds:g} s"
    return "" if child.returncode == 0 else f"exit {child.returncode}: {errors[-800:]}"


def clock(done: int, began: float) -> str:
    """How far a check is."""
    return f"{done:,} after {time.perf_counter() - began:.0f} s"
