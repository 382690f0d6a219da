"""Things made of tensors that answer to the public functions themselves, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Answering:
    """What `answer` says is what the function gives, instead of what it does with tensors."""

    def answer(self, name: str, args: Sequence[Any], settings: Mapping[str, Any]) -> Any:
        raise NotImplementedError


BUILTIN: dict[type, Answering] = {}
"""Who answers for types of Python's own: `tensor.complex.pairs` for complex numbers."""


def answering(args: Iterable[Any]) -> Answering | None:
    """The first of `args` that answers itself, inside of lists too."""
    for arg in args:
        first = answering(arg) if type(arg) in (list, tuple) else arg
        if isinstance(first, Answering):
            return first
        if type(first) in BUILTIN:
            return BUILTIN[type(first)]
    return None


def answered(function: Callable[P, R]) -> Callable[P, R]:
    """A function that asks what answers itself. ``sum(z) -> z.answer("sum", (z,), {})``"""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        speaker = answering(args)
        if speaker is None and kwargs:
            speaker = answering(kwargs.values())
        if speaker is None:
            return function(*args, **kwargs)
        answer: R = speaker.answer(function.__name__, args, kwargs)
        return answer

    return call
