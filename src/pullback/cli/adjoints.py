"""Derived adjoints for people: each as mathematics, with its loops, its guards, and why.

dx[i] = sum[k < 3](if(i < k + 8, dy[i - k] * w[k], 0.0))
  gathers over k < 3
  where i < k + 8
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.grad import fold
from pullback.grad.reverse import Reverse
from pullback.ir.expr import Axis, Expr, Extent, If
from pullback.ir.graph import Accumulate, Definition, Map, Reduce, Value, Variable, topological
from pullback.ir.notation import Names, axis_name, extent_text
from pullback.ir.text import definition_text, expr_text
from pullback.simplify import guards as G
from pullback.simplify.graph import with_roots
from pullback.simplify.rules import Simplifier


def adjoints_text(outputs: Sequence[Value], inputs: Sequence[Value]) -> str:
    """The adjoints of `inputs` and of all between, from heads of the outputs' shapes."""
    heads = [Variable(f"d{output!r}", output.shape, output.dtype) for output in outputs]
    state = Reverse(outputs, inputs, heads)
    gradients = [state.gradient(x) for x in inputs]
    names, forward = Names(), set(topological(outputs))
    parts = []
    simplify = Simplifier()
    for d in topological(gradients):
        if d in forward:
            continue
        simple = with_roots(d, [simplify(r) for r in d.roots])
        names.of[simple] = names(d)
        parts.append("\n".join([definition_text(simple, names), *_notes(d, simple, state, names)]))
    last = [
        f"the gradient by {names(x)} is {names(g)}" for x, g in zip(inputs, gradients, strict=True)
    ]
    return "\n\n".join([*parts, "\n".join(last)])


def _notes(d: Definition, simple: Definition, state: Reverse, names: Names) -> list[str]:
    guards = _guards(simple.body)
    lines = [f"    {_manner(d, state)}"]
    if guards:
        lines.append("    where " + " and ".join(expr_text(g, names) for g in guards))
    return lines


def _manner(d: Definition, state: Reverse) -> str:
    form = d.form
    if isinstance(form, Accumulate):
        why = state.gatherer.why.get(d, "as the forward reads it")
        return f"accumulates over {_ranges(form.domain, 0)}: {why}"
    if isinstance(form, Reduce):
        return f"gathers over {_ranges(form.over, len(d.shape))}"
    return "gathers one point of each, no loop" if isinstance(form, Map) else "scans"


def _guards(body: Expr) -> list[Expr]:
    """The conditions outside of which a body is 0."""
    conditions: list[Expr] = []
    while isinstance(body, If) and fold.is_zero(body.otherwise):
        conditions += G.conjuncts(body.condition)
        body = body.then
    return conditions


def _ranges(extents: Sequence[Extent], first: int) -> str:
    every = [Axis(n, e) for n, e in enumerate(extents, first)]
    return ", ".join(f"{axis_name(a.number)} < {extent_text(a.extent)}" for a in every)
