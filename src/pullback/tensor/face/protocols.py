"""What NumPy and the array API ask a tensor for, and rooms above this one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _unset(*_: Any) -> Any:
    raise NotImplementedError


@dataclass(slots=True)
class Protocols:
    """Who answers: `pullback/__init__.py`, which has all rooms, says it once."""

    namespace: Any = None
    of_ufunc: Callable[..., Any] = _unset
    of_function: Callable[..., Any] = _unset


protocols = Protocols()
