"""The source that is written, as statements; those that nothing needs are left out.

live before = (live after - what is assigned) | what is read      backwards, loops until it rests
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pullback.config import frozen

INDENT = "    "


def reads(text: str) -> frozenset[str]:
    """The names in an expression."""
    return frozenset(re.findall(r"(?<![\w.'])[A-Za-z_]\w*", text))


@frozen
class Assign:
    """`name = text`."""

    name: str
    text: str


@frozen
class Do:
    """A call for what it does. With `tapes` it is needed only where one of those is read."""

    text: str
    tapes: frozenset[str] = frozenset()


@frozen
class Repeat:
    """A loop, `for` or `while`: its head, which is read at each step."""

    head: str
    body: tuple[Statement, ...]


@frozen
class Either:
    """An `if` of two branches."""

    condition: str
    first: tuple[Statement, ...]
    other: tuple[Statement, ...]


Statement = Assign | Do | Repeat | Either
Pass = tuple[tuple[Statement, ...], frozenset[str]]


def needed(statements: Iterable[Statement], live: frozenset[str]) -> Pass:
    """The statements without those that nothing needs, and the names live before them."""
    kept: list[Statement] = []
    for statement in reversed(tuple(statements)):
        one, live = _needed(statement, live)
        kept.extend(one)
    return tuple(reversed(kept)), live


def _needed(statement: Statement, live: frozenset[str]) -> Pass:
    match statement:
        case Assign(name, text):
            if name not in live:
                return (), live
            return (statement,), live - {name} | reads(text)
        case Do(text, tapes):
            if tapes and not tapes & live:
                return (), live
            return (statement,), live | reads(text)
        case Repeat(head, body):
            return _loop(head, body, live)
        case Either(condition, first, other):
            first, one = needed(first, live)
            other, two = needed(other, live)
            if not first and not other:
                return (), live
            return (Either(condition, first, other),), one | two | reads(condition)


def _loop(head: str, body: tuple[Statement, ...], live: frozenset[str]) -> Pass:
    if not _rested(body, live)[0]:
        return (), live
    counter = frozenset(re.findall(r"^for (\w+) in", head))
    kept, around = _rested(body, live | (reads(head) - counter))
    return (Repeat(head, kept),), around - counter


def _rested(body: tuple[Statement, ...], around: frozenset[str]) -> Pass:
    """What a body keeps where its end is live as its start is."""
    while True:
        kept, before = needed(body, around)
        if before <= around:
            return kept, around
        around |= before


def written(statements: Iterable[Statement], depth: int = 1) -> Iterator[str]:
    """Lines of Python."""
    pad = INDENT * depth
    for statement in statements:
        match statement:
            case Assign(name, text):
                yield f"{pad}{name} = {text}"
            case Do(text):
                yield f"{pad}{text}"
            case Repeat(head, body):
                yield f"{pad}{head}:"
                yield from written(body, depth + 1)
            case Either(condition, first, other):
                yield f"{pad}if {condition}:"
                yield from written(first, depth + 1) if first else [f"{pad}{INDENT}pass"]
                if other:
                    yield f"{pad}else:"
                    yield from written(other, depth + 1)
