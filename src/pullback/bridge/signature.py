"""What an operator takes and gives, read off the function that it is made of.

``def f(x, w: Tensor, k: int = 1) -> Tensor``  ->  ``(Tensor x, Tensor w, int k=1) -> Tensor``
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

from pullback.errors import OptionError, UnsupportedError

STATIC = {int: "int", float: "float", bool: "bool", str: "str"}
NAMES = {kind.__name__: word for kind, word in STATIC.items()}
MOST = 62  # parameters: a set of them is an int64
TENSOR, MAYBE = "Tensor", "Tensor?"
_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, its type in a schema, and its default as a schema writes it."""

    name: str
    kind: str
    default: str = ""

    @property
    def is_tensor(self) -> bool:
        return self.kind in (TENSOR, MAYBE)

    def __str__(self) -> str:
        end = f"={self.default}" if self.default else ""
        return f"{self.kind} {self.name}{end}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters in order, and how many tensors come out."""

    parameters: tuple[Parameter, ...]
    outputs: int = 1

    @property
    def tensors(self) -> list[int]:
        """The places of tensors among the parameters."""
        return [n for n, p in enumerate(self.parameters) if p.is_tensor]

    @property
    def schema(self) -> str:
        """As `torch.library` wants it."""
        given = ", ".join(map(str, self.parameters))
        out = ", ".join([TENSOR] * self.outputs)
        return f"({given}) -> {out}" if self.outputs == 1 else f"({given}) -> ({out})"

    @property
    def plain(self) -> tuple[Parameter, ...]:
        """The parameters without defaults, for others to stand before or after them."""
        return tuple([replace(p, default="") for p in self.parameters])


def signature_of(
    function: Callable[..., Any], types: Mapping[str, type], outputs: int | None
) -> Signature:
    """The signature of a function; `types` and `outputs` say what annotations do not.

    Raises: UnsupportedError for a parameter that a schema cannot have; OptionError for a name that
        is no parameter.
    """
    hints = _hints(function)
    every = inspect.signature(function).parameters.values()
    unknown = [n for n in types if n not in [p.name for p in every]]
    if unknown:
        raise OptionError(f"`{unknown[0]}` is no parameter of the function", code="E529")
    named = [p for p in every if p.kind in _NAMED]
    keyed = [p for p in every if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for p in every:
        if p not in named and p not in keyed:
            raise UnsupportedError(
                f"an operator with `{p}`", help="name each of its tensors: def f(x, w, b)"
            )
    parameters = [_parameter(p, hints.get(p.name), types.get(p.name)) for p in (*named, *keyed)]
    if not any(p.is_tensor for p in parameters) or len(parameters) > MOST:
        raise UnsupportedError(f"an operator needs a tensor, and at most {MOST} parameters")
    count = _count(hints.get("return")) if outputs is None else outputs
    return Signature(tuple(parameters), count)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations, evaluated where that can be done."""
    plain = inspect.unwrap(function)
    try:
        return get_type_hints(plain)
    except (AttributeError, NameError, TypeError):
        return dict(getattr(plain, "__annotations__", {}))


def _parameter(given: inspect.Parameter, hint: Any, told: type | None) -> Parameter:
    default = "" if given.default is inspect.Parameter.empty else _written(given.default)
    kind = _kind(told if told is not None else hint, given.default)
    if kind == TENSOR and default == "None":
        kind = MAYBE
    if kind in (TENSOR, MAYBE) and default not in ("", "None"):
        raise UnsupportedError(f"a tensor as the default of `{given.name}`")
    return Parameter(given.name, kind, default)


def _kind(hint: Any, default: Any) -> str:
    """The type in a schema, by annotation, else by default."""
    if isinstance(hint, str):
        return NAMES.get(hint, MAYBE if "None" in hint or "Optional" in hint else TENSOR)
    if hint in STATIC:
        return STATIC[hint]
    if type(None) in get_args(hint):
        others = [a for a in get_args(hint) if a is not type(None)]
        return f"{STATIC[others[0]]}?" if len(others) == 1 and others[0] in STATIC else MAYBE
    return STATIC.get(type(default), TENSOR) if hint is None else TENSOR


def _written(default: Any) -> str:
    if isinstance(default, str):
        return f'"{default}"'
    return repr(default)


def _count(hint: Any) -> int:
    """How many tensors a result is, by its annotation."""
    if isinstance(hint, str):
        inner = hint.partition("[")[2].rpartition("]")[0]
        return inner.count(",") + 1 if hint.lower().startswith("tuple[") else 1
    parts: Sequence[Any] = get_args(hint) if get_origin(hint) is tuple else ()
    return len(parts) if parts and ... not in parts else 1
