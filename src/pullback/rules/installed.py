"""Rules by name: those that packages register under the entry point `pullback.rules`, or a file's.

Being installed changes no program: a program is given the rules that its author names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.config import UserRule, installed, module_of
from pullback.errors import RuleError

GROUP = "pullback.rules"


def names() -> list[str]:
    """Every name under which an installed package registers rules.

    Example:
        >>> isinstance(pb.rules.names(), list)
        True
    """
    return list(dict.fromkeys(point.name for point in installed(GROUP)))


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
        if not Path(name).is_file():
            raise RuleError(f"no rules {name!r}", help="no such file", code="E371")
        return _checked(name, _loaded(name, partial(module_of, Path(name))))
    for point in installed(GROUP):
        if point.name == name:
            return _checked(name, _loaded(f"{name!r} of {point.value}", point.load))
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


def _loaded(what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        said = f"rules {what} fail to import: {type(error).__name__}: {error}"
        raise RuleError(said, code="E371") from error


def _checked(name: str, given: Any) -> tuple[UserRule, ...]:
    """A rule, rules, or all that stand in a module."""
    if isinstance(given, ModuleType):
        given = [v for v in vars(given).values() if isinstance(v, UserRule)]
    rules = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not rules or not all(isinstance(r, UserRule) for r in rules):
        what = f"rules {name!r} hold no rule, or something else"
        raise RuleError(what, help="functions under the decorators of pb.rules", code="E371")
    return rules
