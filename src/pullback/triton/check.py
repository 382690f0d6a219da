"""`pb.triton.check`: an operator's derivative, certified by differences and by what it must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pullback.config import frozen
from pullback.errors import ArgumentError, GradientError, UnsupportedError
from pullback.triton.frontend import interpreted
from pullback.triton.judged import by_bits, unjudged
from pullback.triton.operator import Call, Operator, is_float

DIRECTIONS = 3  # of each input, chosen at random
# Of an element, either way: of float64 and float32 about the cube root of the precision, of others
# less, so that what is compared with a number seldom comes to the other side.
STEPS = {torch.float64: 1e-5, torch.float32: 1e-2, torch.float16: 0.02, torch.bfloat16: 0.06}
MARGIN = 3  # elements that are no numbers, before a tensor and behind each of its rows


@frozen
class Report:
    """The largest errors, of the size of what is compared: by input, and of linearity.

    `layouts` are those of the same tensors that lie otherwise, `sizes` those of other sizes.
    """

    differences: dict[str, float]
    linear: float
    layouts: dict[str, float]
    sizes: dict[str, float]


def check(
    operator: Operator,
    *values: Any,
    tolerance: float = 5e-3,
    seed: int = 0,
    sizes: Sequence[str] = (),
    strides: Mapping[str, str] | None = None,
    **named: Any,
) -> Report:
    """Certifies the derivative of an operator at these arguments.

    <behind, (f(x + h v) - f(x - h v)) / 2 h>  =  <gradient, v>        for random `v` and `behind`
    gradient(a + 2 b)  =  gradient(a) + 2 gradient(b)          it is linear

    of each input of floats, of tensors as they lie in memory; of the same ones among elements that
    are no numbers, and at `strides` that are larger: ``{"row": "X"}`` says that the argument `row`
    is a stride of `X`; and at smaller `sizes`, names of arguments: one less, half of it and one.
    Differences are of the kernel's own precision: `tolerance` is relative.

    Raises: GradientError (E426) that names the input and both numbers; ArgumentError (E425) for
    strides and sizes that are none; UnsupportedError (E429) on Triton's interpreter for kernels
    that compute in bfloat16 itself; what the derivative raises.
    """
    call = operator.call(values, named)
    _judged(operator, call)
    given = {n: call.before.get(n, call.arguments[n]) for n in operator.takes}
    whole = _Certificate(operator, given, seed)
    errors = whole.differences(DIRECTIONS)
    linear = whole.linear()
    layouts = {
        label: _worst([*other.differences(1).values(), *other.beside(whole).values()])
        for label, other in _layouts(operator, given, seed, strides or {})
    }
    smaller = {
        f"{name}={size}": _worst(_Certificate(operator, less, seed).differences(1).values())
        for name, size, less in _sizes(operator, given, sizes)
    }
    for name, error in [
        *errors.items(), ("what is behind", linear), *layouts.items(), *smaller.items()
    ]:  # fmt: skip
        if not error <= tolerance:
            what = f"{operator.jit.__name__}: the derivative by {name} is off by {error:.2e}"
            raise GradientError(what, code="E426")
    return Report(errors, linear, layouts, smaller)


def _judged(operator: Operator, call: Call) -> None:
    """Raises: UnsupportedError (E429) where the interpreter's numbers are not a device's."""
    if not interpreted:
        return
    try:
        _, function = operator.function(call)
    except UnsupportedError:
        if operator.given is None:
            raise
        return  # of a kernel with a backward of its own not all is known here
    if (operation := by_bits(function)) is not None:
        raise unjudged(operator.jit.__name__, operation)


class _Certificate:
    """The gradients at one set of arguments."""

    def __init__(self, operator: Operator, given: Mapping[str, Any], seed: int) -> None:
        self.operator, self.given = operator, given
        self.random = torch.Generator().manual_seed(seed)
        self.call = operator.call((), given)
        self.chosen = operator.floats(self.call)
        self.outputs = _run(operator, self.call)
        self.behind = {n: _like(v, self.random) for n, v in self.outputs.items()}
        self.grown = operator.gradients(self.call, self.chosen, self.behind)

    def differences(self, directions: int) -> dict[str, float]:
        """The largest error of slopes along random directions, by input."""
        return {n: self.slopes(n, directions) for n in self.chosen}

    def linear(self) -> float:
        call, behind = self.call, self.behind
        other = {n: _like(v, self.random) for n, v in self.outputs.items()}
        second = self.operator.gradients(call, self.chosen, other)
        sums = {n: behind[n] + 2 * other[n] for n in behind}
        both = self.operator.gradients(call, self.chosen, sums)
        return _worst(_error(both[n], self.grown[n] + 2 * second[n]) for n in self.chosen)

    def beside(self, other: _Certificate) -> dict[str, float]:
        """How far the gradients are from those of the same numbers elsewhere."""
        return {n: _error(self.grown[n], other.grown[n]) for n in self.chosen}

    def slopes(self, name: str, directions: int) -> float:
        """The largest error, of the size of all terms."""
        value, errors = self.given[name], list[float]()
        step = STEPS[value.dtype]
        for _ in range(directions):
            direction = _like(value, self.random)
            slope, size = 0.0, 1e-6
            moved = [_placed_as(value, value.detach() + by * direction) for by in (step, -step)]
            ends = [
                _run(self.operator, self.operator.call((), {**self.given, name: v})) for v in moved
            ]
            way = (moved[0].double() - moved[1].double()) / (2 * step)  # as it was rounded
            for output, one in ends[0].items():
                change = (one.double() - ends[1][output].double()) / (2 * step)
                terms = change * self.behind[output].double()
                slope += float(terms.sum())
                size += float(terms.abs().sum())
            known = self.grown[name].double() * way
            size = max(size, float(known.abs().sum()))
            errors.append(abs(slope - float(known.sum())) / size)
        return _worst(errors)


def _layouts(
    operator: Operator, given: Mapping[str, Any], seed: int, strides: Mapping[str, str]
) -> Iterator[tuple[str, _Certificate]]:
    """The same arguments that lie otherwise: each among no numbers, and at larger strides."""
    tensors = {n: v for n, v in given.items() if is_float(v)}
    among = {n: _placed_as(v, v, MARGIN) for n, v in tensors.items()}
    yield "what lies among no numbers", _Certificate(operator, {**given, **among}, seed)
    for tensor in dict.fromkeys(strides.values()):
        numbers = {n: given[n] for n, of in strides.items() if of == tensor}
        value = tensors.get(tensor)
        if value is None or not {*numbers.values()} <= {*value.stride()}:
            what = f"pb.triton.check: {', '.join(numbers)} is no stride of {tensor}"
            raise ArgumentError(what, code="E425")
        least = min(numbers.values())
        wider = {n: _wider(k, least) for n, k in numbers.items()}
        steps = tuple(_wider(k, least) for k in value.stride())
        room = value.new_full((2 * MARGIN + _reach(value.shape, steps),), float("nan"))
        moved = room.as_strided(value.shape, steps, MARGIN)
        moved.copy_(value.detach())
        yield (
            f"{tensor} at {steps}",
            _Certificate(operator, {**given, **wider, tensor: moved}, seed),
        )


def _sizes(
    operator: Operator, given: Mapping[str, Any], sizes: Sequence[str]
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for name in sizes:
        whole = given.get(name)
        if not isinstance(whole, int) or isinstance(whole, bool):
            raise ArgumentError(f"pb.triton.check: {name} is no size", code="E425")
        for size in sorted({whole - 1, whole // 2 + 1} - {whole}):
            if size > 0:
                yield name, size, {**given, name: size}


def _wider(stride: int, least: int) -> int:
    """A stride, where what is `least` apart is `MARGIN` further apart."""
    return stride + MARGIN * (stride // least)


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((n - 1) * k for n, k in zip(shape, strides, strict=True) if n > 1)


def _placed_as(tensor: Any, values: Any, margin: int = 0) -> Any:
    """A tensor of these values that lies as another one does, with no numbers around it."""
    strides = tensor.stride()
    room = tensor.new_full((2 * margin + _reach(tensor.shape, strides),), float("nan"))
    made = room.as_strided(tensor.shape, strides, margin)
    made.copy_(values.detach())
    return made


def _run(operator: Operator, call: Call) -> dict[str, Any]:
    """The outputs of floats, new ones; what a kernel leaves out is 0."""
    made = {n: call.arguments[n] for n in operator.outputs}
    made = {n: v for n, v in made.items() if is_float(v)}
    for name, value in made.items():
        if name not in operator.replaced:
            value.zero_()
    operator.launch(operator.kernel, call, call.arguments)
    return {n: v.clone() for n, v in made.items()}


def _like(tensor: Any, random: Any) -> Any:
    made = torch.randn(tuple(tensor.shape), generator=random, dtype=torch.float64)
    return made.to(tensor.device, tensor.dtype)


def _worst(errors: Iterable[float]) -> float:
    """The largest one; one that is no number is."""
    made = list(errors)
    return next((e for e in made if e != e), max(made, default=0.0))


def _error(a: Any, b: Any) -> float:
    return float((a - b).double().norm() / (b.double().norm() + 1e-6))
