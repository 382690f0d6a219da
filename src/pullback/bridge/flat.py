"""Functions of tensors in a row, traced for given shapes: what other libraries are handed.

f(x, w, k=3)  ->  a program over row-major memory: inputs, then results
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.bridge.derived import Derived
from pullback.bridge.signature import Signature
from pullback.config import Options
from pullback.errors import UnsupportedError
from pullback.ir.dtype import DType
from pullback.ir.expr import Extent
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, HostCall, Receive, items
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.face.tree import flatten
from pullback.tensor.run.entry import Entry
from pullback.tensor.run.program import Jit

Shape = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Lying:
    """A tensor that is given: of this shape and type, in row-major order."""

    shape: Shape
    dtype: DType


def flat(function: Callable[..., Any], name: str, signature: Signature) -> Derived:
    """The function as one of arguments in a row that gives a tuple of tensors: all of a result that
    is a tree of them.

    Raises: UnsupportedError, at the call, for a result without a tensor.
    """
    given = inspect.signature(function).parameters.values()
    keyed = [p.name for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY]
    count = len(signature.parameters) - len(keyed)

    def call(*args: Any) -> tuple[Tensor, ...]:
        returned = function(*args[:count], **dict(zip(keyed, args[count:], strict=True)))
        results = tuple([r for r in flatten(returned).handles if isinstance(r, Tensor)])
        if not results:
            what = f"`{name}` returns a {type(returned).__name__}: an operator gives tensors"
            raise UnsupportedError(what)
        return results

    return Derived(name, signature, call)


def traced(function: Derived, args: Sequence[Any], options: Options) -> Entry:
    """The program for arguments in order: a `Lying` where a tensor is given, else a value."""
    lying = [a for a in args if isinstance(a, Lying)]
    names = iter([p.name for p, a in zip(function.signature.parameters, args, strict=True)])
    whole = []
    for argument in args:
        name = next(names)
        known = isinstance(argument, Lying)
        whole.append(Tensor(Variable(name, argument.shape, argument.dtype)) if known else argument)
    jit = Jit(_named(function), options=options)
    return jit.trace(flatten((tuple(whole), {})), [a.shape for a in lying])


def _named(function: Derived) -> Callable[..., Any]:
    """Its call, with the names of its parameters."""

    def call(*args: Any) -> Any:
        return function.call(*args)

    kind = inspect.Parameter.POSITIONAL_ONLY
    names = [inspect.Parameter(p.name, kind) for p in function.signature.parameters]
    setattr(call, "__signature__", inspect.Signature(names))  # noqa: B010  # mypy knows none
    call.__name__ = function.name
    return call


def refusal(entry: Entry, host: bool = False) -> str | None:
    """What a program does beside giving results; None: nothing. `host`: it may call the host."""
    if entry.written:
        return "assigns " + ", ".join(f"`{cell._value.name}`" for cell in entry.written)
    for item in items(entry.executable.program.body):
        if isinstance(item, Feed | Receive):
            return "feeds or receives"
        if isinstance(item, HostCall) and not host:
            return f"calls {item.library} ({item.name})"
    return None
