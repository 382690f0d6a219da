"""Times of one run of the suite beside those of an earlier one: what has become slower."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.measure import PEERS

TOLERANCE = 10.0  # percent: what equal sources differ by on a processor that is otherwise idle
OTHERS = {system for system, _ in PEERS.values()}  # whose times are no matter of ours

Key = tuple[str, str, str, str, int, str]


@dataclass(frozen=True)
class Slower:
    """A row that takes longer than it did, seconds; or that has no time any more (`trouble`)."""

    key: Key
    before: float
    now: float
    trouble: str = ""

    def __str__(self) -> str:
        kind, workload, system, mode, threads, _ = self.key
        name = " ".join(part for part in (kind + ":", workload, system, mode) if part)
        told = f"SLOWER {name}, {threads} thread{'s' if threads > 1 else ''}: "
        if self.trouble:
            return f"{told}{self.trouble}, was {self.before * 1e6:.4g} us"
        more = 100 * (self.now / self.before - 1)
        return f"{told}{self.now * 1e6:.4g} us, was {self.before * 1e6:.4g} us (+{more:.0f} %)"


def load(path: str) -> dict[str, Any]:
    """What `--out` wrote. Raises: ValueError for anything else."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        _times(found)
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not what --out writes: {error}") from error
    return dict(found)


def compared(
    before: Mapping[str, Any], now: Mapping[str, Any], tolerance: float
) -> tuple[int, list[Slower]]:
    """How many rows both have, and those slower by more than `tolerance` percent.

    The least of all rounds is compared: other work only ever adds to a time.
    """
    old, new = _times(before), _times(now)
    common = [key for key in old if key in new and old[key][0] is not None]
    return len(common), list(_slower(old, new, common, tolerance))


def _slower(old: Any, new: Any, common: list[Key], tolerance: float) -> Iterator[Slower]:
    for key in common:
        was, (least, trouble) = old[key][0], new[key]
        if least is None:
            yield Slower(key, was, 0.0, trouble or "no time")
        elif least > was * (1 + tolerance / 100):
            yield Slower(key, was, least)


def _times(runs: Mapping[str, Any]) -> dict[Key, tuple[float | None, str]]:
    """The least time of each of our own runs, or why there is none."""
    return {
        (kind, name, r["system"], r["mode"], r["threads"], r.get("clock", "wall")): (
            min(r["times"], default=None),
            r["trouble"],
        )
        for kind, workloads in runs.items()
        for name, made in workloads.items()
        for r in made
        if r["system"] not in OTHERS
    }
