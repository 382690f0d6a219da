"""Step sizes from squares of gradients: Adagrad, Adadelta, RMSprop, Adamax, NAdam, RAdam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pullback.ir.graph import Value
from pullback.nn.base.parameter import Parameter
from pullback.optim.base import Group, Params
from pullback.optim.ruled import Ruled, Settings, Step, averaged, decayed
from pullback.optim.schedules import Schedule
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.values import elementwise

State = Mapping[str, Tensor]
Betas = tuple[float, float]


class Adagrad(Ruled):
    """``s = s + g^2;  p = p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)``

    `s` begins with `initial_accumulator_value`; `g` has ``weight_decay p`` added.

    Source: Duchi, Hazan, Singer: Adaptive Subgradient Methods, 2011.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Adagrad([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, -1.899999976158142]
    """

    slots = ("sum",)
    elementwise = True
    limits = "lr_decay >= 0, weight_decay >= 0, initial_accumulator_value >= 0, eps >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def start(self, name: str, parameter: Parameter, group: Group) -> Value:
        begin = group.settings["initial_accumulator_value"]
        return elementwise.full(parameter.shape, begin, parameter.dtype)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        return (lr / (1.0 + (t - 1.0) * settings["lr_decay"]),)

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        g = decayed(p, g, settings)
        total = state["sum"] + g * g
        return p - numbers[0] * g / (M.sqrt(total) + settings["eps"]), {"sum": total}


class Adadelta(Ruled):
    """``v = rho v + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(v + eps) g``
    ``u = rho u + (1 - rho) d^2;  p = p - lr d``, with ``g = g + weight_decay p``.

    Source: Zeiler: ADADELTA, 2012.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Adadelta([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.9996837973594666, -1.9996837377548218]
    """

    slots = ("square_avg", "acc_delta")
    elementwise = True
    limits = "0 <= rho <= 1, eps >= 0, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {"rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, lr, settings, schedule)

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        g, rho, eps = decayed(p, g, settings), settings["rho"], settings["eps"]
        v = averaged(state["square_avg"], g * g, rho)
        d = M.sqrt(state["acc_delta"] + eps) / M.sqrt(v + eps) * g
        u = averaged(state["acc_delta"], d * d, rho)
        return p - numbers[0] * d, {"square_avg": v, "acc_delta": u}


class RMSprop(Ruled):
    """``v = alpha v + (1 - alpha) g^2;  d = g / (sqrt(v) + eps);  p = p - lr d``

    With momentum ``b = momentum b + d;  p = p - lr b``. Centered: ``v - a^2`` in place of `v`,
    where ``a = alpha a + (1 - alpha) g``; `g` has ``weight_decay p`` added.

    Source: Tieleman, Hinton: lecture 6.5, 2012; centered: Graves, 2013.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.RMSprop([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [5.960464477539063e-08, -1.0]
    """

    elementwise = True
    limits = "alpha >= 0, eps >= 0, weight_decay >= 0, momentum >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def state_names(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        also = {"momentum_buffer": settings["momentum"], "grad_avg": settings["centered"]}
        return ("square_avg", *(name for name, on in also.items() if on))

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        g, alpha = decayed(p, g, settings), settings["alpha"]
        fresh = {"square_avg": averaged(state["square_avg"], g * g, alpha)}
        spread = fresh["square_avg"]
        if settings["centered"]:
            a = fresh["grad_avg"] = averaged(state["grad_avg"], g, alpha)
            spread = spread - a * a
        d = g / (M.sqrt(spread) + settings["eps"])
        if settings["momentum"]:
            d = fresh["momentum_buffer"] = settings["momentum"] * state["momentum_buffer"] + d
        return p - numbers[0] * d, fresh


class Adamax(Ruled):
    """``m = b1 m + (1 - b1) g;  u = max(b2 u, |g| + eps);  p = p - lr / (1 - b1^t) m / u``

    `g` has ``weight_decay p`` added.

    Source: Kingma, Ba: Adam, 2015, section 7.1.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Adamax([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, -1.899999976158142]
    """

    slots = ("exp_avg", "exp_inf")
    elementwise = True
    limits = "0 <= betas < 1, eps >= 0, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, lr, settings, schedule)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        return (lr / (1.0 - settings["betas"][0] ** t),)

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        g, (b1, b2) = decayed(p, g, settings), settings["betas"]
        m = averaged(state["exp_avg"], g, b1)
        u = M.maximum(b2 * state["exp_inf"], M.abs(g) + settings["eps"])
        return p - numbers[0] * m / u, {"exp_avg": m, "exp_inf": u}


class _Moments(Ruled):
    """Averages of the gradient and of its square, and weight decay of either kind."""

    slots: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    limits = "0 <= betas < 1, eps >= 0, weight_decay >= 0, momentum_decay >= 0"

    @staticmethod
    def moments(
        p: Tensor, g: Tensor, kept: Tensor, state: State, settings: Settings
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The parameter and gradient after their decay, and the new averages."""
        b1, b2 = settings["betas"]
        if settings["decoupled_weight_decay"]:
            p = p * kept
        else:
            g = decayed(p, g, settings)
        m = averaged(state["exp_avg"], g, b1)
        return p, g, {"exp_avg": m, "exp_avg_sq": averaged(state["exp_avg_sq"], g * g, b2)}


class NAdam(_Moments):
    """``mu_t = b1 (1 - 0.96^(t momentum_decay) / 2)``, `m` and `v` as Adam's, then

    ``p = p - lr ((1 - mu_t) / (1 - M_t) g + mu_t+1 / (1 - M_t+1) m) / (sqrt(w) + eps)`` with
    ``w = v / (1 - b2^t)`` and `M` the product of all `mu`; `g` has ``weight_decay p`` added.
    `decoupled_weight_decay`: ``p = p (1 - lr weight_decay)`` first in its place.

    Source: Dozat: Incorporating Nesterov Momentum into Adam, 2016.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.NAdam([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8943548202514648, -1.8943548202514648]
    """

    elementwise = True
    slots = ("exp_avg", "exp_avg_sq", "mu_product")

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def start(self, name: str, parameter: Parameter, group: Group) -> Value:
        if name == "mu_product":
            return elementwise.full((), 1, parameter.dtype)
        return super().start(name, parameter, group)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        b1, b2 = settings["betas"]
        decay = settings["momentum_decay"]
        mu, after = (b1 * (1.0 - 0.5 * 0.96 ** ((t + n) * decay)) for n in (0.0, 1.0))
        return lr, mu, after, 1.0 - b2**t, 1.0 - lr * settings["weight_decay"]

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        lr, mu, after, bias, kept = numbers
        p, g, fresh = self.moments(p, g, kept, state, settings)
        product = fresh["mu_product"] = state["mu_product"] * mu
        below = M.sqrt(fresh["exp_avg_sq"] / bias) + settings["eps"]
        first = lr * (1.0 - mu) / (1.0 - product)
        second = lr * after / (1.0 - product * after)
        return p - first * g / below - second * fresh["exp_avg"] / below, fresh


class RAdam(_Moments):
    """``p = p - lr m / (1 - b1^t) r sqrt(1 - b2^t) / (sqrt(v) + eps)`` where ``rho_t > 5``, else
    ``p = p - lr m / (1 - b1^t)``, `m` and `v` as Adam's, with ``rho = 2 / (1 - b2) - 1``,
    ``rho_t = rho - 2 t b2^t / (1 - b2^t)`` and
    ``r = sqrt((rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t))``.

    `g` has ``weight_decay p`` added; `decoupled_weight_decay`: ``p = p (1 - lr weight_decay)``
    first in its place.

    Source: Liu et al.: On the Variance of the Adaptive Learning Rate and Beyond, 2020.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.RAdam([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.800000011920929, -1.600000023841858]
    """

    elementwise = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        b1, b2 = settings["betas"]
        bias = 1.0 - b2**t
        long = 2.0 / (1.0 - b2) - 1.0
        length = long - 2.0 * t * b2**t / bias
        rectified = length > 5.0
        safe = O.where(rectified, length, 6.0)
        ratio = (safe - 4.0) * (safe - 2.0) * long / ((long - 4.0) * (long - 2.0) * safe)
        share = M.sqrt(ratio) * M.sqrt(bias)
        size = lr / (1.0 - b1**t)
        return size, O.where(rectified, share, 0.0), 1.0 - lr * settings["weight_decay"]

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        size, share, kept = numbers
        p, g, fresh = self.moments(p, g, kept, state, settings)
        adapted = share / (M.sqrt(fresh["exp_avg_sq"]) + settings["eps"])
        return p - size * fresh["exp_avg"] * O.where(share > 0.0, adapted, 1.0), fresh
