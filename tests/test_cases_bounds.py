"""Nothing simplified: the gradient of every composite costs little, and none makes a Jacobian."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytest

import composites as C
import pullback as pb
from pullback import nn
from pullback.grad.reverse import gradients
from pullback.ir.expr import upper
from pullback.ir.graph import Definition, Value, Variable, topological
from pullback.nn import functional as F
from pullback.schedule.count import cost

EVERY = {**C.TENSORS, **C.MEMBERS, **{f"F.{n}": c for n, c in C.FUNCTIONS.items()}, **C.MODULES}

# Flops of the gradient over the forward's, where it is more than 4, and why it must be.
MORE: dict[str, tuple[float, str]] = {
    "sin": (6.0, "a sine is one primitive, 1 - 2 sin(x / 2)^2, right far out too, five"),
    "cumulative_prod": (
        7.5, "n products; its adjoint is a recurrence over pairs, which is exact at zeros"
    ),
    "reduce": (5.0, "the adjoints of both sides of a pair stand in one body, each under a guard"),
    "fmod": (7.5, "a remainder is one primitive; the slope by the divisor is a truncated quotient"),
    "hypot": (5.2, "which of the two is larger is asked again for the adjoint of each"),
    "F.glu": (5.6, "so do the adjoints of the two halves: of each element one is executed"),
}  # fmt: skip


def flat(found: Any) -> list[Any]:
    return [t for part in found for t in flat(part)] if isinstance(found, list | tuple) else [found]


def built(name: str) -> tuple[Value, list[Value]]:
    """The first float result of a composite, and all that it depends on."""
    function, arrays = EVERY[name]
    given = [pb.tensor(a) for a in arrays]
    y = next(t for t in flat(function(*given)) if t.dtype.is_float).value
    inputs = [x.value for x in given]
    if isinstance(function, nn.Module):
        inputs += [p.value for p in function.parameters()]
    read = {s for d in topological([y]) for s in d.sources}
    return y, [x for x in inputs if x in read]


def size(shape: Sequence[Any]) -> int:
    return prod(map(upper, shape))


def derived(name: str) -> tuple[list[Definition], list[Definition], list[Value]]:
    """The definitions of the forward, those that differentiation adds, the inputs."""
    y, inputs = built(name)
    found = gradients(y, inputs, Variable("head", y.shape, y.dtype))
    forward = topological([y])
    return forward, [d for d in topological(found) if d not in forward], inputs


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", EVERY)
def test_a_gradient_is_bounded(name: str) -> None:
    """At most four times the forward's flops; of a copy, two additions for every read."""
    forward, added, inputs = derived(name)
    reads = sum(cost([d]).executed * len(d.sources) for d in forward)
    factor, _ = MORE.get(name, (4.0, ""))
    assert cost(added).flops <= max(factor * cost(forward).flops, 2 * reads)
    largest = max([size(d.extents) for d in forward] + [size(x.shape) for x in inputs])
    for d in added:
        assert size(d.shape) <= largest, f"{d} is larger than what the forward visits"


def test_no_composite_is_left_out() -> None:
    assert set(pb.__all__) == set(C.TENSORS) | C.OTHERWISE
    assert set(F.__all__) == set(C.FUNCTIONS) | C.NO_FLOATS
    assert set(C.MEMBERS) <= C.FAMILIES


def test_what_exceeds_the_bound_does() -> None:
    """An entry that is no longer needed leaves the list."""
    for name, (factor, _) in MORE.items():
        forward, added, _ = derived(name)
        ratio = cost(added).flops / cost(forward).flops
        assert 4 < ratio <= factor
