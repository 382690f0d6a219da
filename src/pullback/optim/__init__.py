"""Optimisers and learning-rate schedules."""

from typing import Any

from pullback.nn.utils import clip_grad_norm_, clip_grad_value_
from pullback.optim import schedules
from pullback.optim.base import Group, Optimizer
from pullback.optim.rules import SGD, Adam, AdamW
from pullback.optim.schedules import Schedule
from pullback.tensor.dialect import unknown as _unknown

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Group",
    "Optimizer",
    "Schedule",
    "clip_grad_norm_",
    "clip_grad_value_",
    "schedules",
]


def __getattr__(name: str) -> Any:
    raise _unknown("pullback.optim", name, __all__)
