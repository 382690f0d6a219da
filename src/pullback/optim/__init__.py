"""Optimisers and learning-rate schedules."""

from typing import Any

from pullback.nn.utils import clip_grad_norm_, clip_grad_value_
from pullback.optim import schedules
from pullback.optim.adaptive import Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop
from pullback.optim.base import Group, Optimizer
from pullback.optim.lbfgs import Minimum, lbfgs
from pullback.optim.matrices import Adafactor, Muon
from pullback.optim.rules import SGD, Adam, AdamW
from pullback.optim.schedules import Schedule
from pullback.optim.signs import ASGD, Lion, Rprop
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Group",
    "Lion",
    "Minimum",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Schedule",
    "clip_grad_norm_",
    "clip_grad_value_",
    "lbfgs",
    "schedules",
]


__dir__ = _shown(__all__)


def __getattr__(name: str) -> Any:
    raise _unknown("pullback.optim", name, __all__)
