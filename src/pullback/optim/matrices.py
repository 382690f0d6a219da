"""Optimisers that know that a parameter is a matrix: Adafactor and Muon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes

from pullback.errors import OptionError, ShapeError
from pullback.ir.dtype import DType, bfloat16, float32, is_short
from pullback.ir.graph import Value
from pullback.nn.base.parameter import Parameter
from pullback.nn.base.space import literal
from pullback.optim.base import Group, Params
from pullback.optim.ruled import Ruled, Settings, Step, averaged
from pullback.optim.schedules import Schedule
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.values import elementwise

State = Mapping[str, Tensor]
ADJUST = (None, "original", "match_rms_adamw")


class Adafactor(Ruled):
    """``p = p (1 - lr weight_decay) - alpha u / max(1, rms(u) / d)`` with ``u = g / sqrt(v)``,

    ``alpha = max(eps[1], rms(p)) min(lr, 1 / sqrt(t))``. Of a matrix `v` is the product of the
    means of ``g^2`` over rows and columns, divided by the mean of the first; both, and `v` of a
    vector, are averages with ``1 - t^beta2_decay`` for what they were. `v` is at least
    ``eps[0]^2``; None: the type's epsilon.

    Source: Shazeer, Stern: Adafactor, 2018.

    Example:
        >>> w = nn.Parameter(pb.tensor([1.0, -2.0]))
        >>> optimizer = pb.optim.Adafactor([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.tolist()
        [0.8418861031532288, -1.8418861627578735]
    """

    limits = "beta2_decay <= 0, eps >= 0, d >= 1, weight_decay >= 0"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, lr, settings, schedule)

    def names_for(self, parameter: Parameter, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("row_var", "col_var") if parameter.ndim > 1 else ("variance",)

    def start(self, name: str, parameter: Parameter, group: Group) -> Value:
        shape = [*parameter.shape]
        if name != "variance":
            shape[-1 if name == "row_var" else -2] = 1
        return elementwise.full(tuple(shape), 0, parameter.dtype)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        kept = 1.0 - lr * settings["weight_decay"]
        return t ** settings["beta2_decay"], M.minimum(lr, 1.0 / M.sqrt(t)), kept

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        (share, rho, kept), (least, scale) = numbers, settings["eps"]
        least = _epsilon(p.dtype) if least is None else least
        alpha = M.maximum(_rms(p), scale) * rho
        p = p * kept if settings["weight_decay"] else p
        if "variance" in state:
            v = _toward(state["variance"], g * g, share)
            fresh = {"variance": v}
        else:
            rows = _toward(state["row_var"], O.mean(g * g, axis=-1, keepdims=True), share)
            columns = _toward(state["col_var"], O.mean(g * g, axis=-2, keepdims=True), share)
            fresh = {"row_var": rows, "col_var": columns}
            v = rows * columns / M.maximum(O.mean(rows, axis=-2, keepdims=True), least)
        u = g / M.sqrt(M.maximum(v, least * least))
        below = M.maximum(_rms(u) / settings["d"], 1.0)
        return p - alpha / below * u, fresh


def _toward(a: Tensor, x: Tensor, share: Tensor) -> Tensor:
    return a + share * (x - a)


def _rms(x: Tensor) -> Tensor:
    """The root of the mean of squares of all elements."""
    root: Tensor = M.sqrt(O.mean(x * x))
    return root


def _epsilon(kind: DType) -> float:
    """The distance from 1 to the next larger number of a type."""
    facts: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]  # it has no types
    return float(facts.eps)


class Muon(Ruled):
    """``b = mu b + (1 - mu) g;  p = p (1 - lr weight_decay) - lr s NS(b)``, for matrices alone.

    `NS` turns a matrix towards its orthogonal factor: of ``x = b / max(|b|, eps)`` in bfloat16
    `ns_steps` times ``x = a x + (b A + c A A) x`` with ``A = x x^T``. Nesterov: of
    ``(1 - mu) g + mu b``. The factor `s` is ``sqrt(max(1, rows / columns))``, or
    ``0.2 sqrt(max(rows, columns))`` for ``adjust_lr_fn="match_rms_adamw"``.

    Raises: ShapeError for a parameter that is no matrix, OptionError for another `adjust_lr_fn`.
    Source: Jordan et al.: Muon, 2024; Liu et al.: Muon is Scalable for LLM Training, 2025.

    Example:
        >>> w = nn.Parameter(pb.ones((2, 3)))
        >>> optimizer = pb.optim.Muon([w], lr=0.1)
        >>> pb.sum(w * w).backward()
        >>> optimizer.step()
        >>> w.shape
        (2, 3)
    """

    slots = ("momentum_buffer",)
    kind = bfloat16
    limits = "weight_decay >= 0, momentum >= 0, eps >= 0, 0 <= int(ns_steps) < 100"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        settings = {
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, lr, settings, schedule)
        for group in self.param_groups:
            _check_matrices(group)

    def numbers(self, lr: Tensor, t: Tensor, settings: Settings) -> Sequence[Tensor]:
        return lr, 1.0 - lr * settings["weight_decay"]

    def rule(
        self, p: Tensor, g: Tensor, state: State, numbers: Sequence[Tensor], settings: Settings
    ) -> Step:
        (lr, kept), mu = numbers, settings["momentum"]
        b = averaged(state["momentum_buffer"], g, mu)
        toward = averaged(g, b, 1.0 - mu) if settings["nesterov"] else b
        size = _adjusted(settings["adjust_lr_fn"], *literal("Muon", p.shape))
        turned = orthogonal(toward, settings, self.kind).astype(p.dtype)
        return p * kept - lr * size * turned, {"momentum_buffer": b}


def orthogonal(x: Tensor, settings: Settings, kind: DType) -> Tensor:
    """The matrix turned towards its orthogonal factor by a quintic iteration in `kind`.

    What is stored is of `kind`, sums are in float32 or more.
    """
    rows, columns = literal("Muon", x.shape)
    a, b, c = settings["ns_coefficients"]
    wide = float32 if is_short(kind) else kind

    def stored(value: Tensor) -> Tensor:
        return value.astype(kind).astype(wide)

    x = stored(x.T if rows > columns else x)
    norm = stored(M.sqrt(O.sum(x * x)))
    x = stored(x / M.maximum(norm, settings["eps"]))
    for _ in range(settings["ns_steps"]):
        gram = stored(x @ x.T)
        gram = stored(b * gram + c * (gram @ gram))
        x = stored(a * x + gram @ x)
    return x.T if rows > columns else x


def _adjusted(name: str | None, rows: int, columns: int) -> float:
    if name == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def _check_matrices(group: Group) -> None:
    """Raises: ShapeError for what is no matrix, OptionError for a wrong `adjust_lr_fn`."""
    for parameter in group.params:
        if parameter.ndim != 2:
            raise ShapeError(
                f"Muon takes matrices, not a parameter of shape {parameter.shape}",
                help="another optimiser for the others",
                code="E111",
            )
    if group.settings["adjust_lr_fn"] not in ADJUST:
        wanted = ", ".join(repr(n) for n in ADJUST)
        raise OptionError(f"adjust_lr_fn is one of {wanted}", code="E124")
