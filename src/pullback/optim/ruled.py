"""Optimisers that are a rule: a pure function of parameter, gradient, state and a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pullback.ir import expr as E
from pullback.ir.dtype import DType, float64
from pullback.ir.graph import Keep, Value
from pullback.nn.base.build import at, make
from pullback.nn.base.parameter import Buffer, Parameter
from pullback.nn.base.space import literal
from pullback.optim.base import Group, Optimizer, Params
from pullback.optim.rules import scheduled
from pullback.optim.schedules import Schedule
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import ops as O

Settings = Mapping[str, Any]
Step = tuple[Tensor, dict[str, Tensor]]


class Ruled(Optimizer):
    """Subclasses say what a step needs once (`numbers`) and what it does to a tensor (`rule`)."""

    counts = True

    def __init__(
        self, params: Params, lr: float, settings: Settings, schedule: Schedule | None
    ) -> None:
        super().__init__(params, lr, settings, schedule)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        """Numbers of one step, float64: of the learning rate and the step, counted from 1."""
        return (lr,)

    def rule(
        self,
        p: Tensor,
        g: Tensor,
        state: Mapping[str, Tensor],
        numbers: Sequence[Tensor],
        settings: Settings,
    ) -> Step:
        """The parameter and its state after a step."""
        raise NotImplementedError

    def rates(self, group: Group) -> Value:
        """`numbers` of this step, side by side, computed once."""
        lr = make("lr", (), lambda: scheduled(self, group))
        t = Tensor(self.steps.value).astype(float64) + 1.0
        listed = O.stack([n.astype(float64) for n in self.numbers(lr, t, group.settings)])
        value = listed.value
        return make("rates", listed.shape, lambda n: at(value, n), keep=Keep.ALWAYS).value

    def update(
        self,
        parameter: Parameter,
        grad: Value,
        state: dict[str, Buffer],
        group: Group,
        rates: Value,
    ) -> None:
        held = {name: Tensor(cell.value) for name, cell in state.items()}
        numbers = [
            _number(rates, n, parameter.dtype) for n in range(*literal("rates", rates.shape))
        ]
        p, fresh = self.rule(Tensor(parameter.value), Tensor(grad), held, numbers, group.settings)
        for name, value in fresh.items():
            state[name].assign(value)
        parameter.assign(p)


def _number(rates: Value, place: int, kind: DType) -> Tensor:
    """One of the numbers, of the parameter's type."""
    return make("rate", (), lambda: at(rates, E.index(place), to=kind))


def decayed(p: Tensor, g: Tensor, settings: Settings) -> Tensor:
    """``g + weight_decay p``"""
    return g + settings["weight_decay"] * p if settings["weight_decay"] else g


def averaged(a: Tensor, x: Tensor, beta: float) -> Tensor:
    """``beta a + (1 - beta) x``"""
    return beta * a + (1.0 - beta) * x
