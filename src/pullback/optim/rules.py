"""SGD, Adam and AdamW, with PyTorch's mathematics: maps over parameter, gradient and state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float64
from pullback.ir.expr import Add, Div, Equal, Expr, If, Mul
from pullback.ir.graph import Keep, Value
from pullback.nn.base.build import at, cast, make
from pullback.nn.base.parameter import Buffer, Parameter
from pullback.optim.base import Group, Optimizer, Params
from pullback.optim.schedules import Schedule

Body = Callable[..., Expr]


class SGD(Optimizer):
    """``b = mu b + (1 - dampening) d;  p = p - lr b`` with ``d = g + weight_decay p``.

    Nesterov: ``p = p - lr (d + mu b)``. The first `b` is `d`.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.SGD([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.800000011920929, -1.600000023841858]
    """

    elementwise = True
    limits = "momentum >= 0, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        if nesterov and (momentum <= 0.0 or dampening != 0.0):
            raise ShapeError("nesterov needs a momentum and no dampening", code="E124")
        super().__init__(params, lr, settings, schedule)
        self.counts = any(g.settings["dampening"] for g in self.param_groups)

    def state_names(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if settings["momentum"] else ()

    def rates(self, group: Group) -> Value:
        if self.schedule is None:
            return group.lr.value
        body = scheduled(self, group)
        return make("rate", (), lambda: body, keep=Keep.ALWAYS).value

    def update(
        self,
        parameter: Parameter,
        grad: Value,
        state: dict[str, Buffer],
        group: Group,
        rates: Value,
    ) -> None:
        p, kind = parameter.value, parameter.dtype
        moved = _decayed(p, grad, group.settings["weight_decay"])
        if group.settings["momentum"]:
            moved = self._gathered(moved, state["momentum_buffer"], group)

        def body(*i: Expr) -> Expr:
            return E.subtract(at(p, *i), Mul(cast(at(rates), kind), moved(*i)))

        parameter.assign(make("updated", p.shape, body))

    def _gathered(self, direction: Body, buffer: Buffer, group: Group) -> Body:
        """The direction with momentum; assigns the buffer."""
        held, count = buffer.value, self.steps.value
        settings = group.settings
        factor = E.const(settings["momentum"], held.dtype)
        dampening = settings["dampening"]
        share = E.const(1.0 - dampening, held.dtype)

        def body(*i: Expr) -> Expr:
            d = direction(*i)
            if not dampening:
                return Add(Mul(at(held, *i), factor), d)
            blended = Add(Mul(at(held, *i), factor), Mul(d, share))
            return If(Equal(at(count), E.index(0)), d, blended)

        fresh = make("momentum_buffer", held.shape, body)
        buffer.assign(fresh)
        new = fresh.value
        if not settings["nesterov"]:
            return lambda *i: at(new, *i)
        return lambda *i: Add(direction(*i), Mul(at(new, *i), factor))


class Adam(Optimizer):
    """``m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2``
    ``p = p - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)``, with ``g = g + weight_decay p``.

    `amsgrad`: with the largest `v` so far in place of `v`.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Adam([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, -1.899999976158142]
    """

    slots = ("exp_avg", "exp_avg_sq")
    counts = True
    decoupled = False
    elementwise = True
    limits = "0 <= betas < 1, eps >= 0, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def state_names(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return (*self.slots, *(["max_exp_avg_sq"] if settings["amsgrad"] else []))

    def rates(self, group: Group) -> Value:
        """``[lr / (1 - b1^t), 1 / sqrt(1 - b2^t), 1 - lr weight_decay]``, float64."""
        lr = scheduled(self, group)
        one = E.const(1, float64)
        t = Add(E.Cast(at(self.steps.value), float64), one)
        first, second = (E.subtract(one, _power(b, t)) for b in group.settings["betas"])
        decay = E.const(group.settings["weight_decay"], float64)
        kept = E.subtract(one, Mul(lr, decay))

        def body(n: Expr) -> Expr:
            rest = If(Equal(n, E.index(1)), Div(one, E.Sqrt(second)), kept)
            return If(Equal(n, E.index(0)), Div(lr, first), rest)

        return make("rates", (3,), body, keep=Keep.ALWAYS).value

    def update(
        self,
        parameter: Parameter,
        grad: Value,
        state: dict[str, Buffer],
        group: Group,
        rates: Value,
    ) -> None:
        p, kind = parameter.value, parameter.dtype
        decay = group.settings["weight_decay"]
        b1, b2 = group.settings["betas"]
        g = _decayed(p, grad, 0.0 if self.decoupled else decay)
        m = _averaged(state["exp_avg"], b1, g)
        v = _averaged(state["exp_avg_sq"], b2, lambda *i: F.square(g(*i)))
        if group.settings["amsgrad"]:
            v = _largest(state["max_exp_avg_sq"], v)
        eps = E.const(group.settings["eps"], kind)
        size, root, kept = (cast(at(rates, n), kind) for n in range(3))

        def body(*i: Expr) -> Expr:
            below = Add(Mul(E.Sqrt(at(v, *i)), root), eps)
            start = at(p, *i)
            if self.decoupled and decay:
                start = Mul(start, kept)
            return E.subtract(start, Mul(size, Div(at(m, *i), below)))

        parameter.assign(make("updated", p.shape, body))


class AdamW(Adam):
    """Adam with decoupled decay: ``p = p (1 - lr weight_decay)`` first, and `g` as it is.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.AdamW([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8989999890327454, -1.8980000019073486]
    """

    decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, schedule=schedule
        )


def scheduled(optimizer: Optimizer, group: Group) -> Expr:
    """The learning rate of this step, a float64: ``lr * factor(step)``"""
    lr = at(group.lr.value)
    if optimizer.schedule is None:
        return lr
    step = E.Cast(at(optimizer.steps.value), float64)
    return Mul(lr, optimizer.schedule.expression(step))


def _power(base: float, exponent: Expr) -> Expr:
    """``base ** exponent`` of a literal base."""
    if base == 0.0:
        return E.const(0, float64)
    return E.Exp(Mul(exponent, E.const(math.log(base), float64)))


def _decayed(p: Value, grad: Value, decay: float) -> Body:
    """``g + weight_decay p``"""
    if not decay:
        return lambda *i: at(grad, *i)
    factor = E.const(decay, p.dtype)
    return lambda *i: Add(at(grad, *i), Mul(at(p, *i), factor))


def _averaged(cell: Buffer, beta: float, x: Body) -> Value:
    """``a = beta a + (1 - beta) x``; assigns the cell."""
    held = cell.value
    old, new = (E.const(b, held.dtype) for b in (beta, 1.0 - beta))
    fresh = make("average", held.shape, lambda *i: Add(Mul(at(held, *i), old), Mul(x(*i), new)))
    cell.assign(fresh)
    return fresh.value


def _largest(cell: Buffer, x: Value) -> Value:
    """``a = max(a, x)``; assigns the cell."""
    held = cell.value
    fresh = make("largest", held.shape, lambda *i: E.maximum(at(held, *i), at(x, *i)))
    cell.assign(fresh)
    return fresh.value
