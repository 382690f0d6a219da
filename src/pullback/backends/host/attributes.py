"""Attributes of modules and classes as they were, where a library changes its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Modules and classes, each with its names and what they are.
Snapshot = list[tuple[Any, dict[str, Any]]]


def snapshot(owners: Iterable[Any]) -> Snapshot:
    """What modules and classes have now."""
    return [(owner, dict(vars(owner))) for owner in owners]


def put_back(before: Snapshot) -> None:
    """What they had then; a class loses what it got since."""
    for owner, names in before:
        for name, value in names.items():
            if vars(owner)[name] is not value and name != "__dict__":
                setattr(owner, name, value)
        if isinstance(owner, type):
            for name in set(vars(owner)) - set(names):
                delattr(owner, name)
