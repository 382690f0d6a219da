"""Layers of PyTorch that run as operators, with what follows them inside.

    Linear(8, 4, act_func="gelu", drop_p=0.1)  ->  pullback::layer_Linear_..(x, weight, bias, seed)

They are PyTorch's classes with another forward: parameters, `state_dict`, hooks and modes are
theirs. What an operator cannot do PyTorch does, and the report says so.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

import pullback as pb
from pullback.bridge.derived import checked
from pullback.bridge.draws import seed
from pullback.bridge.mixed import Types, types_of
from pullback.bridge.modules import SPACE, _held, _own, _settings
from pullback.bridge.operator import Operator, known, made
from pullback.bridge.programs import caller
from pullback.bridge.signature import TENSOR, Parameter, Signature
from pullback.errors import ArgumentError, PullbackError, UnsupportedError
from pullback.nn import functional as F

SEED, RESIDUAL, FACTOR = "seed", "residual", "factor"
_CACHE = "_pullback_operators"
_PLAIN = {
    "sigmoid": "sigmoid", "logsigmoid": "logsigmoid", "tanh": "tanh", "relu": "relu",
    "gelu": "gelu", "geluapprox": "gelu", "silu": "silu", "relu6": "relu6",
    "hardsigmoid": "hardsigmoid", "hardtanh": "hardtanh", "hardswish": "hardswish",
    "selu": "selu", "mish": "mish", "softplus": "softplus", "softsign": "softsign",
    "tanhshrink": "tanhshrink",
}  # fmt: skip
_NUMBERED = {
    "leaky_relu": "negative_slope",
    "elu": "alpha",
    "celu": "alpha",
    "hardshrink": "lambd",
    "softshrink": "lambd",
}
ACTIVATIONS = (*_PLAIN, *_NUMBERED)
"""Names of `act_func`; the last five may end with a number: "leaky_relu_0.1"."""


def activation(name: str) -> tuple[str, dict[str, Any]]:
    """The function of `nn.functional`, here as in PyTorch, and what it is told.

    Raises: UnsupportedError for a name that there is not.
    """
    if name in _PLAIN:
        return _PLAIN[name], {"approximate": "tanh"} if name == "geluapprox" else {}
    if name in _NUMBERED:
        return name, {}
    own, _, number = name.rpartition("_")
    if own in _NUMBERED and _is_number(number):
        return own, {_NUMBERED[own]: float(number)}
    help = f"one of {', '.join(ACTIVATIONS)}, or leaky_relu_0.1"
    raise UnsupportedError(f"act_func={name!r}", origin=caller(), help=help, code="E312")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Fused:
    """Beside a layer's own class: its forward, and what follows it, as an operator."""

    training: bool
    act_func: str | None = None
    drop_p: float = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        """What it is told may change: the operator is asked for anew."""
        super().__setattr__(name, value)
        if name != "training":
            self.__dict__.pop(_CACHE, None)

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n != _CACHE}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The operator where it is given tensors alone, else what PyTorch composes; also where
        PyTorch compiles, as its graphs are then fused further than a layer.
        """
        plain = (
            not torch.compiler.is_compiling()
            and not named
            and len(inputs) == self._pullback_inputs()
        )
        operator = self._pullback_operator() if plain and self._pullback_left() is None else ""
        if isinstance(operator, str):
            return self._pullback_composed(*inputs, **named)
        return self._pullback_run(operator, inputs)

    def extra_repr(self) -> str:
        told: str = super().extra_repr()  # type: ignore[misc]  # of the layer
        more = [f"act_func={self.act_func}"] * (self.act_func is not None)
        more += [f"drop_p={self.drop_p}"] * bool(self.drop_p)
        return ", ".join([t for t in (told, *more) if t])

    @property
    def _pullback_follows(self) -> str | None:
        """The activation after it."""
        return self.act_func

    # --- what a kind of layer says of itself ------------------------------------------------------

    @classmethod
    def _pullback_kind(cls) -> type:
        """PyTorch's class."""
        return next(k for k in cls.__mro__ if k.__module__.startswith("torch."))

    def _pullback_inputs(self) -> int:
        return len(_required(self._pullback_kind()))

    def _pullback_left(self) -> str | None:
        """Why PyTorch runs it in the mode that it is in."""
        operator = self._pullback_operator()
        return operator if isinstance(operator, str) else None

    def _pullback_told(self) -> dict[str, Any]:
        """What tells its operator from others."""
        return _settings(self, self._pullback_kind())

    def _pullback_body(self) -> Callable[[Sequence[Any], dict[str, Any]], Any]:
        """Of pullback's tensors: inputs in order, held ones by name; without what follows."""
        twin = _own(self, self._pullback_kind())
        return lambda inputs, held: F.functional_call(twin, held, tuple(inputs))

    def _pullback_composed(self, *inputs: Any, **named: Any) -> Any:
        """The same by PyTorch."""
        y = super().forward(*inputs, **named)  # type: ignore[misc]  # of the layer
        return self._pullback_after(y)

    def _pullback_after(self, y: Any) -> Any:
        if self.act_func is not None:
            own, told = activation(self.act_func)
            y = getattr(torch.nn.functional, own)(y, **told)
        return torch.nn.functional.dropout(y, self.drop_p, self.training) if self.drop_p else y

    # --- its operator -----------------------------------------------------------------------------

    @property
    def _pullback(self) -> Operator:
        """Raises: UnsupportedError where PyTorch runs it."""
        operator = self._pullback_operator()
        if isinstance(operator, str):
            raise UnsupportedError(operator, origin=caller())
        return operator

    def _pullback_share(self) -> float:
        """Of elements that are dropped after all."""
        return self.drop_p

    def _pullback_draws(self) -> bool:
        return self.training and self._pullback_share() > 0

    def _pullback_tensors(self) -> dict[str, Any]:
        """What it holds, by name."""
        return {n: held for n, held in _held(self) if held is not None}

    def _pullback_run(self, operator: Operator, inputs: Sequence[Any], *more: Any) -> Any:
        drawn = [seed()] if self._pullback_draws() else []
        return operator(*inputs, *self._pullback_tensors().values(), *more, *drawn)

    def _pullback_operator(
        self, more: tuple[str, ...] = (), outputs: int = 1, flags: tuple[str, ...] = ()
    ) -> Operator | str:
        """Of the mode it is in; or why there is none. `more`: names of tensors that a call has;
        `flags`: what else its body finds in what it holds, as True.
        """
        cache = self.__dict__.setdefault(_CACHE, {})
        kind = types_of(self._pullback_kind().__name__)
        key = (self.training, more, outputs, flags, kind)
        if key not in cache:
            cache[key] = self._pullback_made(list(self._pullback_tensors()), *key[1:])
        operator: Operator | str = cache[key]
        return operator

    def _pullback_made(self, names: Sequence[str], *how: Any) -> Operator | str:
        if getattr(self, "inplace", False):
            return "inplace=True: it writes over its input"
        try:
            return self._pullback_known(names, *how)
        except PullbackError as error:
            return error.what

    def _pullback_known(
        self,
        names: Sequence[str],
        more: Sequence[str],
        outputs: int,
        flags: Sequence[str],
        kind: Types,
    ) -> Operator:
        """By a name that tells all of it, so it is the same in every process."""
        pairs = sorted(self._pullback_told().items())
        told = [(n, tuple(v.shape) if isinstance(v, torch.Tensor) else v) for n, v in pairs]
        drop = self._pullback_share() if self._pullback_draws() else 0.0
        text = repr((told, names, more, outputs, flags, kind, self._pullback_follows, drop))
        count = self._pullback_inputs()
        extra = (*more, *([SEED] if drop else []))
        body, after = self._pullback_body(), following(self._pullback_follows, drop)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        own = f"layer_{self._pullback_kind().__name__}_{digest}"

        def function(*args: Any) -> Any:
            held = dict(zip((*names, *extra), args[count:], strict=True))
            drawn = held.pop(SEED, None)
            inputs, cast = kind.given(args[:count], held)
            answer = body(inputs, cast | dict.fromkeys(flags, True))
            first, *rest = answer if isinstance(answer, tuple) else (answer,)
            whole = after(kind.result(first, inputs), drawn), *rest[: outputs - 1]
            return whole[0] if outputs == 1 else whole

        def make() -> Operator:
            given = [f"input_{n}" for n in range(count)]
            parameters = [Parameter(n, TENSOR) for n in (*given, *names, *extra)]
            signature = Signature(tuple(parameters), outputs)
            fresh = Operator(checked(function, own, signature, ()), SPACE, {})
            fresh.pullback()
            return fresh

        return known(f"{SPACE}::{own}") or made(f"{SPACE}::{own}", function, make)


def following(act: str | None, share: float) -> Callable[[Any, Any], Any]:
    """Activation and dropout of pullback's tensors, by a seed."""
    own, told = (None, {}) if act is None else activation(act)

    def after(y: Any, drawn: Any) -> Any:
        y = y if own is None else getattr(F, own)(y, **told)
        if drawn is None:
            return y
        if share == 1:
            return pb.zeros_like(y)
        key = pb.astype(drawn, "uint32")  # of this call alone: nothing else is drawn by it
        return pb.where(pb.random.uniform(tuple(y.shape), key=key) >= share, y / (1 - share), 0)

    return after


def share_of(p: Any) -> float:
    """Raises: ArgumentError for what is no probability."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        help = "0 <= drop_p <= 1"
        raise ArgumentError(f"drop_p={p!r}: no probability", origin=caller(), help=help)
    return float(p)


def _required(kind: Any) -> list[str]:
    """The inputs that a layer cannot do without."""
    given = list(inspect.signature(kind.forward).parameters.values())[1:]
    return [p.name for p in given if p.default is inspect.Parameter.empty]
