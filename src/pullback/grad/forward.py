"""Forward mode over definitions: the tangent of a definition has its own index maps and its form.

y[i] = sum[k] x[i, k] * w[k]     ->     ty[i] = sum[k] tx[i, k] * w[k] + x[i, k] * tw[k]
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from pullback.errors import GradientError, UnsupportedError
from pullback.grad import fold
from pullback.grad.forms import sums_nothing, tangent_of
from pullback.grad.reuse import reused
from pullback.grad.reverse import zeros
from pullback.grad.rules import Rules, active, fitting, ordered, own_rule
from pullback.grad.scalar import push
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Definition, Rule, Value
from pullback.simplify.triangle import running


def tangents(
    outputs: Sequence[Value],
    inputs: Sequence[Value],
    given: Sequence[Value],
    rules: Rules = own_rule,
) -> list[Value]:
    """The derivative of each output where `inputs` move along `given`.

    Raises: GradientError for an input without a gradient, or a tangent that does not fit;
    UnsupportedError for a form without a derivative.
    """
    for value, tangent in zip(inputs, given, strict=True):
        if not value.dtype.is_float:
            raise GradientError(
                f"no derivative along {value!r}, which is {value.dtype}",
                origin=value.origin,
                code="E204",
            )
        if (tangent.shape, tangent.dtype) != (value.shape, value.dtype):
            raise GradientError(
                f"the tangent is {tangent.dtype}{tangent.shape},"
                f" its input {value.dtype}{value.shape}",
                origin=tangent.origin or value.origin,
                code="E217",
            )
    known = dict(zip(inputs, given, strict=True))
    made: set[Value] = set()
    order = ordered(outputs, rules)
    moving = active(order, inputs, rules)
    for step in order:
        if step not in moving or step in known:
            continue
        if isinstance(step, Rule):
            _apply(step, known)
        elif rules(step) is None:
            own = _tangent(step, known, made)
            if own is not None:
                known[step] = own
                made.add(own)
    return [known.get(o) or zeros(o) for o in outputs]


def _apply(rule: Rule, known: dict[Value, Value]) -> None:
    """The tangents of a rule's outputs.

    Raises: UnsupportedError where it says nothing of forward mode.
    """
    if rule.push is None:
        raise UnsupportedError(
            f"forward mode through the {rule.kind} of {rule.outputs[0]!r}",
            origin=rule.outputs[0].origin,
            help="give a custom_jvp, or use reverse mode",
            code="E215",
        )
    tangents_of_outputs = rule.push([known.get(d) or zeros(d) for d in rule.deps])
    fitting(tangents_of_outputs, rule.outputs, rule)
    for output, tangent in zip(rule.outputs, tangents_of_outputs, strict=True):
        known.setdefault(output, tangent)


def _tangent(
    definition: Definition, known: Mapping[Value, Value], made: Container[Value]
) -> Value | None:
    """The tangent of one definition, from those of its sources; None where it is 0."""
    factored = running(definition) if sums_nothing(definition) else None
    if factored is None:
        return _moved(definition, known, made)
    whole, scan, turned = factored
    inner = _moved(scan, known, made, first=not turned)
    return None if inner is None else _moved(whole, {**known, scan: inner}, made)


def _moved(
    definition: Definition,
    known: Mapping[Value, Value],
    made: Container[Value],
    first: bool = False,
) -> Value | None:
    """The tangent by the form of a definition; `first`: see `forms.tangent_of`."""

    def along(take: Take) -> Expr:
        return fold.read_of(known[take.source], take.indices, made)

    body = push(definition.body, along, known)
    if fold.is_zero(body):
        return None
    return tangent_of(definition, reused(definition, body), first)
