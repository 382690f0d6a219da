"""The statements of a nest and their expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pullback.ir.dtype import DType
from pullback.ir.expr import Expr, Exprs
from pullback.ir.nest import (
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Mark,
    Prefetch,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Transpose,
)


class Given(Expr):
    """A value that is there already: stands for one in a combiner's expression."""

    __slots__ = ("kind", "number")
    number: int
    kind: DType

    def derive(self) -> None:
        self._set(dtype=self.kind, axes=frozenset())


def roots(stmt: Stmt) -> Exprs:
    """The expressions of a statement, those of its body excluded."""
    match stmt:
        case For():
            return stmt.lo, stmt.hi
        case Declare():
            return (stmt.init,)
        case Set() | Combine():
            return *stmt.indices, stmt.value
        case Store() | StoreCombine():
            return stmt.offset, stmt.value
        case Guard():
            return (stmt.condition,)
        case Check():
            return stmt.index, stmt.extent
        case Transpose():
            return stmt.target_offset, stmt.source_offset, stmt.rows, stmt.columns
        case Prefetch():
            return (stmt.offset,)
        case Mark():
            return ()


def statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, For | Guard):
            yield from statements(stmt.body)


def with_roots(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """A statement with its expressions, those of its body excluded, changed."""
    values = {n: getattr(stmt, n) for n in stmt.__dataclass_fields__ if n != "var"}
    fresh: dict[str, Any] = {n: change(v) for n, v in values.items() if isinstance(v, Expr)}
    if isinstance(stmt, Set | Combine):
        fresh["indices"] = tuple(map(change, stmt.indices))
    return replace(stmt, **fresh)
