"""Modules made from functions: what a function is told beside its inputs becomes settings.

``class ELU(Layer, function=elu)`` -> ``ELU(alpha=2.0)(x) == elu(x, alpha=2.0)``
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, cleandoc, signature
from typing import Any, ClassVar

from pullback.nn.base.module import Module
from pullback.nn.base.parameter import Buffer
from pullback.tensor.face.dialect import refuse_keywords
from pullback.tensor.face.tensor import State, Tensor


class Layer(Module):
    """A module without parameters whose function is `function`, of `inputs` tensors.

    The setting `last` comes after the others. Tensors among them are buffers. A function with a
    `training` argument is told the module's.

    Example:
        >>> class Twice(nn.Layer, function=lambda x, n=2: x * n): ...
        >>> Twice(n=3)(pb.ones(2))
        Tensor([3., 3.], dtype=float32)
    """

    function: ClassVar[Callable[..., Any]]
    settings: ClassVar[Signature]
    told: ClassVar[bool]

    def __init_subclass__(
        cls,
        function: Callable[..., Any] | None = None,
        inputs: int = 1,
        last: str = "",
        **rest: Any,
    ) -> None:
        super().__init_subclass__(**rest)
        if function is None:
            return
        arguments = list(signature(function).parameters.values())[inputs:]
        named = [a for a in arguments if a.name != "training"]
        named.sort(key=lambda a: a.name == last)
        cls.function = staticmethod(function)
        cls.settings = Signature(named)
        cls.told = len(named) < len(arguments)
        cls.__signature__ = Signature(named)  # type: ignore[attr-defined]  # for `help`
        cls.__doc__ = _described(cls.__doc__, function.__doc__ or "")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        refuse_keywords(type(self).__name__, kwargs, self.settings.parameters)
        bound = self.settings.bind(*args, **kwargs)
        bound.apply_defaults()
        if (own := getattr(type(self).function, "__shapes__", None)) is not None:
            own.limited(type(self).__name__, bound.arguments)
        for name, value in bound.arguments.items():
            held = isinstance(value, Tensor) and not isinstance(value, State)
            setattr(self, name, Buffer(value) if held else value)

    def forward(self, *inputs: Any) -> Any:
        told = {name: getattr(self, name) for name in self.settings.parameters}
        if self.told:
            told["training"] = self.training
        return type(self).function(*inputs, **told)

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self.settings.parameters}
        return ", ".join(f"{n}={v!r}" for n, v in shown.items() if _telling(v))


def _described(own: str | None, text: str) -> str:
    """A layer's docstring: its own, or its function's with its own example."""
    if own is None or not own.startswith("Example:"):
        return own or text
    parts = [p for p in cleandoc(text).split("\n\n") if not p.startswith("Example:")]
    example = "\n    ".join(cleandoc(own).splitlines())
    return "\n\n".join([*parts, example])


def _telling(value: Any) -> bool:
    return value is not None and value is not False and not isinstance(value, Tensor)
