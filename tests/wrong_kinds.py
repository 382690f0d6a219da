"""Calls of public functions with one argument of a wrong Python type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import pullback as pb
from pullback.errors import PullbackError


class Strange:
    """Nothing that a tensor could be made of."""


WRONG: dict[str, Any] = {
    "None": None, "a text": "text", "an object": Strange(), "complex": 1j, "a list": [1, 2],
    "nan": float("nan"), "inf": float("inf"), "True": True, "float32 of NumPy": np.float32(1.5),
    "int64 of NumPy": np.int64(7), "a huge integer": 10**400, "negative": -5, "a dictionary": {},
    "a function": lambda *_: 1, "a float": 1.5, "an empty list": [], "texts": np.array(["a"]),
    "a set": {1}, "bytes": b"x", "a dim": pb.dim("n", 1, 8), "a slice": slice(None),
    "a pair": (0, 0), "a type": int, "mixed": [None, "a"], "objects": np.array([None, 1], object),
}  # fmt: skip
FLOATS = np.arange(6.0).reshape(2, 3) + 1
USUAL: dict[str, Any] = {
    "axis": 0, "dim": 0, "shape": (2, 3), "dtype": "float32", "device": None,
    "n": 2, "num": 2, "k": 2, "start": 2, "stop": 2, "repeats": 2, "num_classes": 2, "bins": 2,
    "module": pb.nn.Identity(), "target": pb.sum, "pad_width": 1,
}  # fmt: skip
PLURAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MODULES = {
    "pb": pb, "pb.linalg": pb.linalg, "pb.fft": pb.fft, "pb.special": pb.special,
    "pb.random": pb.random, "pb.nn.functional": pb.nn.functional,
}  # fmt: skip
FACTS = ("set_num_threads",)  # what changes the process


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions by their names."""
    for module, own in MODULES.items():
        for name in dir(own):
            if name in ("torch", "jax", "triton", "onnx"):  # not always there
                continue
            function = getattr(own, name)
            if name not in FACTS and inspect.isfunction(function):
                yield f"{module}.{name}", function


def calls(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A call for each parameter and each wrong value; the other arguments are plausible."""
    known = inspect.signature(function).parameters.values()
    for one in known:
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for kind, wrong in WRONG.items():
            yield f"{name}({one.name}={kind})", partial(called, function, one, wrong)


def called(function: Callable[..., Any], one: inspect.Parameter, wrong: object) -> Any:
    """`function` with a wrong value for one parameter."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    for p in inspect.signature(function).parameters.values():
        if p.name != one.name and (p.kind in PLURAL or p.default is not p.empty):
            continue
        value = wrong if p.name == one.name else USUAL.get(p.name, pb.tensor(FLOATS))
        optional = p.default is not p.empty and p.kind is not p.POSITIONAL_ONLY
        if p.kind is p.KEYWORD_ONLY or optional:
            named[p.name] = value
        else:
            args.append(value)
    return function(*args, **named)


def raw_error(call: Callable[[], Any]) -> str:
    """The error without a code that a call ends with, in words; empty where there is none."""
    try:
        found = call()
        if isinstance(found, pb.Tensor):
            found.numpy()
    except PullbackError as error:
        return "" if error.code else "no code"
    except (Exception, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
