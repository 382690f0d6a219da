"""What expressions and statements read and write, by arrays."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.ir.expr import Expr
from pullback.ir.nest import Array, Load, Stmt, Store, StoreCombine, Transpose
from pullback.ir.node import Node, reach, walk
from pullback.ir.statements import roots, statements


def arrays(e: Expr) -> set[Array]:
    return {n.array for n in walk(e) if isinstance(n, Load)}


def scattered(e: Expr) -> list[Load]:
    """Loads at places that are data."""

    def placed(n: Node) -> bool:
        return isinstance(n, Load) and bool(arrays(n.offset))

    outermost = reach([e], lambda n: () if placed(n) else n.children)
    return [n for n in outermost if isinstance(n, Load) and placed(n)]


def loaded(s: Stmt) -> set[Array]:
    return {a for e in roots(s) for a in arrays(e)}


def written_by(body: Sequence[Stmt]) -> set[Array]:
    """The arrays that statements write."""
    own = list(statements(body))
    turned = {s.target for s in own if isinstance(s, Transpose)}
    return turned | {s.array for s in own if isinstance(s, Store | StoreCombine)}
