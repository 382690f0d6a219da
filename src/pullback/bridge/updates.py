"""How PyTorch's optimizers update a parameter, on tensors that `torch.compile` traces.

What may change from step to step (rates, decays, bias corrections) are numbers given at the call,
a row for all parameters of a group that took the same number of steps; what shapes the formula
(`nesterov`, `amsgrad`, ..) is in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.bridge.programs import caller
from pullback.errors import UnsupportedError

Group = Mapping[str, Any]
Form = tuple[bool, ...]
"""What shapes the formula of a group."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: what its groups ask for, what it keeps of a parameter, how it updates one.

    `numbers(group, step)`: the row of the step that follows `step` others. `update` gives the
    parameter and its states as they are afterwards.
    """

    form: Callable[[Group], Form]
    states: Callable[[Group], tuple[str, ...]]
    numbers: Callable[[Group, float], tuple[float, ...]]
    update: Callable[[Any, Any, Sequence[Any], Sequence[Any], Form], tuple[Any, list[Any]]]
    counted: bool


def rule_of(optimizer: Any) -> Rule:
    """Raises: UnsupportedError for an optimizer that has no rule, or an option that it has not."""
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(kind.__name__ for kind in RULES)
        what = f"pb.torch.step with {type(optimizer).__name__}: there is no rule of its update"
        help = f"one of torch.optim's {known}; others step after torch.compile(model)"
        raise UnsupportedError(what, origin=caller(), help=help, code="E392")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            what = "pb.torch.step with differentiable=True: nothing differentiates through a step"
            raise UnsupportedError(what, origin=caller(), help="differentiable=False", code="E392")
    return rule


def _sgd(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``b = keep b + fresh g;  p -= lr (g + momentum b  if nesterov else  b)``"""
    moving, nesterov, maximize, decays = form
    lr, momentum, keep, fresh, decay = row
    g = -g if maximize else g
    g = g + decay * p if decays else g
    if not moving:
        return p - lr * g, []
    buffer = keep * held[0] + fresh * g
    along = g + momentum * buffer if nesterov else buffer
    return p - lr * along, [buffer]


def _sgd_numbers(group: Group, step: float) -> tuple[float, ...]:
    """The first buffer is the first gradient, undamped."""
    momentum = float(group["momentum"])
    keep, fresh = (momentum, 1.0 - float(group["dampening"])) if step else (0.0, 1.0)
    return float(group["lr"]), momentum, keep, fresh, float(group["weight_decay"])


def _adam(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``m += (1 - b1) (g - m);  v = b2 v + (1 - b2) g g;  p -= size m / (sqrt(v) / root + eps)``"""
    decoupled, amsgrad, maximize, decays = form
    size, left1, beta2, left2, root, eps, decay, shrink = row
    g = -g if maximize else g
    if decays and decoupled:
        p = p * shrink
    elif decays:
        g = g + decay * p
    first = held[0] + left1 * (g - held[0])
    second = beta2 * held[1] + left2 * (g * g)
    kept = [first, second]
    if amsgrad:
        kept.append(torch.maximum(held[2], second))
    return p - size * (first / (kept[-1].sqrt() / root + eps)), kept


def _adam_numbers(group: Group, step: float) -> tuple[float, ...]:
    beta1, beta2 = map(float, group["betas"])
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    size = lr / (1.0 - beta1 ** (step + 1.0))
    root = (1.0 - beta2 ** (step + 1.0)) ** 0.5
    rates = 1.0 - beta1, beta2, 1.0 - beta2
    return size, *rates, root, float(group["eps"]), decay, 1.0 - lr * decay


_ADAM = Rule(
    form=lambda group: (
        bool(group["decoupled_weight_decay"]),
        bool(group["amsgrad"]),
        bool(group["maximize"]),
        float(group["weight_decay"]) != 0.0,
    ),
    states=lambda group: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 2 + bool(group["amsgrad"])],
    numbers=_adam_numbers,
    update=_adam,
    counted=True,
)
_SGD = Rule(
    form=lambda group: (
        float(group["momentum"]) != 0.0,
        bool(group["nesterov"]),
        bool(group["maximize"]),
        float(group["weight_decay"]) != 0.0,
    ),
    states=lambda group: ("momentum_buffer",) * (float(group["momentum"]) != 0.0),
    numbers=_sgd_numbers,
    update=_sgd,
    counted=False,
)
RULES: dict[type, Rule] = {
    torch.optim.SGD: _SGD,
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
}
