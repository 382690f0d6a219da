"""Optimisers and learning-rate schedules."""

from pullback.nn.utils import clip_grad_norm_, clip_grad_value_
from pullback.optim import schedules
from pullback.optim.base import Group, Optimizer
from pullback.optim.rules import SGD, Adam, AdamW
from pullback.optim.schedules import Schedule

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
