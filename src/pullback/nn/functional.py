"""`nn.functional`: functions under torch's names, `dim` and argument order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pullback.errors import Origin, StateError
from pullback.nn.activation import (
    dropout,
    gelu,
    log_softmax,
    logsigmoid,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from pullback.nn.attention import scaled_dot_product_attention
from pullback.nn.cross_entropy import cross_entropy, nll_loss
from pullback.nn.linear import embedding, layer_norm, linear, one_hot, rms_norm
from pullback.nn.losses import binary_cross_entropy_with_logits, l1_loss, mse_loss
from pullback.nn.module import Module

__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "dropout",
    "embedding",
    "functional_call",
    "gelu",
    "l1_loss",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsigmoid",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """``module(*args)`` with other tensors in place of those named.

    Raises: StateError for a name that the module does not have.
    """
    given = args if isinstance(args, tuple) else (args,)
    with _replaced(module, parameters_and_buffers):
        return module(*given, **(kwargs or {}))


@contextmanager
def _replaced(module: Module, named: Mapping[str, Any]) -> Iterator[None]:
    """Other tensors under the names of a module's cells, for a while."""
    homes = dict(module.named_modules())
    undo: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, tensor in named.items():
            path, _, last = name.rpartition(".")
            home = _home(homes.get(path), last, name)
            undo.append((home, last, home[last]))
            home[last] = tensor
        yield
    finally:
        for home, last, before in reversed(undo):
            home[last] = before


def _home(module: Module | None, last: str, name: str) -> dict[str, Any]:
    if module is not None:
        homes: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for home in homes:
            if last in home:
                return home
    raise StateError(f"the module has no parameter `{name}`", origin=Origin.of_caller())
