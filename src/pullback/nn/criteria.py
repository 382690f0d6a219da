"""Losses as modules, under torch's names."""

from __future__ import annotations

from pullback.nn import cross_entropy as C
from pullback.nn import losses as L
from pullback.nn.module import Module
from pullback.nn.parameter import Buffer
from pullback.tensor.tensor import Tensor


class MSELoss(Module):
    """``(x - t)^2``"""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return L.mse_loss(input, target, self.reduction)


class L1Loss(Module):
    """``|x - t|``"""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return L.l1_loss(input, target, self.reduction)


class CrossEntropyLoss(Module):
    """``log(sum[c] exp(x[n, c])) - x[n, t[n]]``; floating targets are probabilities."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = None if weight is None else Buffer(weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return C.cross_entropy(
            input,
            target,
            self.weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
        )


class NLLLoss(Module):
    """``-x[n, t[n]]`` of log-probabilities."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.weight = None if weight is None else Buffer(weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return C.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class BCEWithLogitsLoss(Module):
    """``-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x))``"""

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.weight = None if weight is None else Buffer(weight)
        self.pos_weight = None if pos_weight is None else Buffer(pos_weight)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return L.binary_cross_entropy_with_logits(
            input, target, self.weight, self.reduction, self.pos_weight
        )
