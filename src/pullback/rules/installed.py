"""Rules by name: those that packages register under the entry point `pullback.rules`, or a file's.

Being installed changes no program: a program is given the rules that its author names.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.config import UserRule, module_of
from pullback.errors import RuleError

GROUP = "pullback.rules"


def names() -> list[str]:
    """Every name under which an installed package registers rules.

    Example:
        >>> isinstance(pb.rules.names(), list)
        True
    """
    return list(dict.fromkeys(point.name for point in entry_points(group=GROUP)))


@cache
def named(name: str) -> tuple[UserRule, ...]:
    """The rules of an entry point, or of a Python file: one, a list of them, or all of a module.

    Raises: RuleError for a name that is not there, that fails to import or holds no rule.

    Example:
        >>> try:
        ...     pb.rules.named("missing")
        ... except ValueError as error:
        ...     error.code
        'E371'
    """
    if name.endswith(".py"):
        return _checked(name, _of_file(Path(name)))
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                loaded = point.load()
            except Exception as error:
                raise _failed(f"{name!r} of {point.value}", error) from error
            return _checked(name, loaded)
    known = ", ".join(names()) or "none is installed"
    raise RuleError(f"no rules {name!r}", help=f"a file, or one of: {known}", code="E371")


def chosen(given: Any) -> tuple[UserRule, ...]:
    """Rules, names of rules among them. Raises: RuleError."""
    every = [given] if isinstance(given, str | UserRule) else given
    if not isinstance(every, Iterable):
        raise RuleError(f"rules={given!r}: a list of rules is wanted", code="E371")
    rules: list[UserRule] = []
    for one in every:
        rules += named(one) if isinstance(one, str) else (one,)
    return tuple(rules)


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RuleError(f"no rules {str(path)!r}", help="no such file", code="E371")
    try:
        return module_of(path)
    except Exception as error:
        raise _failed(str(path), error) from error


def _failed(what: str, error: Exception) -> RuleError:
    said = f"{type(error).__name__}: {error}"
    return RuleError(f"rules {what} fail to import: {said}", code="E371")


def _checked(name: str, loaded: Any) -> tuple[UserRule, ...]:
    """A rule, rules, or all that stand in a module."""
    if isinstance(loaded, ModuleType):
        loaded = [v for v in vars(loaded).values() if isinstance(v, UserRule)]
    rules = tuple(loaded) if isinstance(loaded, list | tuple) else (loaded,)
    if not rules or not all(isinstance(r, UserRule) for r in rules):
        what = f"rules {name!r} hold no rule, or something else"
        raise RuleError(what, help="functions under the decorators of pb.rules", code="E371")
    return rules
