"""Public functions, found by themselves, and which of their parameters are tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pullback as pb

SPACES = {
    "pb": pb,
    "nn": pb.nn,
    "nn.functional": pb.nn.functional,
    "random": pb.random,
    "stats": pb.stats,
    "special": pb.special,
    "fft": pb.fft,
    "linalg": pb.linalg,
    "quantised": pb.quantised,
    "sparse": pb.sparse,
    "optim": pb.optim,
}
ONE = {"Any", "Tensor", "Tensor | None", "Complex", "Handle", "State"}
MANY = {"Sequence[Any]", "Sequence[Tensor]", "Iterable[Any]"}
# Parameters of any type that are no tensors. A new name counts as a tensor until it stands here.
SETTINGS = {
    "dtype", "device", "shape", "axis", "axes", "over", "fill_value", "pad_width", "sizes", "spec",
    "s", "n", "dx", "key", "norm", "ord", "generator", "structure", "size", "extents",
    "rtol", "output_size", "output_ratio", "scale_factor",
}  # fmt: skip


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function of the public rooms once, by the name of the first room it is in."""
    seen: set[int] = set()
    for space, module in SPACES.items():
        for name in dir(module):
            if name[0] == "_" or name in ("torch", "jax", "triton", "onnx"):  # not always there
                continue
            value = getattr(module, name)
            if isinstance(value, type) or not inspect.isfunction(value):
                continue
            if id(value) not in seen:
                seen.add(id(value))
                yield f"{space}.{name}", value


def of_functions(function: Callable[..., Any]) -> bool:
    """Whether it takes a function: what it takes beside is a tree, checked by its structure."""
    given = inspect.signature(function).parameters.values()
    names = {p.name for p in given if "Callable" in str(p.annotation) or p.annotation == "Combine"}
    return bool(names | {p.name for p in given} & {"target", "function", "callback"})


def tensors(function: Callable[..., Any]) -> list[str]:
    """Parameters that may be tensors; one of several counts twice."""
    found = []
    for name, p in inspect.signature(function).parameters.items():
        kind = str(p.annotation)
        if name in SETTINGS or kind not in ONE | MANY:
            continue
        several = kind in MANY or p.kind is inspect.Parameter.VAR_POSITIONAL
        found += [name] * (2 if several else 1)
    return found
