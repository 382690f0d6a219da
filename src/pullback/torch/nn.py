"""PyTorch's `nn`, with the layers that pullback runs as operators, fused with what follows them.

from pullback.torch import nn

nn.Linear(8, 4, act_func="gelu")     nn.BatchNorm2d(3, act_func="relu")(x, residual)
nn.GLU(act_func="silu")              nn.ReLU(drop_p=0.1)

What is not here is PyTorch's own; `pb.torch.report(model)` tells which layers run so.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.nn as _theirs

from pullback import nn as _ours
from pullback.bridge.composed import Attention, BatchNorm, Dropped, Gated
from pullback.bridge.fused import Fused, activation, share_of
from pullback.bridge.modules import LEFT

_ACTIVE = ("Linear", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GLU")
"""Layers with `act_func` and `drop_p`."""
_DROPPING = (
    "ELU", "CELU", "SELU", "GELU", "ReLU", "ReLU6", "LeakyReLU", "SiLU", "Mish", "Sigmoid",
    "LogSigmoid", "Tanh", "Tanhshrink", "Softplus", "Softsign", "Softshrink", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh",
)  # fmt: skip
"""Activations with `drop_p`."""
_BASES: dict[str, type] = {
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), BatchNorm),
    "GLU": Gated,
    "Dropout": Dropped,
    "MultiheadAttention": Attention,
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _layer(name: str) -> type:
    """The class of a layer: PyTorch's, with a forward that is an operator."""
    theirs = getattr(_theirs, name)
    base = _BASES.get(name, Fused)
    body: dict[str, Any] = {"__module__": __name__, "__qualname__": name, "__doc__": theirs.__doc__}
    if base is not Fused:
        body["forward"] = base.__dict__.get("forward", Fused.forward)
    more = ["act_func"] * (name in _ACTIVE) + ["drop_p"] * (name in (*_ACTIVE, *_DROPPING))
    if more:
        body["__init__"] = _initializer(theirs, more)
    return type(name, (base, theirs), body)


def _initializer(theirs: Any, more: list[str]) -> Any:
    """PyTorch's, with keywords of ours."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        act, share = kwargs.pop("act_func", None), kwargs.pop("drop_p", 0.0)
        if act is not None:
            activation(act)
        share = share_of(share)
        theirs.__init__(self, *args, **kwargs)
        self.act_func, self.drop_p = act, share

    own = inspect.signature(theirs)
    given = list(own.parameters.values())
    rest = [p for p in given if p.kind is inspect.Parameter.VAR_KEYWORD]
    defaults = {"act_func": None, "drop_p": 0.0}
    keywords = [inspect.Parameter(n, _KEYWORD, default=defaults[n]) for n in more]
    kept = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    kept += [p for p in given if p not in rest]
    told = own.replace(parameters=[*kept, *keywords, *rest])
    setattr(__init__, "__signature__", told)  # noqa: B010  # functions have none that mypy knows
    return __init__


def _names() -> list[str]:
    """Layers that run here."""
    public = [n for n in dir(_theirs) if isinstance(getattr(_theirs, n), type)]
    layers = [n for n in public if issubclass(getattr(_theirs, n), _theirs.Module)]
    plain = [n for n in layers if n in _ours.__all__ and n not in LEFT and n != "Module"]
    return sorted({*plain, *_BASES})


_LAYERS = {name: _layer(name) for name in _names()}
globals().update(_LAYERS)
__all__ = [n for n in dir(_theirs) if not n.startswith("_")]


def __getattr__(name: str) -> Any:
    """What is not here is PyTorch's own."""
    return getattr(_theirs, name)


def __dir__() -> list[str]:
    return list(__all__)
