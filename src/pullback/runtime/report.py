"""What `PULLBACK_DEBUG` prints and `PULLBACK_DUMP` writes, stage by stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from pullback.config import Options


class Reporter:
    """One compilation. Texts are made only where someone wants them.

    Levels: 1 a line per stage with its time, 2 definitions, 3 kernels and schedules, 4 code.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.times: dict[str, float] = {}
        self._last = time.perf_counter()
        self._number = 0
        if options.dump is not None:
            options.dump.mkdir(parents=True, exist_ok=True)
            self._number = len(list(options.dump.glob("*.txt")))

    @property
    def wants_texts(self) -> bool:
        """Whether what each stage makes is to be seen."""
        return self.options.debug >= 2 or self.options.dump is not None

    def lap(self, name: str) -> float:
        """What ran since the last lap was `name`; its seconds, which `times` adds up."""
        now = time.perf_counter()
        spent = now - self._last
        self.times[name] = self.times.get(name, 0.0) + spent
        self._last = now
        return spent

    def stage(self, name: str, facts: str) -> None:
        """A stage is done."""
        spent = self.lap(name)
        if self.options.debug >= 1:
            print(f"pullback {name}: {facts}, {spent * 1e3:.1f} ms", file=sys.stderr)

    def text(self, level: int, name: str, make: Callable[[], str]) -> None:
        """What a stage made."""
        wanted = self.options.debug >= level
        if not wanted and self.options.dump is None:
            return
        text = make()
        if wanted:
            print(f"# {name}\n{text}", file=sys.stderr)
        if self.options.dump is not None:
            path = self.options.dump / f"{self._number:04}-{name}.txt"
            path.write_text(text if text.endswith("\n") else text + "\n")
            self._number += 1
