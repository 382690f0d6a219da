"""`pb.torch.module`: layers of an `nn.Module` run as compiled programs on their own parameters.

net = pb.torch.module(model)      # Linear(8, 4)    ->    its forward is pullback::nn_Linear_..
print(pb.torch.report(net))       # Dropout(p=0.1)  ->    left: it draws random numbers
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pullback import nn
from pullback.bridge.derived import checked
from pullback.bridge.operator import Operator, known, made
from pullback.bridge.programs import PLACES, TYPES
from pullback.bridge.signature import TENSOR, Parameter, Signature
from pullback.errors import PullbackError, UnsupportedError
from pullback.nn.functional import functional_call
from pullback.tensor.library.creation import zeros

log = logging.getLogger("pullback")

SPACE = "pullback"
_RANDOM = "it draws from PyTorch's random numbers"
_SEVERAL = "it takes and gives more than tensors in a row"
_COMPOSED = "its parts are replaced, not it"
LEFT: dict[str, str] = {
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"), _RANDOM),
    **dict.fromkeys(("AlphaDropout", "FeatureAlphaDropout", "RReLU"), _RANDOM),
    **dict.fromkeys(("FractionalMaxPool2d", "FractionalMaxPool3d"), _RANDOM),
    **dict.fromkeys(("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"), _SEVERAL),
    **dict.fromkeys(("MultiheadAttention", "EmbeddingBag", "CTCLoss"), _SEVERAL),
    **dict.fromkeys(("Transformer", "TransformerEncoder", "TransformerDecoder"), _COMPOSED),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), _COMPOSED),
    "TripletMarginWithDistanceLoss": "its distance is a function of Python",
    **dict.fromkeys(("Sequential", "ModuleList", "ModuleDict"), _COMPOSED),
    "Identity": "it computes nothing",
}
_UNTOLD = ("self", "device", "dtype", "inplace", "size_average", "reduce")


@dataclass(frozen=True, slots=True)
class Report:
    """Which layers run as compiled programs, by name, and why the others do not.

    Example:
        >>> import torch
        >>> model = pb.torch.module(torch.nn.LayerNorm(4))
        >>> isinstance(pb.torch.report(model), pb.torch.Report)
        True
    """

    replaced: Mapping[str, str]
    left: Mapping[str, str]

    def __str__(self) -> str:
        width = max(map(len, (*self.replaced, *self.left)), default=0)
        lines = [f"{n:{width}}  {operator}" for n, operator in self.replaced.items()]
        return "\n".join([*lines, *(f"{n:{width}}  left: {why}" for n, why in self.left.items())])


def module(model: Any) -> Any:
    """A tree of the same modules, parameters, buffers and hooks; layers that are known here run
    as compiled programs.

    The parameters are those of `model`, not copies: an optimizer of either trains both, and
    `state_dict` has the same keys. Modes are honoured: what must stay PyTorch's in training
    (running statistics) runs there as it did. `pb.torch.report` tells what was left, and why.

    Example:
        >>> import torch
        >>> model = pb.torch.module(torch.nn.LayerNorm(4))
        >>> model(torch.ones(2, 4)).shape
        torch.Size([2, 4])
    """
    twins: dict[int, Any] = {}
    for own in reversed(list(model.modules())):
        twin = _twin(own)
        for name, child in own._modules.items():
            twin._modules[name] = None if child is None else twins[id(child)]
        twins[id(own)] = twin
    whole = twins[id(model)]
    log.info("pb.torch.module:\n%s", report_of(whole))
    return whole


def report_of(model: Any) -> Report:
    """What `pb.torch.module` made of the layers of a module, in the mode that each is in."""
    replaced, left = {}, {}
    whole: list[str] = []  # layers that have layers, and run as one

    def inside(name: str) -> bool:
        return any(name.startswith(f"{own}." if own else "") and name != own for own in whole)

    for name, own in model.named_modules():
        if inside(name):
            continue
        if hasattr(own, "_pullback_left"):
            why = own._pullback_left()
            whole += [name] * (why is None and bool(own._modules))
            if why is None:
                replaced[name] = own._pullback.name
            else:
                left[name] = why
        elif not _holds_others(own):
            left[name] = _refusal(own) or "it is not replaced yet"
    return Report(replaced, left)


def _holds_others(own: Any) -> bool:
    return bool(own._modules) or isinstance(
        own, torch.nn.Sequential | torch.nn.ModuleList | torch.nn.ModuleDict
    )


class _Compiled:
    """Beside a layer's own class: its forward as an operator on what it holds."""

    _pullback: Operator
    _pullback_names: tuple[str, ...]
    _pullback_inputs: int
    training: bool

    def forward(self, *inputs: Any, **settings: Any) -> Any:
        """The operator where it is given tensors alone, else what the layer itself does."""
        if settings or len(inputs) != self._pullback_inputs or self._pullback_left() is not None:
            return super().forward(*inputs, **settings)  # type: ignore[misc]  # of the layer
        return self._pullback(*inputs, *[getattr(self, n) for n in self._pullback_names])

    def _pullback_left(self) -> str | None:
        """Why the layer runs as PyTorch's in the mode that it is in."""
        if self.training and getattr(self, "running_mean", None) is not None:
            return "in training it assigns its running statistics"
        return None

    def __reduce__(self) -> Any:
        return _restored, (type(self).__mro__[2], _without(self.__dict__))


@functools.cache
def _compiled(kind: type) -> type:
    """The class of layers of a kind that run compiled."""
    return type(kind.__name__, (_Compiled, kind), {"__module__": kind.__module__})


def _twin(own: Any) -> Any:
    """A module of the same parameters; of a known layer one that runs compiled."""
    twin = object.__new__(type(own))
    twin.__dict__.update(own.__dict__)
    for home in ("_parameters", "_buffers", "_modules"):
        twin.__dict__[home] = dict(own.__dict__[home])
    if _refusal(own) is None:
        _install(twin, type(own))
    return twin


def _install(layer: Any, kind: type) -> None:
    layer.__class__ = _compiled(kind)
    names = [n for n, held in _held(layer) if held is not None]
    operator = _operator(layer, kind, names)
    count = len(operator.function.signature.parameters) - len(names)
    told = {"_pullback": operator, "_pullback_names": tuple(names), "_pullback_inputs": count}
    layer.__dict__.update(told)


def _restored(kind: type, state: dict[str, Any]) -> Any:
    """A layer out of a file, or a copy."""
    layer: Any = object.__new__(kind)
    layer.__dict__.update(state)
    _install(layer, kind)
    return layer


def _without(state: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in state.items() if not n.startswith("_pullback")}


def _held(layer: Any) -> Iterator[tuple[str, Any]]:
    yield from layer._parameters.items()
    yield from layer._buffers.items()


# --- which layers --------------------------------------------------------------------------------


def _refusal(layer: Any) -> str | None:
    """Why a layer is left as it is; None where it can run compiled."""
    kind = type(layer)
    name = kind.__name__
    if getattr(torch.nn, name, None) is not kind:
        return "it is a class of its own"
    if name in LEFT:
        return LEFT[name]
    if name not in nn.__all__:
        return f"there is no nn.{name} here"
    if getattr(layer, "inplace", False):
        return "inplace=True: it writes over its input"
    for _, held in _held(layer):
        if held is not None and (held.device.type not in PLACES or held.dtype not in TYPES):
            return f"it holds tensors of {held.device}, {held.dtype}"
    try:
        _own(layer, kind)
    except PullbackError as error:
        return error.what
    return None


def _settings(layer: Any, kind: type) -> dict[str, Any]:
    """What the layer here is to be told, read off PyTorch's."""
    told = {}
    theirs = inspect.signature(kind).parameters
    for name in inspect.signature(getattr(nn, kind.__name__)).parameters:
        if name in _UNTOLD or name not in theirs:
            continue
        if not hasattr(layer, name):
            raise UnsupportedError(f"it does not tell its `{name}`")
        value = getattr(layer, name)
        told[name] = value is not None if name == "bias" else value
    return told


def _own(layer: Any, kind: type) -> nn.Module:
    """The layer of this library. Raises: PullbackError for settings that it refuses."""
    told = _settings(layer, kind)
    if told.get("max_norm") is not None:
        raise UnsupportedError("max_norm: it writes over its weights")
    given = {n: _blank(v) if isinstance(v, torch.Tensor) else v for n, v in told.items()}
    own: nn.Module = getattr(nn, kind.__name__)(**given)
    return own.eval()


def _blank(tensor: Any) -> Any:
    """In place of a tensor that each call is given."""
    return zeros(*tensor.shape, dtype=TYPES[tensor.dtype])


def _operator(layer: Any, kind: type, names: list[str]) -> Operator:
    """The operator of layers with these settings. Its name tells them, so it is the same in
    every process.
    """
    pairs = sorted(_settings(layer, kind).items())
    told = [(n, tuple(v.shape) if isinstance(v, torch.Tensor) else v) for n, v in pairs]
    text = repr((told, names))
    own = f"nn_{kind.__name__}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return known(f"{SPACE}::{own}") or _made(own, layer, kind, names)


def _made(own: str, layer: Any, kind: Any, names: list[str]) -> Operator:
    twin = _own(layer, kind)
    required = inspect.Parameter.empty
    given = list(inspect.signature(kind.forward).parameters.values())[1:]
    inputs = [p.name for p in given if p.default is required]
    parameters = [Parameter(n, TENSOR) for n in (*inputs, *names)]
    outputs = 2 if getattr(layer, "return_indices", False) else 1

    def function(*args: Any) -> Any:
        held = dict(zip(names, args[len(inputs) :], strict=True))
        return functional_call(twin, held, tuple(args[: len(inputs)]))

    def make() -> Operator:
        body = checked(function, own, Signature(tuple(parameters), outputs), ())
        fresh = Operator(body, SPACE, {})
        fresh.pullback()
        return fresh

    return made(f"{SPACE}::{own}", function, make)
