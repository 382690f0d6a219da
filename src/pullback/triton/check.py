"""`pb.triton.check`: an operator's derivative, certified by differences and by what it must be."""

from __future__ import annotations

from typing import Any

import torch

from pullback.config import frozen
from pullback.errors import GradientError
from pullback.triton.operator import Call, Operator

DIRECTIONS = 3  # of each input, chosen at random
STEP = 1e-2  # of an element, either way: of float32 about the cube root of its precision
FINE = 1e-5  # of float64, likewise


@frozen
class Report:
    """The largest errors, of the size of what is compared: by input, and of linearity."""

    differences: dict[str, float]
    linear: float


def check(
    operator: Operator, *values: Any, tolerance: float = 5e-3, seed: int = 0, **named: Any
) -> Report:
    """Certifies the derivative of an operator at these arguments.

    <behind, (f(x + h v) - f(x - h v)) / 2 h>  =  <gradient, v>        for random `v` and `behind`
    gradient(a + 2 b)  =  gradient(a) + 2 gradient(b)          it is linear

    of each input of floats, of tensors as they lie in memory. Differences are of the kernel's own
    precision: `tolerance` is relative.

    Raises: GradientError (E426) that names the input and both numbers.
    """
    call = operator.call(values, named)
    chosen = operator.floats(call)
    random = torch.Generator().manual_seed(seed)
    outputs = _run(operator, call)
    behind = {n: _like(v, random) for n, v in outputs.items()}
    other = {n: _like(v, random) for n, v in outputs.items()}
    grown = operator.gradients(call, chosen, behind)
    second = operator.gradients(call, chosen, other)
    both = operator.gradients(call, chosen, {n: behind[n] + 2 * other[n] for n in behind})
    errors = {n: _differences(operator, call, n, behind, grown[n], random) for n in chosen}
    linear = 0.0
    for name in chosen:
        linear = max(linear, _error(both[name], grown[name] + 2 * second[name]))
    for name, error in [*errors.items(), ("what is behind", linear)]:
        if not error <= tolerance:
            what = f"{operator.jit.__name__}: the derivative by {name} is off by {error:.2e}"
            raise GradientError(what, code="E426")
    return Report(errors, linear)


def _run(operator: Operator, call: Call) -> dict[str, Any]:
    """The outputs of floats, new ones."""
    operator.launch(operator.kernel, call, call.arguments)
    made = {n: call.arguments[n] for n in operator.outputs}
    return {n: v.clone() for n, v in made.items() if v.is_floating_point()}


def _like(tensor: Any, random: Any) -> Any:
    made = torch.randn(tuple(tensor.shape), generator=random, dtype=torch.float64)
    return made.to(tensor.device, tensor.dtype)


def _differences(
    operator: Operator, call: Call, name: str, behind: Any, gradient: Any, random: Any
) -> float:
    """The largest error of slopes along random directions, of the size of all terms."""
    worst, step = 0.0, FINE if call.arguments[name].dtype == torch.float64 else STEP
    given_to = {**call.arguments, **call.before}
    value = given_to[name]
    for _ in range(DIRECTIONS):
        direction = _like(value, random)
        slope, size = 0.0, 1e-6
        ends: list[dict[str, Any]] = []
        for sign in (1, -1):
            moved = value.detach() + sign * step * direction
            again = torch.empty_like(value.detach()).copy_(moved)
            given = [again if n == name else given_to[n] for n in operator.takes]
            ends.append(_run(operator, operator.call(given, {})))
        for output, one in ends[0].items():
            change = (one.double() - ends[1][output].double()) / (2 * step)
            terms = change * behind[output].double()
            slope += float(terms.sum())
            size += float(terms.abs().sum())
        known = gradient.double() * direction.double()
        size = max(size, float(known.abs().sum()))
        worst = max(worst, abs(slope - float(known.sum())) / size)
    return worst


def _error(a: Any, b: Any) -> float:
    return float((a - b).double().norm() / (b.double().norm() + 1e-6))
