"""There are 27 primitives, each its own class, and scalar expressions have no other node."""

from __future__ import annotations

from pullback.conformance import table as primitives
from pullback.ir import expr, graph, program


def test_the_table_has_27_rows() -> None:
    assert len(primitives.PRIMITIVES) == 27
    assert len({p.cls for p in primitives.PRIMITIVES}) == 27


def test_every_scalar_class_is_in_the_table() -> None:
    listed = {p.cls for p in primitives.PRIMITIVES if p.group == "scalar"}
    families = {expr.Expr, expr.Unary, expr.Binary, expr.Comparison}
    defined = {
        c
        for c in vars(expr).values()
        if isinstance(c, type) and issubclass(c, expr.Expr) and c not in families
    }
    assert defined - listed == {expr.Size}
    assert listed == set(expr.SCALARS)


def test_every_form_and_item_is_in_the_table() -> None:
    listed = {p.cls for p in primitives.PRIMITIVES}
    assert {graph.Reduce, graph.Scan, graph.Accumulate} <= listed
    assert {program.Compute, program.Loop, program.Branch, program.Feed, program.Receive} <= listed
    assert program.HostCall not in listed  # what no backend must have
