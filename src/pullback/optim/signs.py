"""Steps by the sign of a gradient, and averaged ones: Lion, Rprop, ASGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


class Lion(Ruled):
    """``p = p (1 - lr weight_decay) - lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g``

    Source: Chen et al.: Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Lion([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, -1.899999976158142]
    """

    slots = ("exp_avg",)
    elementwise = True
    limits = "0 <= betas < 1, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {"betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, lr, settings, schedule)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        return lr, 1.0 - lr * settings["weight_decay"]

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        (b1, b2), (lr, kept), m = settings["betas"], numbers, state["exp_avg"]
        p = p * kept if settings["weight_decay"] else p
        return p - lr * M.sign(averaged(m, g, b1)), {"exp_avg": averaged(m, g, b2)}


class Rprop(Ruled):
    """``p = p - sign(g) s`` with a step size `s` of each element, which begins with `lr`

    and is multiplied by ``etas[1]`` where `g` keeps its sign, by ``etas[0]`` where it turns (there
    `g` counts as 0), within `step_sizes`.

    Source: Riedmiller, Braun: RPROP, 1993.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Rprop([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, -1.899999976158142]
    """

    slots = ("prev", "step_size")
    elementwise = True
    limits = "0 < etas[0] < 1, etas[1] > 1, 0 <= step_sizes[0] <= step_sizes[1]"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None:
        settings = {"etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, lr, settings, None)

    def start(self, name: str, parameter: Parameter, group: Group) -> Value:
        begin = float(group.lr.item()) if name == "step_size" else 0
        return elementwise.full(parameter.shape, begin, parameter.dtype)

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        (shorter, longer), (least, most) = settings["etas"], settings["step_sizes"]
        turn = g * state["prev"]
        held = state["step_size"]
        size = O.where(turn > 0.0, held * longer, O.where(turn < 0.0, held * shorter, held))
        size = O.clip(size, least, most)
        g = O.where(turn < 0.0, 0.0, g)
        return p - M.sign(g) * size, {"prev": g, "step_size": size}


class ASGD(Ruled):
    """``p = p (1 - lambd eta) - eta g`` with ``eta = lr / (1 + lambd lr (t - 1))^alpha``;
    its average ``ax = ax + (p - ax) / max(1, t - 1 - t0)`` is in the state.

    `g` has ``weight_decay p`` added.

    Source: Polyak, Juditsky: Acceleration of stochastic approximation by averaging, 1992.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.ASGD([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.7999899983406067, -1.5999799966812134]
    """

    slots = ("ax",)
    elementwise = True
    limits = "lambd >= 0, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        lambd, before = settings["lambd"], t - 1.0
        eta = lr / (1.0 + lambd * lr * before) ** settings["alpha"]
        return eta, 1.0 - lambd * eta, 1.0 / M.maximum(before - settings["t0"], 1.0)

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        (eta, kept, share), ax = numbers, state["ax"]
        p = p * kept - eta * decayed(p, g, settings)
        return p, {"ax": O.where(share == 1.0, p, ax + (p - ax) * share)}
