"""How a failed check speaks: the pass, the definition, the check, the user's line."""

from __future__ import annotations

from pullback.errors import InvalidIR, Origin


def fail(after: str, name: str, check: str, what: str, origin: Origin | None = None) -> InvalidIR:
    """The error for a broken invariant.

    ``after fuse: scores: reads another tile (same coordinates) at model.py:12``
    """
    place = "" if origin is None else f" at {origin.place}"
    return InvalidIR(f"after {after}: {name}: {what} ({check}){place}")
