"""What every rule of a user's has: a function, its name and digest, and how it is asked."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pullback.config import UserRule
from pullback.errors import PullbackError, RuleError

PLAIN = (bool, int, float, str, bytes, type, type(None))  # what a digest can tell by its text


class AskedRule(UserRule):
    """A function of the user's as a rule; called, it is the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            what = f"a rule is a function, and this is {type(function).__name__}"
            raise RuleError(what, code="E371")
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.__doc__ = function.__doc__
        self.digest = digest(function)

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def answer(self, *given: Any) -> Any:
        """What the function says. Raises: RuleError where it raises what is no error of ours."""
        try:
            return self.function(*given)
        except PullbackError:
            raise
        except Exception as error:
            what = f"rule {self.name} raised {type(error).__name__}: {error}"
            raise RuleError(what, code="E373") from error

    def wrong(self, what: str) -> RuleError:
        """The error of an answer that is none."""
        return RuleError(f"rule {self.name} {what}", code="E372")


def digest(function: Callable[..., Any]) -> str:
    """A function by its file, its name there and what it holds; empty where that has no text."""
    try:
        source = Path(inspect.getsourcefile(function) or "").read_text()
    except (TypeError, OSError):
        return ""
    defaults = getattr(function, "__defaults__", None) or ()
    named = getattr(function, "__kwdefaults__", None) or {}
    try:
        cells = [c.cell_contents for c in getattr(function, "__closure__", None) or ()]
    except ValueError:  # a cell that is still empty
        return ""
    held = [*defaults, *named.values(), *cells]
    if not inspect.isfunction(function) or not all(isinstance(v, PLAIN) for v in held):
        return ""
    text = "\n".join([source, function.__qualname__, *map(repr, held)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
