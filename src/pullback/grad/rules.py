"""The order in which values are differentiated, around derivatives that are given.

A rule stands between its outputs and its dependencies: what lies in between is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pullback.errors import GradientError
from pullback.ir.graph import Definition, Rule, Value, Variable
from pullback.ir.node import postorder

Step = Definition | Rule
Rules = Callable[[Definition], Rule | None]


def own_rule(definition: Definition) -> Rule | None:
    """The rule that a definition was made with, if any."""
    return definition.rule


def ordered(outputs: Iterable[Value], rules: Rules) -> list[Step]:
    """Definitions and rules that `outputs` need, sources before users, rules before outputs.

    What a gradient cannot reach is left out.
    """

    def under(step: Value | Rule) -> Sequence[Value | Rule] | None:
        return None if isinstance(step, Variable) else below(step, rules)

    return [s for s in postorder(outputs, under) if not isinstance(s, Variable)]


def below(step: Step, rules: Rules) -> Sequence[Value | Rule]:
    """What `step` is differentiated by; nothing where no gradient passes."""
    if isinstance(step, Rule):
        return step.deps
    if step.stop or not step.dtype.is_float:
        return ()
    rule = rules(step)
    return step.sources if rule is None else (rule,)


def active(order: Sequence[Step], inputs: Iterable[Value], rules: Rules) -> set[Value | Rule]:
    """The inputs and every float definition, or rule, that depends on one of them."""
    reached: set[Value | Rule] = set(inputs)
    for step in order:
        if any(s in reached for s in below(step, rules)):
            reached.add(step)
    return reached


def fitting(given_values: Sequence[Value | None], wanted: Sequence[Value], rule: Rule) -> None:
    """Raises: GradientError where a rule gave a value of another number, shape or type."""
    named = f"the {rule.kind} of {rule.outputs[0]!r}"
    origin = rule.outputs[0].origin
    if len(given_values) != len(wanted):
        raise GradientError(
            f"{named} gave {len(given_values)} values for {len(wanted)}", origin=origin, code="E207"
        )
    for given, value in zip(given_values, wanted, strict=True):
        if given is not None and (given.shape, given.dtype) != (value.shape, value.dtype):
            raise GradientError(
                f"{named} gave {given.dtype}{given.shape} for {value!r},"
                f" which is {value.dtype}{value.shape}",
                origin=origin,
                code="E208",
            )
