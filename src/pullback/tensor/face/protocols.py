"""What NumPy and the array API ask a tensor for, and rooms above this one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _unset(name: str) -> Any:
    raise NotImplementedError(name)


@dataclass(slots=True)
class Protocols:
    """Who answers: `room` gives a room by its name, which is imported when it is first asked for.
    `pullback/__init__.py`, which has all rooms, says it once.
    """

    room: Callable[[str], Any] = _unset


protocols = Protocols()
