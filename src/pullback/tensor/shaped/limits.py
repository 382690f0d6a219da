"""Limits of numbers, ``"int(stride) >= 1, 0 <= p <= 1"``: of functions, layers and optimisers."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, SyntaxFormError
from pullback.ir.expr import Dim
from pullback.tensor.record.trace import Handle
from pullback.tensor.shaped.declaration import Limit
from pullback.tensor.shaped.matching import Bound, Misfit


def _numbers(tree: ast.expr, bound: Bound) -> Iterator[Any]:
    """What stands on one side of a limit: one number, or each of a sequence."""
    if isinstance(tree, ast.Call):
        for value in _numbers(tree.args[0], bound):
            yield _integer(value)
        return
    value = bound.number(tree)
    if isinstance(tree, ast.Name) and tree.id in bound.arguments:
        value = bound.arguments[tree.id]
    yield from value if isinstance(value, list | tuple) else (value,)


def _integer(value: Any) -> Any:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is None or whole or isinstance(value, str | Handle | Dim):
        return value
    raise Misfit("it must be an integer")


def _compared(op: ast.cmpop, a: Any, b: Any) -> bool:
    """Whether a comparison holds; NaN fails every one, what is no number yet is let through."""
    if not (_known(a) and _known(b)):
        return True
    match op:
        case ast.Lt():
            return bool(a < b)
        case ast.LtE():
            return bool(a <= b)
        case ast.Gt():
            return bool(a > b)
        case ast.GtE():
            return bool(a >= b)
        case ast.Eq():
            return bool(a == b)
        case ast.NotEq():
            return bool(a != b) and not math.isnan(a)
    raise SyntaxFormError(f"no comparison: {type(op).__name__}")


def _known(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating)


def check_limits(
    owner: str, limits: Iterable[Limit], bound: Bound, texts: Collection[str] = ()
) -> None:
    """Raises: ArgumentError for a number out of its limits. `texts`: what may be text."""
    for limit in limits:
        sides = [limit.tree.left, *limit.tree.comparators]
        names = [n.id for n in ast.walk(limit.tree) if isinstance(n, ast.Name)]
        names = [n for n in names if n in bound.arguments]
        for name in names:
            _check_type(owner, name, bound.arguments[name], name in texts, limit.text)
        for op, left, right in zip(limit.tree.ops, sides, sides[1:], strict=False):
            if not _holds(op, left, right, bound):
                shown = ", ".join(_told(limit.tree, bound))
                raise ArgumentError(f"{owner}: {shown}", help=f"it must hold: {limit.text}")


def _told(tree: ast.AST, bound: Bound) -> Iterator[str]:
    """What the names of a limit are."""
    for name in dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)):
        place = bound.letters.get(name)
        if place is not None:
            yield f"{name}={place.size} (axis {place.axis} of `{place.argument}`)"
        elif name in bound.arguments:
            yield f"{name}={bound.arguments[name]!r}"


def _holds(op: ast.cmpop, left: ast.expr, right: ast.expr, bound: Bound) -> bool:
    try:
        ends = list(_numbers(right, bound))
        return all(_compared(op, a, b) for a in _numbers(left, bound) for b in ends)
    except Misfit:
        return False


def _check_type(owner: str, name: str, value: Any, text: bool, limit: str) -> None:
    """Raises: ArgumentError for what is no number, nor a sequence of them."""
    parts = value if isinstance(value, list | tuple) else (value,)
    for part in parts:
        fine = part is None or isinstance(part, Handle | Dim) or _known(part)
        if not fine and not (text and isinstance(part, str)):
            raise ArgumentError(f"{owner}: {name}={value!r} is no number", help=limit)


NUMBERS = {"int", "float", "Ints", "Sequence[int]", "None", "str"}
LISTED = {"Ints", "Sequence[int]"}


def number_kinds(made: Signature) -> Mapping[str, frozenset[str]]:
    """The words of each annotation that is one of numbers."""
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    single = {n: str(p.annotation) for n, p in made.parameters.items() if p.kind not in several}
    words = {n: frozenset(map(str.strip, text.split("|"))) for n, text in single.items()}
    return {n: w for n, w in words.items() if w <= NUMBERS and w - {"None", "str"}}


def check_numbers(
    owner: str, kinds: Mapping[str, frozenset[str]], settings: Mapping[str, Any]
) -> None:
    """Raises: ArgumentError for what is no number where one is asked for, a list among them."""
    for name in kinds.keys() & settings.keys():
        value, words = settings[name], kinds[name]
        listed = isinstance(value, list | tuple)
        none = value is None and "None" not in words
        text = isinstance(value, str) and "str" not in words
        many = listed and not words & LISTED
        if none or text or many or (listed and any(v is None or isinstance(v, str) for v in value)):
            wanted = " or ".join(sorted(words))
            raise ArgumentError(
                f"{owner}: {name}={value!r} is no number", help=f"it takes {wanted}"
            )
