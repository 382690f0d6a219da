"""What is said where a model cannot be had: errors that name node, operator and version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pullback.errors import ArgumentError, PullbackError, StateError, UnsupportedError

if TYPE_CHECKING:
    from pullback.onnx.graph import Node


class Refused(Exception):
    """A rule does not take a case; told with the node by whoever called it."""


class Wanted(Exception):
    """Inputs of the model whose values decide what is traced: they are needed as numbers."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def unsupported(node: Node, why: str) -> UnsupportedError:
    """An operator, or a case of one, that is not built."""
    return UnsupportedError(f"{node}: {why}", code="E570")


def unreadable(what: str) -> StateError:
    """A file, or bytes, that hold no model."""
    return StateError(what, code="E571")


def crooked(what: str) -> StateError:
    """A graph whose parts do not fit together."""
    return StateError(what, code="E572")


def misfit(what: str) -> StateError:
    """A tensor of a file whose bytes do not fit its shape and type, or lie elsewhere."""
    return StateError(what, code="E573")


def foreign(what: str) -> UnsupportedError:
    """A type of values that no tensor has."""
    return UnsupportedError(what, code="E574")


def undecided(what: str) -> UnsupportedError:
    """A shape that only data decide."""
    return UnsupportedError(what, code="E575")


def uncalled(what: str) -> ArgumentError:
    """Inputs that are not the model's."""
    return ArgumentError(what, code="E576")


def unwritten(what: str) -> UnsupportedError:
    """A program that has no form as ONNX."""
    return UnsupportedError(what, code="E577")


def broken(node: Node, why: str) -> ArgumentError:
    """A node that its operator does not fit: shapes, types, attributes."""
    return ArgumentError(f"{node}: {why}", code="E578")


def retold(node: Node, error: PullbackError) -> PullbackError:
    """What a function of pullback's said of a node's operands, with the node."""
    told = f"{error.what} [{error.code}]"
    if isinstance(error, UnsupportedError):
        return unsupported(node, told)
    return broken(node, told)
