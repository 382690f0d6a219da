"""Derivatives that are given, not derived, and the order in which values are differentiated.

A rule stands between its outputs and its dependencies, which need not be immediate: what lies in
between is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pullback.errors import GradientError
from pullback.ir.graph import Definition, Value

Pull = Callable[[Sequence[Value]], Sequence[Value | None]]
Push = Callable[[Sequence[Value]], Sequence[Value]]


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """``adjoints of deps = pull(adjoints of outputs)``; forward, ``push`` of tangents.

    `pull` and `push` are called once, with a value for every output (dependency): zeros where
    there is no influence.
    """

    kind: str
    outputs: tuple[Value, ...]
    deps: tuple[Value, ...]
    pull: Pull | None = None
    push: Push | None = None

    @property
    def sources(self) -> tuple[Value, ...]:
        return self.deps


Step = Definition | Rule
Rules = Callable[[Definition], Rule | None]


def derived(definition: Definition) -> Rule | None:
    """No rule is given: everything is derived."""
    return None


def ordered(outputs: Iterable[Value], rules: Rules) -> list[Step]:
    """Definitions and rules that `outputs` need, sources before users, rules before outputs."""
    order: list[Step] = []
    seen: set[Step] = set()
    stack: list[tuple[Value | Rule, bool]] = [(o, False) for o in reversed(list(outputs))]
    while stack:
        step, ready = stack.pop()
        if not isinstance(step, Definition | Rule):
            continue
        if ready:
            order.append(step)
            continue
        if step in seen:
            continue
        seen.add(step)
        stack.append((step, True))
        rule = rules(step) if isinstance(step, Definition) else None
        below = step.sources if rule is None else (rule,)
        stack.extend((s, False) for s in reversed(below))
    return order


def active(order: Sequence[Step], inputs: Iterable[Value], rules: Rules) -> set[Value | Rule]:
    """The inputs and every float definition, or rule, that depends on one of them."""
    found: set[Value | Rule] = set(inputs)
    for step in order:
        below: Sequence[Value | Rule] = step.sources
        if isinstance(step, Definition):
            if not step.dtype.is_float or step.stop:
                continue
            rule = rules(step)
            below = below if rule is None else (rule,)
        if any(s in found for s in below):
            found.add(step)
    return found


def fitting(found: Sequence[Value | None], wanted: Sequence[Value], rule: Rule) -> None:
    """Raises: GradientError where a rule gave a value of another number, shape or type."""
    named = f"the {rule.kind} of {rule.outputs[0]!r}"
    origin = rule.outputs[0].origin
    if len(found) != len(wanted):
        raise GradientError(f"{named} gave {len(found)} values for {len(wanted)}", origin=origin)
    for given, value in zip(found, wanted, strict=True):
        if given is not None and (given.shape, given.dtype) != (value.shape, value.dtype):
            raise GradientError(
                f"{named} gave {given.dtype}{given.shape} for {value!r},"
                f" which is {value.dtype}{value.shape}",
                origin=origin,
            )
