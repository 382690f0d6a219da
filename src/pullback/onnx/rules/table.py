"""Rules of ONNX's operators: each as a function of pullback's tensors, by domain, name and version.

``("", "Mul", 14)(x, y)  ->  pb.multiply(x, y)``
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pullback.config import frozen
from pullback.onnx.faults import Refused

Rule = Callable[..., Any]
ALL = -1  # in `known`: every operand


@frozen
class Entry:
    """A rule. `known`: places of operands that it is given as numbers; `settings`: attributes that
    it takes by name, and `outputs` (which of them are wanted) and `version` where it asks for them.
    """

    function: Rule
    known: tuple[int, ...]
    settings: frozenset[str]

    def numbers(self, place: int) -> bool:
        """Whether the operand at this place is given as numbers."""
        return place in self.known or ALL in self.known


RULES: dict[tuple[str, str, int], Entry] = {}


def rule(
    names: str, *versions: int, domain: str = "", known: Sequence[int] = ()
) -> Callable[[Rule], Rule]:
    """A decorator: the rule of these operators in these versions."""

    def add(function: Rule) -> Rule:
        for name in names.split():
            enter(name, versions, function, domain, known)
        return function

    return add


def enter(
    name: str,
    versions: Sequence[int],
    function: Rule,
    domain: str = "",
    known: Sequence[int] = (),
) -> None:
    """Put a rule into the table."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    named = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    for version in versions:
        assert (domain, name, version) not in RULES, (name, version)
        RULES[domain, name, version] = Entry(function, tuple(known), named)


def same(versions: Sequence[int], functions: dict[str, Rule]) -> None:
    """Operators without attributes that are a function, by name."""
    for name, function in functions.items():
        enter(name, versions, _of_operands(function))


def _of_operands(function: Rule) -> Rule:
    def run(*operands: Any) -> Any:
        return function(*operands)

    return run


def demand(holds: bool, why: str) -> None:
    """Raises: Refused where a rule does not take a case."""
    if not holds:
        raise Refused(why)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the start. Raises: Refused for one that is not there."""
    demand(-rank <= axis < max(rank, 1), f"axis {axis} of {rank} axes")
    return axis + rank if axis < 0 else axis


def numbers(array: Any) -> tuple[int, ...]:
    """Whole numbers of an operand that is known."""
    return tuple(int(n) for n in array.reshape(-1))
