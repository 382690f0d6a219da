"""Checks on graphs of definitions, run after trace, differentiate and simplify."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.ir.graph import Definition, Graph, Value, Variable
from pullback.ir.notation import shape_text
from pullback.verify.body import Body, Proofs, verify_body
from pullback.verify.report import fail

Fault = tuple[str, Value] | None
Check = Callable[[Graph, Sequence[Definition]], Fault]


def acyclic(graph: Graph, order: Sequence[Definition]) -> Fault:
    """No definition needs itself."""
    done: set[Value] = set()
    for definition in order:
        for source in definition.sources:
            if isinstance(source, Definition) and source not in done:
                return f"needs {source}, which needs it", definition
        done.add(definition)
    return None


def one_writer(graph: Graph, order: Sequence[Definition]) -> Fault:
    """Every variable is assigned once."""
    seen: set[Variable] = set()
    for target, _ in graph.assigns:
        if target in seen:
            return "is assigned twice", target
        seen.add(target)
    return None


def assigned_alike(graph: Graph, order: Sequence[Definition]) -> Fault:
    """A value has the shape and type of the variable that it is assigned to."""
    for target, value in graph.assigns:
        if target.shape != value.shape or target.dtype != value.dtype:
            mine, its = (shape_text(v.dtype, v.shape) for v in (target, value))
            return f"{mine} is assigned {value}, {its}", target
    return None


CHECKS: tuple[Check, ...] = (acyclic, one_writer, assigned_alike)


def verify_graph(graph: Graph, after: str, proofs: Proofs | None = None) -> None:
    """Every check on a graph and on each of its definitions, but those that `proofs` has.

    Raises: InvalidIR naming the pass, the definition and the user's line.
    """
    order = graph.definitions
    for check in CHECKS:
        fault = check(graph, order)
        if fault is not None:
            what, value = fault
            raise fail(after, value.name, check.__name__, what, value.origin)
    proofs = proofs or Proofs()
    for d in order:
        body = Body(d.name, d.shape, d.extents, d.form, d.roots, d.origin)
        verify_body(body, after, proofs)
